"""Distributions of run times, also of jobs that have already run for a while.

The life tables are those of `predictors.run_times.survival`, with ages close enough to interpolate
between them. A job that has run for an hour is compared with jobs that ran for at least an hour.

If the user has stated a run time of a job, the tables hold the ratio of run time to stated run
time instead of the run time. So a stated run time always counts, corrected by the ratios of
earlier jobs. If all similar jobs state the same time, both kinds of table give the same result.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from heapq import heappop, heappush
from itertools import pairwise
from math import exp, log
from typing import NamedTuple

from predictors.random_forecast import draw
from predictors.run_times.survival import (
    LEAST,
    MOST_GROUPS,
    SurvivalRunTimes,
    _Alike,
    _Group,
    _kinds,
    _Run,
)
from sia.limits import UNKNOWN_RUN_TIME
from sia.model import Job

FIRST = 15.0
"""The first age of the tables in seconds. Shorter run times do not matter for planning."""

STEP = 1.5
"""Ratio of successive ages. Interpolated run times are within a fifth of the exact ones."""

LAST = 60 * 86400.0
"""The last age in seconds. Beyond it, jobs behave like jobs of which nothing is known."""

LEAST_STATED = 1.0
"""Seconds; a shorter stated run time counts as this one, so that ratios to it stay finite."""

HARDLY = 1e-9
"""Minimum probability of continuing, so that its logarithm is finite if no job continued."""

ALL = ""
"""Stands for all pools where jobs are counted by pool."""

_BITS = 2**20
"""Random numbers are split into parts with this many values."""


def ages() -> tuple[float, ...]:
    """Return the ages of the tables in seconds, ascending."""
    found = [FIRST]
    while found[-1] < LAST:
        found.append(found[-1] * STEP)
    return tuple(found)


AGES = ages()

_LOGS = [0.0, *map(log, AGES)]  # logarithms of 1 second and of the ages

THOUSANDTHS = (
    5.0, 10.0, 20.0, 40.0, 70.0, 100.0, 150.0, 220.0, 330.0, 450.0, 570.0, 680.0, 780.0, 870.0,
    940.0, 985.0, 1015.0, 1060.0, 1130.0, 1250.0, 1500.0, 2e3, 3e3, 5e3, 1e4, 3e4, 1e5, 1e6,
)  # fmt: skip
"""The ages of the tables of ratios, in thousandths of the stated run time. They are dense around
1000, because many jobs end, or are ended, at the stated time."""

_THOUSANDTHS_LOGS = [0.0, *map(log, THOUSANDTHS)]


class _Unproved(_Group):
    """The assumed distribution of run time / stated run time, before any such job has ended.

    Half of the jobs end by the stated time, four of five by twice and nine of ten by three times
    the stated time (a log-logistic distribution). The assumption has the weight of `PRIOR` jobs.
    """

    __slots__ = ("_assumed",)

    def __init__(self) -> None:
        super().__init__(len(THOUSANDTHS), None)
        left = [1.0, *(1.0 / (1.0 + (each / 1000.0) ** 2) for each in THOUSANDTHS)]
        self._assumed = [after / before for before, after in pairwise(left)]

    def hazards(self, known: int) -> list[float]:
        return self._assumed


class HazardCurve:
    """The negative logarithm of the probability to run longer than each age. It is ascending."""

    __slots__ = ("_logs", "known", "risk")

    def __init__(self, hazards: Sequence[float], known: int, logs: Sequence[float] = _LOGS) -> None:
        """Build the curve from one probability for each age.

        Args:
            hazards: The probability that a job that reached the age before runs longer than this
                age.
            known: The number of observations in all tables, by which the caller sees whether the
                curve is up to date.
            logs: The logarithms of 1 and of the ages.
        """
        self.known, self._logs = known, logs
        self.risk = [0.0]
        for hazard in hazards:
            self.risk.append(self.risk[-1] - log(max(hazard, HARDLY)))

    def quantile(self, chance: float, age: float = 0.0) -> float:
        """Return the quantile `chance` of the total run time of a job that has run for `age`.

        Times are in seconds; `chance` is at least 0 and below 1. Beyond the last age, running twice
        as long is half as probable, because without observations no time scale is preferred.
        """
        at, logs = log(max(age, 1.0)), self._logs
        risk = self._risk(at) - log(1.0 - chance)
        if risk >= self.risk[-1]:
            before = max(at, logs[-1]) - self._beyond(at)
            seconds = exp(min(before + risk - self.risk[-1], log(UNKNOWN_RUN_TIME)))
        else:
            i = bisect_left(self.risk, risk)
            low, high = self.risk[i - 1] if i else 0.0, self.risk[i]
            part = (risk - low) / (high - low) if high > low else 0.0
            seconds = exp(logs[i - 1] + part * (logs[i] - logs[i - 1])) if i else 1.0
        return max(seconds, age)

    def _beyond(self, at: float) -> float:
        """Return by how much the logarithm of an age exceeds that of the last age, or 0."""
        return max(0.0, at - self._logs[-1])

    def _risk(self, at: float) -> float:
        """Return the risk up to an age that is given by its logarithm."""
        logs = self._logs
        if at >= logs[-1]:
            return self.risk[-1] + at - logs[-1]
        i = bisect_left(logs, at)
        if i == 0:
            return 0.0
        part = (at - logs[i - 1]) / (logs[i] - logs[i - 1])
        return self.risk[i - 1] + part * (self.risk[i] - self.risk[i - 1])


def _thousandth(estimate: float) -> float:
    """Return the unit of ratios to a stated run time, in seconds."""
    return max(estimate, LEAST_STATED) / 1000.0


class StatedCurve(NamedTuple):
    """The curve of a job with a stated run time, in units of a thousandth of that time."""

    ratios: HazardCurve
    unit: float
    """A thousandth of the stated run time, in seconds."""

    def quantile(self, chance: float, age: float = 0.0) -> float:
        """Return the same as `HazardCurve.quantile`."""
        seconds = self.unit * self.ratios.quantile(chance, age / self.unit)
        return max(min(seconds, UNKNOWN_RUN_TIME), age)


class _Crossing(NamedTuple):
    """The moment at which a running job reaches the next age of the table of ratios."""

    time: float
    """In seconds."""
    number: int
    """Orders crossings at the same time, so that runs are never compared."""
    unit: float
    """A thousandth of the stated run time, in seconds."""
    age: int
    """Index into `THOUSANDTHS`."""
    run: _Run


class Evidence(NamedTuple):
    """Numbers of ended jobs."""

    similar: int
    """Ended jobs of the same pool, user, name and similar width (the same power of two)."""
    in_pool: int


class RunTimeDistributions(SurvivalRunTimes):
    """A run-time predictor that returns distributions and draws samples from them."""

    def __init__(self) -> None:
        """Start without history."""
        super().__init__(AGES, unseen=1.0 / STEP)  # lasting twice as long is half as likely
        self._curves: dict[_Group, HazardCurve] = {}
        self._lots: dict[str, str] = {}  # job alive: first job of its batch
        self._batches: dict[_Group, tuple[_Group, str]] = {}  # kind: newest batch and its first job
        self._all.ratios = _Group(len(THOUSANDTHS), _Unproved())
        self._stated: list[_Crossing] = []  # heap: one for each running job with a stated run time
        self._stated_runs: dict[str, _Run] = {}
        self._numbered = 0
        self._alive: dict[str, tuple[str, bool]] = {}  # job: its pool, whether it states a run time
        self._unstated = {ALL: 0}  # by pool: jobs alive that do not state one

    def submitted(self, job: Job) -> None:
        """Record that a job has arrived. O(ages)."""
        self.run_time(job)

    def run_time(self, job: Job) -> float:
        """Record a job and return `UNKNOWN_RUN_TIME`; use `curve` for estimates."""
        estimate = super().run_time(job)
        self._lives(job)
        batch = self._waiting[job.id][0].batch
        kind = batch.wider
        assert kind is not None, "every batch has a kind"
        known = self._batches.get(kind)
        if known is None or known[0] is not batch:
            if len(self._batches) >= 2 * MOST_GROUPS:
                self._batches.clear()  # later jobs of these batches start new ones
            known = self._batches[kind] = batch, job.id
        self._lots[job.id] = known[1]
        return estimate

    def _fit(self, alike: _Alike) -> float:
        """Return `UNKNOWN_RUN_TIME`: a quantile is not needed here, and costs time."""
        return UNKNOWN_RUN_TIME

    def expect(self, job: Job) -> None:
        """Add a job that was not reported as submitted, or may be later, to its batch. O(ages)."""
        if job.id not in self._waiting and job.id not in self._running:
            self.run_time(job)

    def started(self, now: float, job: Job) -> None:
        """Record that a job has started."""
        super().started(now, job)
        self._lives(job)
        if job.estimate:
            run = self._stated_runs[job.id] = _Run(now, self._ratios(self._running[job.id].group))
            self._await(run, _thousandth(job.estimate), 0)

    def finished(self, now: float, job: Job, run_time: float) -> None:
        """Record that a job has ended, with its run time in seconds."""
        group: _Group | None = self._alike(job)
        run = self._stated_runs.pop(job.id, None)
        if run is not None:
            run.ended = run_time
        elif job.estimate and group is not None:  # its start was not reported
            self._count(self._ratios(group), run_time / _thousandth(job.estimate))
        while group is not None:
            group.ended += 1
            group = group.wider
        self._lots.pop(job.id, None)
        self._leaves(job)
        super().finished(now, job, run_time)

    def withdrawn(self, now: float, job: Job) -> None:
        """Record that a job was cancelled. The ages that it reached count."""
        self._lots.pop(job.id, None)
        self._leaves(job)
        run = self._stated_runs.pop(job.id, None)
        if run is not None:
            self._advance_ratios(now)
            run.gone = True
        super().withdrawn(now, job)

    def knows(self) -> bool:
        """Return whether enough jobs were seen for a prediction."""
        return self._all.reached[0] >= LEAST

    def unstated(self, pool: str | None = None) -> int:
        """Return how many active jobs of a pool, or of all pools, state no run time. O(1)."""
        return self._unstated.get(ALL if pool is None else pool, 0)

    def _lives(self, job: Job) -> None:
        if job.id not in self._alive:
            self._alive[job.id] = job.pool, bool(job.estimate)
            for pool in (job.pool, ALL):
                self._unstated[pool] = self._unstated.get(pool, 0) + (not job.estimate)

    def _leaves(self, job: Job) -> None:
        pool, states = self._alive.pop(job.id, ("", True))
        if not states:
            self._unstated[pool] -= 1
            self._unstated[ALL] -= 1

    def observed(self) -> int:
        """Return the weighted number of jobs that `knows` compares; older jobs weigh less."""
        return int(self._all.reached[0])

    def evidence(self, job: Job) -> Evidence:
        """Return the numbers of ended jobs from which the curve of this job is computed. O(1)."""
        found = [self._groups.get(kind) or self._older.get(kind) for kind in _kinds(job)]
        pool, similar = found[0], found[-1]
        return Evidence(similar.ended if similar else 0, pool.ended if pool else 0)

    def advance(self, now: float) -> None:
        """Count the jobs that have reached further ages by now."""
        self._cross(now)

    def _cross(self, now: float) -> None:
        super()._cross(now)
        self._advance_ratios(now)

    def _advance_ratios(self, now: float) -> None:
        """Count the jobs with a stated run time that have reached further ages by now."""
        while self._stated and self._stated[0][0] < now:
            _, _, unit, age, run = heappop(self._stated)
            if not run.gone:
                lasted = run.ended is None or run.ended > unit * THOUSANDTHS[age]
                self._add(run.group, age, lasted=lasted)
                if lasted and age + 1 < len(THOUSANDTHS):
                    self._await(run, unit, age + 1)

    def _await(self, run: _Run, unit: float, age: int) -> None:
        self._numbered += 1
        reached = run.start + unit * THOUSANDTHS[age]
        heappush(self._stated, _Crossing(reached, self._numbered, unit, age, run))

    def _count(self, ratios: _Group, thousandths: float) -> None:
        """Count an ended job by its run time in thousandths of the stated run time."""
        for age, length in enumerate(THOUSANDTHS):
            self._add(ratios, age, lasted=thousandths > length)
            if thousandths <= length:
                return

    def _ratios(self, group: _Group) -> _Group:
        """Return the table of ratios that belongs to a group."""
        if group.ratios is None:
            assert group.wider is not None, "the group of all jobs has one from the beginning"
            group.ratios = _Group(len(THOUSANDTHS), self._ratios(group.wider))
        return group.ratios

    def curve(self, job: Job) -> HazardCurve | StatedCurve:
        """Return the curve of a job; if the job has not ended, that of its batch.

        O(ages) after a change of the tables, otherwise O(1).
        """
        group = self._alike(job)
        if job.estimate:
            ratios = self._ratios(group)
            return StatedCurve(self._curve(ratios, _THOUSANDTHS_LOGS), _thousandth(job.estimate))
        return self._curve(group, _LOGS)

    def _curve(self, group: _Group, logs: Sequence[float]) -> HazardCurve:
        curve = self._curves.get(group)
        if curve is None or curve.known != self._known:
            if len(self._curves) >= MOST_GROUPS:
                self._curves.clear()
            curve = self._curves[group] = HazardCurve(group.hazards(self._known), self._known, logs)
        return curve

    def _alike(self, job: Job) -> _Group:
        if job.id in self._waiting:
            return self._waiting[job.id][0].batch
        run = self._running.get(job.id)
        if run is not None:
            return run.group
        found = self._all
        for kind in _kinds(job):
            known = self._groups.get(kind) or self._older.get(kind)
            if known is None:
                break
            found = known
        return found

    def chances(self, job: Job, count: int) -> list[float]:
        """Return `count` numbers between 0 and 1, one from each `count`-th part, shuffled.

        The pseudo-random order depends only on the job. It is the same for all jobs of a batch,
        because their run times are correlated. `count` must be prime.
        """
        lot = draw("lasting", self._lots.get(job.id, job.id))
        own = draw("lasts", job.id) % _BITS / _BITS
        stride, first = 1 + lot % (count - 1), lot // _BITS % count
        return [((first + i * stride) % count + own) / count for i in range(count)]
