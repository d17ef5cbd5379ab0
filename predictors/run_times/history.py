"""JobDuration (§5.4.2) from ended jobs of the same name, else user, else pool and width."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from typing import Self

from sia.forecasts import PredictorContext, RunTimes
from sia.limits import UNKNOWN_RUN_TIME
from sia.model import Job

RECENT = 50
"""Number of ended jobs remembered of each kind: enough for a 90th percentile, few enough to follow
changes."""

ENOUGH = 5
"""Minimum number of ended jobs of a kind. With fewer, one outlier decides."""

QUANTILE = 0.9
"""Quantile of the estimate. It is high, because an estimate that is too short can slow a lender,
while one that is too long only misses a chance to borrow."""


class _Recent:
    """The last `RECENT` run times of one kind of job, by age and sorted. O(`RECENT`) at worst."""

    __slots__ = ("_by_age", "_by_length")

    def __init__(self) -> None:
        self._by_age: deque[float] = deque()
        self._by_length: list[float] = []

    def add(self, run_time: float) -> None:
        if len(self._by_age) == RECENT:
            oldest = self._by_age.popleft()
            del self._by_length[bisect_left(self._by_length, oldest)]
        self._by_age.append(run_time)
        insort(self._by_length, run_time)

    def estimate(self, quantile: float) -> float | None:
        n = len(self._by_length)
        return self._by_length[int(n * quantile)] if n >= ENOUGH else None


class HistoryRunTimes(RunTimes):
    """A high quantile of the run times of the last similar jobs."""

    summary = "guessed from earlier jobs of the same name, or user, pool and width"
    takes_quantile = True
    usual_quantile = QUANTILE

    @classmethod
    def build(cls, context: PredictorContext) -> Self:
        """Build a predictor without history."""
        return cls(context.quantile or QUANTILE)

    def __init__(self, quantile: float = QUANTILE) -> None:
        """Start without history. Raises ValueError unless 0 < quantile < 1."""
        if not 0 < quantile < 1:
            raise ValueError(f"quantile must be between 0 and 1 (got {quantile})")
        self._quantile = quantile
        self._kinds: dict[tuple[str | int, ...], _Recent] = {}

    def run_time(self, job: Job) -> float:
        """Return the estimate in seconds, `UNKNOWN_RUN_TIME` if too few similar jobs have ended."""
        for kind in _kinds(job):
            recent = self._kinds.get(kind)
            if recent is not None and (estimate := recent.estimate(self._quantile)) is not None:
                return estimate
        return UNKNOWN_RUN_TIME

    def finished(self, now: float, job: Job, run_time: float) -> None:
        """Record the run time for every kind of the job."""
        for kind in _kinds(job):
            recent = self._kinds.get(kind)
            if recent is None:
                recent = self._kinds[kind] = _Recent()
            recent.add(run_time)


def _kinds(job: Job) -> list[tuple[str | int, ...]]:
    """Return the kinds of a job, most specific first."""
    kinds: list[tuple[str | int, ...]] = []
    if job.name:
        kinds.append(("name", job.name))
    if job.user:
        kinds.append(("user", job.user, job.pool, job.width))
    kinds.append(("pool", job.pool, job.width))
    return kinds
