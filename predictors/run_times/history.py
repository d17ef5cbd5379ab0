"""JobDuration (§5.4.2) from ended jobs: of the same name, else user, else pool and width."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from typing import Self

from sia.forecasts import PredictorContext, RunTimes
from sia.limits import UNKNOWN_RUN_TIME
from sia.model import Job

RECENT = 50
"""Ended jobs remembered of each kind: enough for a 90th percentile, few enough to follow change."""

ENOUGH = 5
"""Ended jobs without which a kind says nothing: with fewer, one odd run decides."""

QUANTILE = 0.9
"""The estimate's place among them. Too short an estimate can slow a lender, too long a one only
misses a chance, so it is on the high side."""


class _Recent:
    """The last `RECENT` run times of one kind of job, also sorted. O(`RECENT`) at worst, in C."""

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
    """A high quantile of how long the last similar jobs ran; without any, the longest bin."""

    summary = "guessed from earlier jobs of the same name, or user, pool and width"
    takes_quantile = True
    usual_quantile = QUANTILE

    @classmethod
    def build(cls, context: PredictorContext) -> Self:
        """Build one that has seen nothing yet."""
        return cls(context.quantile or QUANTILE)

    def __init__(self, quantile: float = QUANTILE) -> None:
        """Start with no history. Raises ValueError for a quantile that is not between 0 and 1."""
        if not 0 < quantile < 1:
            raise ValueError(f"a quantile is between 0 and 1, not {quantile}")
        self._quantile = quantile
        self._kinds: dict[tuple[str | int, ...], _Recent] = {}

    def run_time(self, job: Job) -> float:
        """Seconds; `UNKNOWN_RUN_TIME`, to which nobody lends, while nothing similar has ended."""
        for kind in _kinds(job):
            recent = self._kinds.get(kind)
            if recent is not None and (estimate := recent.estimate(self._quantile)) is not None:
                return estimate
        return UNKNOWN_RUN_TIME

    def finished(self, now: float, job: Job, run_time: float) -> None:
        """Remember the run for every kind the job is of."""
        for kind in _kinds(job):
            recent = self._kinds.get(kind)
            if recent is None:
                recent = self._kinds[kind] = _Recent()
            recent.add(run_time)


def _kinds(job: Job) -> list[tuple[str | int, ...]]:
    """What a job may be compared by, most telling first."""
    kinds: list[tuple[str | int, ...]] = []
    if job.name:
        kinds.append(("name", job.name))
    if job.user:
        kinds.append(("user", job.user, job.pool, job.width))
    kinds.append(("pool", job.pool, job.width))
    return kinds
