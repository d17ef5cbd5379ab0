"""Heuristics: list schedules from the LP, then simulated annealing.

A list schedule starts jobs in the order of a list, each as early as the jobs before it permit. The
LP gives the order. The annealing removes a waiting job and some jobs near it, and inserts them in a
different order. It accepts the result if the cost falls, or at random if it rises a little.
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
"""Duration of one annealing in seconds; the next one begins with the best schedule."""

WARM, COLD = 12.0, 0.1
"""First and last temperature, in slots of waiting of a median job. An increase of the cost by the
temperature is accepted with probability 1/e."""

TAKEN_OUT = (1, 2, 3, 4, 6, 10, 15)
"""Numbers of jobs removed together with the waiting job; one of them is drawn for each move."""

MOVES = 64
"""Number of moves between two checks of the clock."""

StopCheck = Callable[[], bool]


def from_parts(
    problem: Problem,
    parts: Sequence[Sequence[float]],
    seed: int,
    seconds: float,
    stop: StopCheck,
) -> list[int] | None:
    """Return the best list schedule by the LP, or None.

    Each list orders jobs by the slot in which the LP has started a random fraction of the job.
    """
    random, tasks = Random(seed), problem.tasks  # noqa: S311
    started = [np.cumsum(part) for part in parts]
    best, least = None, float("inf")
    until = perf_counter() + seconds
    while perf_counter() < until and not stop():
        common, mixed, blur = random.random(), random.random(), random.choice((0, 1, 3, 8))
        keys = []
        for task, sums in zip(tasks, started, strict=True):
            part = random.random() if random.random() < mixed else common
            slot = task.release + int(np.searchsorted(sums, min(part, sums[-1])))
            keys.append((slot + blur * random.random(), task.width * task.length))
        starts = listed(problem, sorted(range(len(tasks)), key=keys.__getitem__))
        if starts is not None and (cost := problem.cost(starts)) < least:
            best, least = starts, cost
    return best


class Search:
    """Simulated annealing of a schedule; `best` is the best so far. It ignores unfairness."""

    def __init__(self, problem: Problem, starts: Sequence[int], seed: int) -> None:
        """Begin with a schedule. The same seed and number of moves give the same result."""
        self.problem = problem
        self.best = [*starts]
        self.cost = problem.cost(starts)
        self._random = Random(seed)  # noqa: S311
        weights = sorted(task.weight for task in problem.tasks)
        self._unit = weights[len(weights) // 2]

    def run(self, seconds: float, stop: StopCheck = lambda: False) -> None:
        """Anneal repeatedly for this time."""
        until = perf_counter() + seconds
        while (left := until - perf_counter()) > 0 and not stop():
            self._anneal(min(ANNEALING, left), stop)

    def _anneal(self, seconds: float, stop: StopCheck) -> None:
        """Anneal once, from the best schedule."""
        tasks = self.problem.tasks
        self._starts, self._room = [*self.best], Room(self.problem)
        for task, start in zip(tasks, self._starts, strict=True):
            self._room.put(task, start)
        self._movable = [i for i, task in enumerate(tasks) if task.latest > task.release]
        cost, started, part = self.cost, perf_counter(), 0.0
        while part < 1.0 and not stop():
            waiting = [i for i in self._movable if self._starts[i] > tasks[i].release]
            if not waiting:
                return
            heat = self._unit * WARM * (COLD / WARM) ** part
            for _ in range(MOVES):
                cost += self._move(self._random.choice(waiting), heat)
                if cost < self.cost - 1e-9:
                    self.cost, self.best = cost, [*self._starts]
            part = (perf_counter() - started) / seconds

    def _move(self, place: int, heat: float) -> float:
        """Try one move around a waiting job; return the change of the cost."""
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
        """Return some jobs that run while this one waits or just after, then the job itself."""
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
        """Return the jobs `out` in the order in which they are inserted again.

        The method is chosen at random: shuffled; roughly by release; roughly by size (width times
        length); or job `place` first and the others shuffled.
        """
        tasks, random = self.problem.tasks, self._random
        method, order = random.random(), [*out]
        if method < 0.3:
            random.shuffle(order)
        elif method < 0.5:
            order.sort(key=lambda i: tasks[i].release + 5 * random.random())
        elif method < 0.8:
            order.sort(key=lambda i: tasks[i].width * tasks[i].length * random.uniform(0.5, 2.0))
        else:
            order.remove(place)
            random.shuffle(order)
            order.insert(0, place)
        return order
