"""Distributions of run times, also of jobs that have already run for a while.

Uses the life tables of `predictors.run_times.survival`, at ages close enough to interpolate between
them. A job that has run for an hour is compared with jobs that ran for at least an hour.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
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
)
from sia.limits import UNKNOWN_RUN_TIME
from sia.model import Job

FIRST = 15.0
"""The first age of the tables in seconds. Shorter run times do not matter for planning."""

STEP = 1.5
"""Ratio of successive ages. Interpolated run times are within a fifth of the exact ones."""

LAST = 60 * 86400.0
"""The last age in seconds. Beyond it, jobs behave like jobs of which nothing is known."""

HARDLY = 1e-9
"""Minimum chance of continuing, to keep the logarithm finite in tables where no job continued."""

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


class HazardCurve:
    """The negative logarithm of the chance to last beyond each age. It is ascending."""

    __slots__ = ("known", "risk")

    def __init__(self, hazards: Sequence[float], known: int) -> None:
        """Build the curve from the chances to last beyond each age, given that a job reached it."""
        self.known = known
        self.risk = [0.0]
        for hazard in hazards:
            self.risk.append(self.risk[-1] - log(max(hazard, HARDLY)))

    def quantile(self, chance: float, age: float = 0.0) -> float:
        """Return the quantile `chance` of the total run time of a job that has run for `age`.

        Times are in seconds; `chance` is at least 0 and below 1. Beyond the last age, lasting twice
        as long is half as likely, because without observations no time scale is preferred.
        """
        at = log(max(age, 1.0))
        risk = self._risk(at) - log(1.0 - chance)
        if risk >= self.risk[-1]:
            before = max(at, _LOGS[-1]) - self._beyond(at)
            seconds = exp(min(before + risk - self.risk[-1], log(UNKNOWN_RUN_TIME)))
        else:
            i = bisect_left(self.risk, risk)
            low, high = self.risk[i - 1] if i else 0.0, self.risk[i]
            part = (risk - low) / (high - low) if high > low else 0.0
            seconds = exp(_LOGS[i - 1] + part * (_LOGS[i] - _LOGS[i - 1])) if i else 1.0
        return max(seconds, age)

    def _beyond(self, at: float) -> float:
        """Return the excess of the logarithm of an age over that of the last age."""
        return max(0.0, at - _LOGS[-1])

    def _risk(self, at: float) -> float:
        """Return the risk up to an age that is given by its logarithm."""
        if at >= _LOGS[-1]:
            return self.risk[-1] + at - _LOGS[-1]
        i = bisect_left(_LOGS, at)
        if i == 0:
            return 0.0
        part = (at - _LOGS[i - 1]) / (_LOGS[i] - _LOGS[i - 1])
        return self.risk[i - 1] + part * (self.risk[i] - self.risk[i - 1])


class Evidence(NamedTuple):
    """Numbers of ended jobs."""

    similar: int
    """Of the same pool, user and name, and of similar width (up to a power of two)."""
    in_pool: int


class RunTimeDistributions(SurvivalRunTimes):
    """A run-time predictor that returns distributions and draws samples from them."""

    def __init__(self) -> None:
        """Start without history."""
        super().__init__(AGES, unseen=1.0 / STEP)  # lasting twice as long is half as likely
        self._curves: dict[_Group, HazardCurve] = {}
        self._lots: dict[str, str] = {}  # job alive: first job of its batch
        self._batches: dict[_Group, tuple[_Group, str]] = {}  # kind: newest batch and its first job

    def submitted(self, job: Job) -> None:
        """Record that a job has arrived. O(ages)."""
        self.run_time(job)

    def run_time(self, job: Job) -> float:
        """Record a job; the estimate of this class is always `UNKNOWN_RUN_TIME`."""
        estimate = super().run_time(job)
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
        """Return no estimate: `curve` says more, and a submission must cost little."""
        return UNKNOWN_RUN_TIME

    def expect(self, job: Job) -> None:
        """Add a job that may come, or whose submission was not reported, to its batch. O(ages)."""
        if job.id not in self._waiting and job.id not in self._running:
            self.run_time(job)

    def finished(self, now: float, job: Job, run_time: float) -> None:
        """Record that a job has ended, with its run time in seconds."""
        group: _Group | None = self._alike(job)
        while group is not None:
            group.ended += 1
            group = group.wider
        self._lots.pop(job.id, None)
        super().finished(now, job, run_time)

    def withdrawn(self, now: float, job: Job) -> None:
        """Record that a job was cancelled. The ages that it reached count."""
        self._lots.pop(job.id, None)
        super().withdrawn(now, job)

    def knows(self) -> bool:
        """Return whether enough jobs were seen for a prediction."""
        return self._all.reached[0] >= LEAST

    def observed(self) -> int:
        """Return how many jobs `knows` counts, at least; older ones count for less."""
        return int(self._all.reached[0])

    def evidence(self, job: Job) -> Evidence:
        """Return how many jobs have ended that a curve of this job rests on. O(1)."""
        found = [self._groups.get(kind) or self._older.get(kind) for kind in _kinds(job)]
        pool, similar = found[0], found[-1]
        return Evidence(similar.ended if similar else 0, pool.ended if pool else 0)

    def advance(self, now: float) -> None:
        """Count the jobs that have reached further ages by now."""
        self._cross(now)

    def curve(self, job: Job) -> HazardCurve:
        """Return the curve of a job, by its batch if it is alive. O(ages) after a change."""
        group = self._alike(job)
        curve = self._curves.get(group)
        if curve is None or curve.known != self._known:
            if len(self._curves) >= MOST_GROUPS:
                self._curves.clear()
            curve = self._curves[group] = HazardCurve(group.hazards(self._known), self._known)
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
        """Return one number between 0 and 1 from each `count`-th part, in pseudo-random order.

        The result depends only on the job, and is almost the same for jobs of a batch, whose run
        times are correlated. `count` must be prime.
        """
        lot = draw("lasting", self._lots.get(job.id, job.id))
        own = draw("lasts", job.id) % _BITS / _BITS
        stride, first = 1 + lot % (count - 1), lot // _BITS % count
        return [((first + i * stride) % count + own) / count for i in range(count)]
