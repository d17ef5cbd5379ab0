"""Coarsening: the same jobs on a grid of longer slots, for problems with many slots.

With slots of one minute, the LP has five times the rows and columns that it has with slots of five
minutes, and one dive takes the whole time limit. The coarse problem rounds submissions down, latest
starts up, and lengths to the nearest slot, provided that the total load stays about the same. The
solver works on the coarse problem for part of the time. The order in which its jobs start is then
the list for the original problem. Bounds of the coarse problem do not hold for the original one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from oracle.problem.listing import listed
from oracle.problem.problem import Problem, Task

FINE, FEW = 4000, 2500
"""Number of slots above which a problem is coarsened, and the approximate number afterwards. Three
days of five-minute slots, plus the time until the last end, are 2,300 slots; a dive then takes 90 s
of 300 s. Below 4,000 slots coarsening saves little time and loses precision."""


BLUR = 0.05
"""Maximum relative change of the load by rounding. If many jobs are shorter than a coarse slot, the
coarse problem is not representative. (Rounding that preserves the load loses the order of lengths:
for preset base with one-minute slots it gave 16,322 slots of waiting, against 13,950.)"""


def together(problem: Problem) -> int:
    """Return the number of slots that form a coarse slot; 1 if the problem has few slots."""
    return 1 if problem.slots <= FINE else -(-problem.slots // FEW)


def coarser(problem: Problem) -> Problem | None:
    """Return the coarse problem.

    Return None if the problem has few slots, if rounding changes the load by more than BLUR, or if
    fixed tasks take GPUs.
    """
    by = together(problem)
    if by == 1 or problem.taken is not None:
        return None
    tasks = [_rounded(task, by) for task in problem.tasks]
    if abs(_load(tasks) * by / _load(problem.tasks) - 1.0) > BLUR:
        return None
    return replace(problem, tasks=tasks)


def in_order(problem: Problem, starts: Sequence[int] | None) -> list[int] | None:
    """Return a schedule in which jobs start in the order of `starts` (of any grid), or None."""
    if starts is None:
        return None
    return listed(problem, sorted(range(len(starts)), key=starts.__getitem__))


def _load(tasks: Sequence[Task]) -> float:
    """Return the sum of GPUs times slots, at least 1."""
    return max(1.0, sum(task.width * task.length for task in tasks))


def _rounded(task: Task, by: int) -> Task:
    """Round submissions down and latest starts up, so that jobs with short windows still fit."""
    release, cutoff, latest = task.release // by, -(-task.cutoff // by), -(-task.latest // by)
    length = max(1, round(task.length / by))
    return task._replace(release=release, cutoff=cutoff, latest=latest, length=length)
