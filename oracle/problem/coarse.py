"""Where slots are short: how many are taken together, and the same jobs in coarser slots.

With slots of a minute the LP has five times the rows and columns that it has with slots of five,
and one dive into it takes all the time there is. So the jobs are put in fewer slots: submissions
rounded down, the latest starts up, lengths to the nearest, where that leaves the queues about as
long as they are. That problem is solved for a while, and the order in which its jobs start is a
list for the real one. Nothing that is proven of it holds of the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from oracle.problem.listing import listed
from oracle.problem.problem import Problem, Task

FINE, FEW = 4000, 2500
"""Slots from which on a problem is solved with fewer first, and how many these are about: three
days of five minutes, and the time in which the last jobs end, are 2,300, of which a dive takes 90 s
of 300. With less than twice as many, coarser slots would save little and blur all."""


BLUR = 0.05
"""The part by which rounded jobs may need more GPUs or fewer: where many are shorter than a coarser
slot, that says little of them. (Lengths that make up for each other's rounding keep the load, but
blur who is shorter than whom: of preset base in slots of a minute their order was worth 16,322
slots, that of lengths rounded to the nearest 13,950.)"""


def together(problem: Problem) -> int:
    """How many slots are taken together so that there are few: 1 where there are."""
    return 1 if problem.slots <= FINE else -(-problem.slots // FEW)


def coarser(problem: Problem) -> Problem | None:
    """The jobs in slots so many times as long that there are few; None where there are.

    Or where that would be other jobs, or GPUs are taken by some that are not among these.
    """
    by = together(problem)
    if by == 1 or problem.taken is not None:
        return None
    tasks = [_rounded(task, by) for task in problem.tasks]
    if abs(_load(tasks) * by / _load(problem.tasks) - 1.0) > BLUR:
        return None
    return replace(problem, tasks=tasks)


def in_order(problem: Problem, starts: Sequence[int] | None) -> list[int] | None:
    """A schedule in which jobs start in the order of these, of finer or coarser slots, or None."""
    if starts is None:
        return None
    return listed(problem, sorted(range(len(starts)), key=starts.__getitem__))


def _load(tasks: Sequence[Task]) -> float:
    """GPUs times slots; of no job at all as little as of one that is soon over."""
    return max(1.0, sum(task.width * task.length for task in tasks))


def _rounded(task: Task, by: int) -> Task:
    """Submissions down and the latest starts up: who may hardly move shall still fit."""
    release, cutoff, latest = task.release // by, -(-task.cutoff // by), -(-task.latest // by)
    length = max(1, round(task.length / by))
    return task._replace(release=release, cutoff=cutoff, latest=latest, length=length)
