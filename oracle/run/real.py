"""A plan made on the grid, followed with submissions and durations as they are in the log."""

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
    """Starts (seconds, by position) of a plan's jobs, each as early as the others leave room.

    In the log jobs come sooner and run shorter than on the grid, so that planned starts can be
    kept; but that they were rounded up is no decision of the plan. So each job, in the order of the
    plan, is brought forward, to its submission at best, where that puts no other job back: none
    starts later than planned. O(n · m), where m jobs begin or end while a job waits.
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
    """GPUs in use over time, as steps: first all is planned, then some of it changes."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._changes: Counter[float] = Counter({-inf: 0, inf: 0})
        self._times: list[float] = []
        self._levels: list[int] = []

    def plan(self, begin: float, end: float, gpus: int) -> None:
        """So many from `begin` until `end`."""
        self._changes[begin] += gpus
        self._changes[end] -= gpus

    def settle(self) -> None:
        """What is planned becomes steps."""
        self._times = sorted(self._changes)
        self._levels = [*accumulate(self._changes[time] for time in self._times)]

    def add(self, begin: float, end: float, gpus: int) -> None:
        """So many more from `begin` until `end`, or fewer; nothing if that is no later."""
        if begin < end:
            for i in range(self._cut(begin), self._cut(end)):
                self._levels[i] += gpus

    def _cut(self, time: float) -> int:
        """The place of the step that begins then."""
        i = bisect_left(self._times, time)
        if self._times[i] != time:
            self._times.insert(i, time)
            self._levels.insert(i, self._levels[i - 1])
        return i

    def earliest(self, begin: float, latest: float, seconds: float, gpus: int) -> float:
        """The first time from `begin` on at which so many are free for so long, or until `latest`.

        A step begins at `latest`.
        """
        start, i = begin, bisect_right(self._times, begin) - 1
        while self._times[i] < min(start + seconds, latest):
            if self._levels[i] + gpus > self._capacity:
                start = self._times[i + 1]
            i += 1
        return start
