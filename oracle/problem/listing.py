"""A schedule from a list of jobs: each starts as early as it fits, in the order of the list."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from oracle.arrays import Counts
from oracle.problem.problem import Problem, Task

MENDS, UP = 40, 4
"""Lists in which a job came too late are mended so often, by moving it up by some places, then by
twice as many, and so on: at their front at once it would be in the way of many."""


class Room:
    """GPUs in use by slot, and where a job fits."""

    def __init__(self, problem: Problem) -> None:
        """Begin with nothing in use."""
        self.free: Counts = problem.capacity().copy()

    def put(self, task: Task, start: int) -> None:
        """Have a job run from a slot on."""
        self.free[start : start + task.length] -= task.width

    def take(self, task: Task, start: int) -> None:
        """Have it not run there."""
        self.free[start : start + task.length] += task.width

    def earliest(self, task: Task) -> int | None:
        """The first slot in which it can start, if it is not too late; O(its window)."""
        release, length = task.release, task.length
        full = np.flatnonzero(self.free[release : task.latest + length] < task.width)
        if not len(full) or full[0] >= length:
            return release
        wide = np.flatnonzero(np.diff(full) > length)
        after = full[wide[0]] if len(wide) else full[-1]
        start = release + int(after) + 1
        return start if start <= task.latest else None


def listed(problem: Problem, order: Sequence[int]) -> list[int] | None:
    """The schedule of a list of places, mended where a job comes too late; None if that fails."""
    tasks, order, up = problem.tasks, [*order], dict[int, int]()
    for _ in range(MENDS):
        room, starts = Room(problem), [0] * len(tasks)
        for at, place in enumerate(order):
            start = room.earliest(tasks[place])
            if start is None:
                up[place] = 2 * up.get(place, UP // 2)
                order.insert(max(0, at - up[place]), order.pop(at))
                break
            room.put(tasks[place], start)
            starts[place] = start
        else:
            return starts
    return None
