"""List scheduling: jobs start, in the order of a list, as early as they fit."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from oracle.arrays import Counts
from oracle.problem.problem import Problem, Task

REPAIRS, UP = 40, 4
"""Maximum number of repairs of a list, and number of places by which a late job first moves
forward. The distance doubles with each repair of the same job; moving the job to the front at once
would delay many others."""


class Room:
    """Free GPUs by slot."""

    def __init__(self, problem: Problem) -> None:
        """Start with all GPUs free."""
        self.free: Counts = problem.capacity().copy()

    def put(self, task: Task, start: int) -> None:
        """Allocate a job's GPUs from slot `start` on."""
        self.free[start : start + task.length] -= task.width

    def take(self, task: Task, start: int) -> None:
        """Release a job's GPUs from slot `start` on."""
        self.free[start : start + task.length] += task.width

    def earliest(self, task: Task) -> int | None:
        """Return the first feasible start of a task, or None. O(window of the task)."""
        release, length = task.release, task.length
        full = np.flatnonzero(self.free[release : task.latest + length] < task.width)
        if not len(full) or full[0] >= length:
            return release
        wide = np.flatnonzero(np.diff(full) > length)
        after = full[wide[0]] if len(wide) else full[-1]
        start = release + int(after) + 1
        return start if start <= task.latest else None


def listed(problem: Problem, order: Sequence[int]) -> list[int] | None:
    """Return the schedule of a list of task indices, or None.

    If a task would start after its latest slot, the list is repaired up to REPAIRS times.
    """
    tasks, order, up = problem.tasks, [*order], dict[int, int]()
    for _ in range(REPAIRS):
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
