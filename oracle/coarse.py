"""Where slots are short: how many are taken together, and the same jobs in coarser slots.

With slots of a minute the LP has five times the rows and columns that it has with slots of five,
and one dive into it takes all the time there is. So the jobs are put in fewer slots: submissions
rounded down, the latest starts up, lengths so that the jobs of each width take as long together as
they do, and the queues stay as long as they are. That problem is solved for a while, and the order
in which its jobs start is a list for the real one. Nothing that is proven of it holds of the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from oracle.problem import Problem, Task
from oracle.search import listed

FINE, FEW = 4000, 2500
"""Slots from which on a problem is solved with fewer first, and how many these are about: three
days of five minutes, and the time in which the last jobs end, are 2,300, of which a dive takes 90 s
of 300. With less than twice as many, coarser slots would save little and blur all."""


def together(problem: Problem) -> int:
    """How many slots are taken together so that there are few: 1 where there are."""
    return 1 if problem.slots <= FINE else -(-problem.slots // FEW)


def coarser(problem: Problem) -> Problem | None:
    """The jobs in slots so many times as long that there are few; None where there are."""
    by = together(problem)
    if by == 1 or problem.taken is not None:
        return None
    over, tasks = dict.fromkeys((task.width for task in problem.tasks), 0.0), list[Task]()
    for task in problem.tasks:
        # what rounding took from one job the next has: one of some short ones is a slot long
        exact = task.length / by + over[task.width]
        tasks.append(_rounded(task, by, max(0, round(exact))))
        over[task.width] = exact - tasks[-1].length
    return replace(problem, tasks=tasks)


def in_order(problem: Problem, starts: Sequence[int]) -> list[int] | None:
    """A schedule in which jobs start in the order of these, of finer or coarser slots, or None."""
    return listed(problem, sorted(range(len(starts)), key=starts.__getitem__))


def _rounded(task: Task, by: int, length: int) -> Task:
    """Submissions down and the latest starts up: who may hardly move shall still fit."""
    release, cutoff, latest = task.release // by, -(-task.cutoff // by), -(-task.latest // by)
    return task._replace(release=release, cutoff=cutoff, latest=latest, length=length)
