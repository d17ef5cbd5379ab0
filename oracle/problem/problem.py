"""The scheduling problem: jobs of a sharing group on the slot grid, with start windows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from oracle.arrays import Counts
from oracle.errors import BrokenScheduleError, NoScheduleError
from replay.logs.trace import PoolTable, Trace
from sia.console.errors import UserError


class Task(NamedTuple):
    """A job in units of slots, counted from the problem's first slot.

    The job starts in [release, latest]. `position` is the job's index in the trace, `pool` the
    index of its pool in the problem. Each slot of waiting costs `weight`, plus `price` after
    `cutoff`.
    """

    position: int
    pool: int
    release: int
    cutoff: int
    latest: int
    length: int
    width: int
    weight: float = 1.0
    price: float = 0.0

    def cost(self, start: int) -> float:
        """Return the cost of a start in that slot."""
        return self.weight * (start - self.release) + self.price * max(0, start - self.cutoff)


@dataclass(frozen=True)
class Problem:
    """The tasks of one sharing group, which share the GPUs of its pools.

    With `beta` above 0, each slot also costs `beta` times the largest utilisation of a quota by the
    jobs of its pool (Fig. 19, rows 8 and 13).
    """

    tasks: Sequence[Task]
    quotas: Sequence[int]
    beta: float = 0.0
    taken: Counts | None = None
    """GPUs in use by fixed tasks that are not part of the problem, by slot."""

    @property
    def whole(self) -> bool:
        """Whether all costs are whole numbers."""
        return not self.beta and all(t.weight == 1.0 and t.price % 1.0 == 0 for t in self.tasks)

    @property
    def slots(self) -> int:
        """Number of slots until the last possible end."""
        return max((t.latest + t.length for t in self.tasks), default=0)

    @property
    def choices(self) -> int:
        """Number of possible starts of all tasks."""
        return sum(task.latest - task.release + 1 for task in self.tasks)

    def capacity(self) -> Counts:
        """Return the available GPUs by slot."""
        there = np.full(self.slots, sum(self.quotas), dtype=np.int64)
        return there if self.taken is None else there - self.taken[: self.slots]

    def contended(self) -> NDArray[np.bool_]:
        """Return, by slot, whether the tasks that could run exceed the capacity."""
        most = np.zeros(self.slots, dtype=np.int64)
        for task in self.tasks:
            most[task.release : task.latest + task.length] += task.width
        return most > self.capacity()

    def cost(self, starts: Sequence[int]) -> float:
        """Return the cost of a schedule: waiting, prices and, with `beta`, unfairness."""
        waiting = sum(task.cost(start) for task, start in zip(self.tasks, starts, strict=True))
        return waiting + (self.beta * self.unfairness(starts) if self.beta else 0.0)

    def waiting(self, starts: Sequence[int]) -> int:
        """Return the total waiting in slots."""
        return sum(s - task.release for task, s in zip(self.tasks, starts, strict=True))

    def unfairness(self, starts: Sequence[int]) -> float:
        """Return the sum over slots of the largest utilisation of a quota by its pool's jobs."""
        used = np.zeros((len(self.quotas), self.slots))
        for task, start in zip(self.tasks, starts, strict=True):
            used[task.pool, start : start + task.length] += task.width / self.quotas[task.pool]
        return float(used.max(axis=0).sum()) if used.size else 0.0

    def usage(self, starts: Sequence[int]) -> Counts:
        """Return the GPUs in use by slot."""
        used = np.zeros(self.slots, dtype=np.int64)
        for task, start in zip(self.tasks, starts, strict=True):
            used[start : start + task.length] += task.width
        return used

    def allows(self, starts: Sequence[int]) -> bool:
        """Return whether all starts are within the windows."""
        pairs = zip(self.tasks, starts, strict=True)
        return all(task.release <= start <= task.latest for task, start in pairs)

    def check(self, starts: Sequence[int]) -> None:
        """Raise BrokenScheduleError for a start outside its window or too many GPUs in use."""
        for task, start in zip(self.tasks, starts, strict=True):
            if not task.release <= start <= task.latest:
                raise BrokenScheduleError(
                    f"job {task.position} starts in slot {start}, outside of {task.release} to "
                    f"{task.latest}"
                )
        over = self.usage(starts) > self.capacity()
        if over.any():
            raise BrokenScheduleError(f"slot {over.argmax()} uses more GPUs than available")


class Goal(NamedTuple):
    """The objective to minimise, and the allowed slowdown.

    `weighted` divides each job's waiting by its baseline JCT, so that short jobs count as much as
    long ones; costs are then in slots of waiting of a job of mean JCT. A job may start after its
    cutoff by `slowdown_pct` percent of its baseline JCT, at a cost of `price` per slot.
    """

    beta: float = 0.0
    weighted: bool = False
    slowdown_pct: float = 0.0
    price: float = 1.0

    def late(self, jct: int) -> int:
        """Return the slots by which a job with that baseline JCT (slots) may be late.

        Exact arithmetic is needed: in floats, 29 % of 100 is 28.999999999999996.
        """
        return int(Fraction(str(self.slowdown_pct)) * jct / 100)


def problems(
    trace: Trace,
    table: PoolTable,
    alone: Sequence[float],
    cutoffs: Sequence[float],
    slot: float,
    goal: Goal,
) -> list[tuple[float, Problem]]:
    """Return a problem for each sharing group with jobs, and the time (s) of its first slot.

    `trace` is on the slot grid. `alone` are the baseline's starts and `cutoffs` the latest starts
    without slowdown, in seconds by position. Raises UserError if a quota changes, NoScheduleError
    if a cutoff is before the submission of its job.
    """
    if table.changes:
        name = table.changes[0].pool
        raise UserError(
            f"pool {name}: its quota changes, but the oracle supports only constant quotas; "
            "cut a piece with constant quotas with sia trace slice"
        )
    groups: dict[str, list[str]] = {}
    for pool in sorted(table.pools, key=lambda pool: pool.name):
        groups.setdefault(pool.group if pool.share else f"{pool.name} alone", []).append(pool.name)
    found = []
    for names in groups.values():
        members = [i for i, a in enumerate(trace.arrivals) if a.job.pool in set(names)]
        if members:
            found.append(_problem(trace, table, alone, cutoffs, slot, goal, names, members))
    return found


def _problem(
    trace: Trace,
    table: PoolTable,
    alone: Sequence[float],
    cutoffs: Sequence[float],
    slot: float,
    goal: Goal,
    names: Sequence[str],
    members: Sequence[int],
) -> tuple[float, Problem]:
    quota = {pool.name: pool.quota for pool in table.pools}
    origin = trace.arrivals[members[0]].job.submit
    tasks = []
    for i in members:
        job, duration = trace.arrivals[i]
        release, cutoff = _slots(job.submit - origin, slot), _slots(cutoffs[i] - origin, slot)
        if cutoff < release:
            raise NoScheduleError(
                f"job {job.id}: its cutoff, {cutoffs[i]:g} s, is before its submission"
            )
        length = _slots(duration, slot)
        jct = _slots(alone[i] - origin, slot) + length - release
        weight = 1.0 / jct if goal.weighted else 1.0
        tasks.append(
            Task(i, names.index(job.pool), release, cutoff, cutoff + goal.late(jct), length,
                 job.width, weight, goal.price * weight if goal.slowdown_pct else 0.0)
        )  # fmt: skip
    if goal.weighted:
        mean = sum(1.0 / task.weight for task in tasks) / len(tasks)
        tasks = [t._replace(weight=t.weight * mean, price=t.price * mean) for t in tasks]
    return origin, Problem(tasks, [quota[name] for name in names], goal.beta)


def _slots(seconds: float, slot: float) -> int:
    return round(seconds / slot)


def plain(problem: Problem) -> Problem:
    """Return the problem with waiting as its only objective."""
    tasks = [task._replace(weight=1.0, price=0.0) for task in problem.tasks]
    return replace(problem, tasks=tasks, beta=0.0)
