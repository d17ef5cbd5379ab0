"""Where slots are short: how many are taken together, and the same jobs in coarser slots.

With slots of a minute the LP has five times the rows and columns that it has with slots of five,
and one dive into it takes all the time there is. So times are rounded to the nearest of fewer slots
(up on average as often as down, so that the queues stay as long as they are), that problem is
solved for a while, and the order in which its jobs start is a list for the real one. Nothing that
is proven of it holds of the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from oracle.problem import Problem, Task
from oracle.search import listed

FINE, FEW = 4000, 2500
"""Slots from which on a problem is solved with fewer first, and how many these are about: three
days of five minutes, and the time in which the last jobs end, are 2,300."""


def together(problem: Problem) -> int:
    """How many slots are taken together so that there are few: 1 where there are."""
    return 1 if problem.slots <= FINE else -(-problem.slots // FEW)


def coarser(problem: Problem) -> Problem | None:
    """The jobs in slots so many times as long that there are few; None where there are."""
    by = together(problem)
    if by == 1 or problem.taken is not None:
        return None
    return replace(problem, tasks=[_rounded(task, by) for task in problem.tasks])


def in_order(problem: Problem, starts: Sequence[int]) -> list[int] | None:
    """A schedule in which jobs start in the order of these, of finer or coarser slots, or None."""
    return listed(problem, sorted(range(len(starts)), key=starts.__getitem__))


def _rounded(task: Task, by: int) -> Task:
    """Submissions down and the latest starts up: who may hardly move shall still fit."""
    release, cutoff, latest = task.release // by, -(-task.cutoff // by), -(-task.latest // by)
    length = max(1, round(task.length / by))
    return task._replace(release=release, cutoff=cutoff, latest=latest, length=length)
