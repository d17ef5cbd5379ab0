"""The interface of forecasts, which the classes in `predictors/` implement.

The driver of the core queries forecasts and passes the answers on as events. So a journal of events
contains all that was known at each time.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, Self

from sia.limits import RECENT
from sia.model import Estimate, Job, Load

Aside = Callable[[Callable[[], None]], object]
"""Runs a function for the caller, perhaps in another thread."""


class PredictorContext(NamedTuple):
    """What a predictor is built from.

    Attributes:
        windows: Lengths of the forecast windows in seconds, ascending.
        pools: Names of all pools; empty for run times.
        start: Second at which it begins to observe.
        quantile: The quantile in the label; None without one.
        percent: The percentage that the label gives, if the class has `percent_bounds`.
        recent: Number of past windows to remember.
        seed: Seed of random predictors.
        model: The trained model, if the class says `needs_model`.
        since: The second from which on a pool exists, by pool, for pools newer than `start`.
        quotas: Quotas in GPUs, by pool; forecasts of a new pool are shares of them.
        groups: The sharing group of each pool: pools lend to each other if these are equal.
        log: All jobs and how long they run in seconds, if the class says `needs_log`.
    """

    windows: tuple[float, ...]
    pools: Sequence[str] = ()
    start: float = 0.0
    quantile: float | None = None
    percent: float | None = None
    recent: int = RECENT
    seed: int = 0
    model: object = None
    log: Sequence[tuple[Job, float]] = ()
    since: Mapping[str, float] = MappingProxyType({})
    quotas: Mapping[str, int] = MappingProxyType({})
    groups: Mapping[str, Hashable] = MappingProxyType({})


class QuantileLimit(NamedTuple):
    """The highest quantile that a predictor can forecast, and the reason."""

    most: float
    reason: str


class Predictor:
    """The properties of a class of predictors."""

    summary = ""
    """How it predicts, in a few words, for reports."""
    takes_quantile = False
    """Whether a label can ask for a quantile, as in `peaks:0.95`."""
    usual_quantile: float | None = None
    """The quantile if the label has none; None if the predictor then forecasts no quantile."""
    needs_model = False
    """Whether it needs a model that was trained before."""
    needs_log = False
    """Whether it needs the whole log, with the future: only a replay has it."""
    replay_only = False
    """Whether it exists only for comparison in replays, so that no daemon should use it."""
    learns = True
    """Whether its predictions depend on the jobs before."""

    @classmethod
    def missing(cls) -> str:
        """Return which needed package is not installed and how to install it, or ""."""
        return ""

    @classmethod
    def quantile_limit(cls, windows: Sequence[float]) -> QuantileLimit:
        """Return the highest quantile for windows of these lengths (seconds)."""
        return QuantileLimit(1.0, "")

    @classmethod
    def describe(cls, quantile: float | None, recent: int) -> str:
        """Return a description for reports, with this quantile and `recent` past windows."""
        return cls.summary


class RunTimes(Predictor):
    """Predicts run times of jobs (§5.2, JobDuration), in seconds.

    At one instant the driver first reports ends, then requests estimates of arrivals, then calls
    `changes`.
    """

    percent_bounds: tuple[float, float] | None = None
    """The least and largest percentage of its name, as in `within:20`; None if it takes none."""

    @classmethod
    def build(cls, context: PredictorContext) -> Self:
        """Build one that has seen nothing yet."""
        return cls()

    def run_time(self, job: Job) -> float:
        """Return the estimate at submission. SIA uses only the run-time bin into which it falls."""
        raise NotImplementedError

    def run_times(self, jobs: Sequence[Job]) -> list[float]:
        """Return the estimates of jobs that are submitted together, in this order."""
        return [self.run_time(job) for job in jobs]

    def work_aside(self, aside: Aside) -> None:
        """From now on do work that takes more than some milliseconds by `aside`, not at once."""

    def guess(self, now: float, job: Job) -> float:
        """Return the estimate of a job that is not submitted, in seconds; learn nothing."""
        estimate = self.run_time(job)
        self.withdrawn(now, job)
        return estimate

    def started(self, now: float, job: Job) -> None:
        """Record that a job has started."""

    def progressed(
        self, now: float, job: Job, done: float, speed: float, overhead: float = 0.0
    ) -> None:
        """Record that a running job has reported its progress, or was corrected by the driver.

        `done` is its work so far, in seconds at its own width. `speed` is the seconds of work that
        it does per second from now on, after `overhead` seconds without work.
        """

    def finished(self, now: float, job: Job, run_time: float) -> None:
        """Record that a job has ended, with its run time in seconds."""

    def withdrawn(self, now: float, job: Job) -> None:
        """Record that a job was cancelled before its end."""

    def changes(self, now: float) -> Sequence[Estimate]:
        """Return pending jobs whose estimate differs from the last one returned."""
        return ()


class Loads(Predictor):
    """Predicts the GPUs that new jobs will request (§5.2, TotalNewLoad)."""

    minds_new_pools = False
    """Whether it uses the time from which on each pool exists (`PredictorContext.since`)."""
    forgets = False
    """Whether `forget` has an effect."""
    stated_by_pool = True
    """Whether a forecast is to hold for each pool by itself, not only for a group's sum."""

    @classmethod
    def build(cls, context: PredictorContext) -> Self | None:
        """Build one that has seen nothing yet; None if nothing is to be predicted."""
        return cls()

    def submitted(self, now: float, job: Job) -> None:
        """Record that a job has arrived."""

    def started(self, now: float, job: Job, run_time: float) -> None:
        """Record that a job has started, with its run-time estimate in seconds."""

    def finished(self, now: float, job: Job) -> None:
        """Record that a job has ended."""

    def withdrawn(self, now: float, job: Job) -> None:
        """Record that a job was cancelled before its end."""

    def forget(self, pool: str, before: float) -> None:
        """Drop the observations of a pool before that second, because its load has changed."""

    def requota(self, now: float, pool: str, quota: int) -> None:
        """Record a pool's quota in GPUs, which may have changed."""

    def unasked(self, now: float) -> None:
        """Record a tick of the past without a query, for calibration."""

    def changes(self, now: float) -> Sequence[Load]:
        """Return forecasts that differ from the last ones returned. Initially every load is 0."""
        raise NotImplementedError
