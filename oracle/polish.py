"""A schedule made better by programs: some jobs start anew, near where they did or the LP says.

The local search takes out a dozen jobs and puts them back by rules; a program of a hundred that are
submitted one after the other, each with a few starts to choose from, is solved in seconds and finds
what no dozen can do. The others stay where they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from time import perf_counter

from oracle.forms import Cell, Form, Model
from oracle.problem import Problem, Task
from oracle.solver import solve

JOBS = 100
"""Jobs that start anew, at first: more where that is solved at once, fewer where it is not."""

NEAR = (3, 8, 25)
"""Slots by which a job may start before and after where it did or the LP has a part of it; one is
drawn for each program. Many jobs that move little find one thing, few that move far another."""

GROWTH, FEWEST = 1.1, 10.0
"""Factor by which the number of jobs changes, and the least it may be."""

PART = 1e-3
"""The part of a job in a cell that counts: interior points leave a trace everywhere."""

SECONDS = 5.0
"""For one program; one that is solved in a fifth of that was too small."""


class Polish:
    """Programs of jobs drawn; their number fits itself to what is solved in the time."""

    def __init__(self, problem: Problem, form: Form, seed: int) -> None:
        """Nothing is solved yet."""
        self._problem, self._form, self._random = problem, form, Random(seed)  # noqa: S311
        self._jobs = dict.fromkeys(NEAR, float(JOBS))
        tasks = problem.tasks
        self._order = sorted(range(len(tasks)), key=lambda place: tasks[place].release)

    def better(
        self, starts: Sequence[int], hints: Sequence[Sequence[int]], seconds: float
    ) -> list[int]:
        """The schedule after one program; `hints` are more starts for each task, if there are."""
        near = self._random.choice(NEAR)
        places = self._drawn(int(self._jobs[near]))
        model = self._model(places, starts, hints, near)
        begun, first = perf_counter(), model.encode([starts[place] for place in places])
        found = solve(model.milp, seconds=min(SECONDS, seconds), start=first)
        self._fit(near, (perf_counter() - begun) / SECONDS)
        better = [*starts]
        if found.values is not None:
            for place, start in zip(places, model.decode(found.values), strict=True):
                better[place] = start
        return better

    def _drawn(self, jobs: int) -> list[int]:
        """Jobs that are submitted one after the other; the first and last as often as others."""
        jobs = min(len(self._order), jobs)
        middle = self._random.randrange(len(self._order))
        first = max(0, min(middle - jobs // 2, len(self._order) - jobs))
        return sorted(self._order[first : first + jobs])

    def _fit(self, near: int, spent: float) -> None:
        """More jobs or fewer next time, by the part of the time that was spent."""
        jobs = self._jobs[near] * (GROWTH if spent < 0.2 else 1 / GROWTH if spent > 0.8 else 1.0)
        self._jobs[near] = max(FEWEST, min(jobs, float(len(self._order))))

    def _model(
        self,
        places: Sequence[int],
        starts: Sequence[int],
        hints: Sequence[Sequence[int]],
        near: int,
    ) -> Model:
        """The program of these jobs, with the others where they are."""
        problem = self._problem
        tasks = [problem.tasks[place] for place in places]
        taken = sum(problem.quotas) - problem.capacity() + problem.usage(starts)
        for place, task in zip(places, tasks, strict=True):
            taken[starts[place] : starts[place] + task.length] -= task.width
        cells = [
            _cells(task, (starts[place], *(hints[place] if hints else ())), near)
            for place, task in zip(places, tasks, strict=True)
        ]
        return Model(Problem(tasks, problem.quotas, 0.0, taken), self._form, cells)


def hinted(cells: Sequence[Sequence[Cell]], parts: Sequence[Sequence[float]]) -> list[list[int]]:
    """Where the LP has a part of each task start."""
    return [
        [cell.first for cell, part in zip(of, own, strict=True) if part > PART]
        for of, own in zip(cells, parts, strict=True)
    ]


def _cells(task: Task, hints: Sequence[int], near: int) -> list[Cell]:
    """A cell for each slot near a hint, and for the job's submission."""
    slots = {task.release}
    for hint in hints:
        slots.update(range(max(task.release, hint - near), min(task.latest, hint + near) + 1))
    return [Cell(slot, slot) for slot in sorted(slots)]
