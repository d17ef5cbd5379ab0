"""Apply a plan from the slot grid to the submissions and durations of the log."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate
from math import inf

from oracle.problem.problem import Problem
from replay.logs.trace import Trace


def brought_forward(
    log: Trace, found: Sequence[tuple[float, Problem]], planned: Sequence[float]
) -> list[float]:
    """Return the starts (seconds, by position) of a plan's jobs, moved as early as possible.

    The grid rounds submissions and run times up to whole slots, so the planned starts are feasible
    but later than necessary. In the order of the planned starts, each job gets the earliest start
    that is not before its submission and delays no other job. O(n · m) for n jobs and m starts or
    ends of jobs while a job waits.
    """
    starts = [*planned]
    for _, problem in found:
        order = sorted((starts[task.position], task.position) for task in problem.tasks)
        usage = _Usage(sum(problem.quotas))
        for start, place in order:
            job, duration = log.arrivals[place]
            usage.plan(start, start + duration, job.width)
        usage.settle()
        for before, place in order:
            job, duration = log.arrivals[place]
            start = usage.earliest(job.submit, before, duration, job.width)
            usage.add(start, min(before, start + duration), job.width)
            usage.add(max(before, start + duration), before + duration, -job.width)
            starts[place] = start
    return starts


class _Usage:
    """GPUs in use over time, as a step function."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._changes: Counter[float] = Counter({-inf: 0, inf: 0})
        self._times: list[float] = []
        self._levels: list[int] = []

    def plan(self, begin: float, end: float, gpus: int) -> None:
        """Add `gpus` from `begin` until `end`; call before `settle`."""
        self._changes[begin] += gpus
        self._changes[end] -= gpus

    def settle(self) -> None:
        """Build the step function from the planned changes."""
        self._times = sorted(self._changes)
        self._levels = [*accumulate(self._changes[time] for time in self._times)]

    def add(self, begin: float, end: float, gpus: int) -> None:
        """Add `gpus` (may be negative) from `begin` until `end`; do nothing if `end` <= `begin`."""
        if begin < end:
            for i in range(self._cut(begin), self._cut(end)):
                self._levels[i] += gpus

    def _cut(self, time: float) -> int:
        """Return the index of the step that begins at `time`, splitting a step if needed."""
        i = bisect_left(self._times, time)
        if self._times[i] != time:
            self._times.insert(i, time)
            self._levels.insert(i, self._levels[i - 1])
        return i

    def earliest(self, begin: float, latest: float, seconds: float, gpus: int) -> float:
        """Return the first time from `begin` on with `gpus` free for `seconds` or until `latest`.

        A step must begin at `latest`.
        """
        start, i = begin, bisect_right(self._times, begin) - 1
        while self._times[i] < min(start + seconds, latest):
            if self._levels[i] + gpus > self._capacity:
                start = self._times[i + 1]
            i += 1
        return start
