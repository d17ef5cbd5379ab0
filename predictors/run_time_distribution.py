"""How long jobs last in all, as whole distributions, of those that have lasted for a while too.

The life tables of `predictors.survival`, on ages so close together that what lies between two is
read off in proportion. A job that has run for an hour lasts as those do that got as far.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from math import exp, log

from predictors.random_forecast import draw
from predictors.run_times.survival import LEAST, MOST_GROUPS, SurvivalRunTimes, _Group, _kinds
from sia.limits import UNKNOWN_RUN_TIME
from sia.model import Job

FIRST = 15.0
"""Seconds: the first age of the tables. Nobody plans by less."""

STEP = 1.5
"""Each age is so many times the one before: a run time read off between two is off by a fifth."""

LAST = 60 * 86400.0
"""Seconds: beyond this age jobs are taken to last as those that nothing is known of."""

HARDLY = 1e-9
"""The least chance of going on: of a table in which nobody did, the logarithm is still a number."""

_BITS = 2**20
"""Numbers drawn by lot are cut into parts of so many values."""


def ages() -> tuple[float, ...]:
    """The ages of the tables, in seconds, ascending."""
    found = [FIRST]
    while found[-1] < LAST:
        found.append(found[-1] * STEP)
    return tuple(found)


AGES = ages()

_LOGS = [0.0, *map(log, AGES)]  # of 1 second, and of the ages


class HazardCurve:
    """The chance of lasting beyond each age, as its logarithm, negated: it only grows."""

    __slots__ = ("known", "risk")

    def __init__(self, hazards: Sequence[float], known: int) -> None:
        """Of the chances to last beyond each age of those who got as far."""
        self.known = known
        self.risk = [0.0]
        for hazard in hazards:
            self.risk.append(self.risk[-1] - log(max(hazard, HARDLY)))

    def quantile(self, chance: float, age: float = 0.0) -> float:
        """Seconds that a job lasts in all, which has lasted for `age`, with that chance at most.

        Chances are at least 0 and below 1. Beyond the last age, each time as long again is half
        as likely: of what nobody has seen, nobody knows the scale.
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
        """What the risk of an age beyond the last one counts too much."""
        return max(0.0, at - _LOGS[-1])

    def _risk(self, at: float) -> float:
        """The risk until an age, given by its logarithm."""
        if at >= _LOGS[-1]:
            return self.risk[-1] + at - _LOGS[-1]
        i = bisect_left(_LOGS, at)
        if i == 0:
            return 0.0
        part = (at - _LOGS[i - 1]) / (_LOGS[i] - _LOGS[i - 1])
        return self.risk[i - 1] + part * (self.risk[i] - self.risk[i - 1])


class RunTimeDistributions(SurvivalRunTimes):
    """Hears of jobs as any predictor of run times; is asked for distributions and drawn from."""

    def __init__(self) -> None:
        """Start with no history."""
        super().__init__(AGES, unseen=1.0 / STEP)  # each time as long again is half as likely
        self._curves: dict[_Group, HazardCurve] = {}
        self._lots: dict[str, str] = {}  # of jobs alive: the first job of the batch
        self._batches: dict[_Group, tuple[_Group, str]] = {}  # of a kind: the newest, its first job

    def submitted(self, job: Job) -> None:
        """Learn that a job arrived. O(ages)."""
        self.run_time(job)

    def run_time(self, job: Job) -> float:
        """As `SurvivalRunTimes` says it, of which nothing is used here."""
        said = super().run_time(job)
        batch = self._waiting[job.id][0]
        kind = batch.wider
        assert kind is not None, "a batch is of a kind"
        known = self._batches.get(kind)
        if known is None or known[0] is not batch:
            if len(self._batches) >= 2 * MOST_GROUPS:
                self._batches.clear()  # those of the batches that go on are drawn by themselves
            known = self._batches[kind] = batch, job.id
        self._lots[job.id] = known[1]
        return said

    def expect(self, job: Job) -> None:
        """A job that may come, or has come unheard, lasts as those of its batch. O(ages)."""
        if job.id not in self._waiting and job.id not in self._running:
            self.run_time(job)

    def finished(self, now: float, job: Job, run_time: float) -> None:
        """Learn how long it lasted."""
        self._lots.pop(job.id, None)
        super().finished(now, job, run_time)

    def withdrawn(self, now: float, job: Job) -> None:
        """Learn that it is gone; what it has outlasted counts."""
        self._lots.pop(job.id, None)
        super().withdrawn(now, job)

    def knows(self) -> bool:
        """Whether enough jobs were seen for anything to be said."""
        return self._all.reached[0] >= LEAST

    def advance(self, now: float) -> None:
        """Count those who have come to an age until now."""
        self._cross(now)

    def curve(self, job: Job) -> HazardCurve:
        """How long such a job lasts: by its batch, if it is alive. O(ages) if anything changed."""
        group = self._alike(job)
        curve = self._curves.get(group)
        if curve is None or curve.known != self._known:
            if len(self._curves) >= MOST_GROUPS:
                self._curves.clear()
            curve = self._curves[group] = HazardCurve(group.hazards(self._known), self._known)
        return curve

    def _alike(self, job: Job) -> _Group:
        if job.id in self._waiting:
            return self._waiting[job.id][0]
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
        """So many numbers between 0 and 1, one of each `count`-th part, in an order drawn by lot.

        Always the same for the same job, and nearly the same for those of its batch, which last
        alike. `count` is a prime number.
        """
        lot = draw("lasting", self._lots.get(job.id, job.id))
        own = draw("lasts", job.id) % _BITS / _BITS
        stride, first = 1 + lot % (count - 1), lot // _BITS % count
        return [((first + i * stride) % count + own) / count for i in range(count)]
