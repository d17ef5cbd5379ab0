"""Good schedules soon: lists from the LP, then a local search.

A schedule is a list: each job in turn starts as early as those before it in the list leave room.
The LP says in which order. Then jobs near one that waits are taken out and put back in another
order, and what comes of it is kept if it is better, or by chance if it is little worse (annealing).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import exp
from random import Random
from time import perf_counter

import numpy as np

from oracle.problem.listing import Room, listed
from oracle.problem.problem import Problem

ANNEALING = 8.0
"""Seconds of one annealing, from warm to cold; then it begins again from the best."""

WARM, COLD = 12.0, 0.1
"""Temperatures, in the cost of slots that a median job waits: a change that costs so much more is
made every third time."""

TAKEN_OUT = (1, 2, 3, 4, 6, 10, 15)
"""Jobs taken out at once, besides the one that waits."""

LOOKS = 64
"""Tries between two looks at the clock."""

StopCheck = Callable[[], bool]


def from_parts(
    problem: Problem,
    parts: Sequence[Sequence[float]],
    seed: int,
    seconds: float,
    stop: StopCheck,
) -> list[int] | None:
    """The best of many lists by when the LP has started a part of each job, the part drawn."""
    random, tasks = Random(seed), problem.tasks  # noqa: S311
    begun = [np.cumsum(part) for part in parts]
    best, least = None, float("inf")
    until = perf_counter() + seconds
    while perf_counter() < until and not stop():
        common, mixed, blur = random.random(), random.random(), random.choice((0, 1, 3, 8))
        keys = []
        for task, sums in zip(tasks, begun, strict=True):
            part = random.random() if random.random() < mixed else common
            slot = task.release + int(np.searchsorted(sums, min(part, sums[-1])))
            keys.append((slot + blur * random.random(), task.width * task.length))
        starts = listed(problem, sorted(range(len(tasks)), key=keys.__getitem__))
        if starts is not None and (cost := problem.cost(starts)) < least:
            best, least = starts, cost
    return best


class Search:
    """A schedule that gets better; `best` is the best so far. Fairness is not looked at."""

    def __init__(self, problem: Problem, starts: Sequence[int], seed: int) -> None:
        """Begin with a schedule. The same seed and number of tries find the same."""
        self.problem = problem
        self.best = [*starts]
        self.cost = problem.cost(starts)
        self._random = Random(seed)  # noqa: S311
        weights = sorted(task.weight for task in problem.tasks)
        self._unit = weights[len(weights) // 2]

    def run(self, seconds: float, stop: StopCheck = lambda: False) -> None:
        """Search for so long, in rounds."""
        until = perf_counter() + seconds
        while (left := until - perf_counter()) > 0 and not stop():
            self._anneal(min(ANNEALING, left), stop)

    def _anneal(self, seconds: float, stop: StopCheck) -> None:
        """One round, from the best schedule."""
        tasks = self.problem.tasks
        self._starts, self._room = [*self.best], Room(self.problem)
        for task, start in zip(tasks, self._starts, strict=True):
            self._room.put(task, start)
        self._movable = [i for i, task in enumerate(tasks) if task.latest > task.release]
        cost, begun, part = self.cost, perf_counter(), 0.0
        while part < 1.0 and not stop():
            waiting = [i for i in self._movable if self._starts[i] > tasks[i].release]
            if not waiting:
                return
            heat = self._unit * WARM * (COLD / WARM) ** part
            for _ in range(LOOKS):
                cost += self._try(self._random.choice(waiting), heat)
                if cost < self.cost - 1e-9:
                    self.cost, self.best = cost, [*self._starts]
            part = (perf_counter() - begun) / seconds

    def _try(self, place: int, heat: float) -> float:
        """Take a job and some near it out, put them back; what that changed."""
        tasks, starts, room = self.problem.tasks, self._starts, self._room
        out = self._near(place)
        before = [starts[i] for i in out]
        for i in out:
            room.take(tasks[i], starts[i])
        change, put = 0.0, []
        for i in self._ordered(out, place):
            start = room.earliest(tasks[i])
            if start is None:
                change = float("inf")
                break
            room.put(tasks[i], start)
            put.append((i, start))
            change += tasks[i].cost(start) - tasks[i].cost(starts[i])
        if change <= 0 or self._random.random() < exp(-min(change / heat, 700.0)):
            for i, start in put:
                starts[i] = start
            return change
        for i, start in put:
            room.take(tasks[i], start)
        for i, start in zip(out, before, strict=True):
            room.put(tasks[i], start)
        return 0.0

    def _near(self, place: int) -> list[int]:
        """Some jobs that run while this one waits, or just after; it is the last of them."""
        tasks, starts = self.problem.tasks, self._starts
        low, high = tasks[place].release, starts[place] + 1
        near = [
            i
            for i in self._movable
            if starts[i] < high and starts[i] + tasks[i].length > low and i != place
        ]
        count = min(self._random.choice(TAKEN_OUT), len(near))
        return [*self._random.sample(near, count), place]

    def _ordered(self, out: Sequence[int], place: int) -> list[int]:
        """An order to put them back in: by chance, by release, the smallest or this one first."""
        tasks, random = self.problem.tasks, self._random
        way, order = random.random(), [*out]
        if way < 0.3:
            random.shuffle(order)
        elif way < 0.5:
            order.sort(key=lambda i: tasks[i].release + 5 * random.random())
        elif way < 0.8:
            order.sort(key=lambda i: tasks[i].width * tasks[i].length * random.uniform(0.5, 2.0))
        else:
            order.remove(place)
            random.shuffle(order)
            order.insert(0, place)
        return order
