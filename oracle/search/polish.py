"""Large-neighbourhood search: improve a schedule by small integer programs.

Each program reschedules about a hundred jobs with consecutive submissions, each with a few
candidate starts near its current start or its starts in the LP; all other jobs are fixed. Such a
program is solved in seconds, and finds improvements that the local search with a dozen jobs cannot
find.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from random import Random
from time import perf_counter
from typing import NamedTuple

from oracle.problem.coarse import in_order, together
from oracle.problem.forms import Form, ProgramModel, SlotRange
from oracle.problem.problem import Problem, Task
from sia.contract.solvers import solve

JOBS = 100
"""Initial number of jobs in a program; it adapts to the solving time."""

NEAR = (3, 8, 25)
"""Numbers of slots on each side of a hint that are candidate starts; one number is drawn for each
program. Small and large ones find different improvements. With many slots, half of the programs
space their candidates by the length of a coarse slot. Half of all programs ignore the LP: these
have fewer candidates per job, and therefore more jobs."""

GROWTH, FEWEST = 1.1, 10.0
"""Factor by which the number of jobs changes, and its minimum value."""

PART = 1e-3
"""A start of a job counts if the relaxed solution gives it more than this fraction of the job.
Solutions of the interior-point method have tiny positive fractions everywhere."""

SECONDS = 5.0
"""Time limit of one program in seconds. A program that takes less than a fifth of it was too
small."""


class PolishMethod(NamedTuple):
    """Candidate starts on each side of a hint, their spacing (slots), and whether to use the LP."""

    near: int
    step: int
    hinted: bool


class Polish:
    """Build and solve programs of random jobs; the number of jobs adapts to the solving time."""

    def __init__(self, problem: Problem, form: Form, seed: int) -> None:
        """Prepare the programs of a problem."""
        self._problem, self._form, self._random = problem, form, Random(seed)  # noqa: S311
        steps, hinted = sorted({1, together(problem)}), (False, True)
        self._methods = [PolishMethod(*method) for method in product(NEAR, steps, hinted)]
        self._jobs = dict.fromkeys(self._methods, float(JOBS))
        tasks = problem.tasks
        self._order = sorted(range(len(tasks)), key=lambda place: tasks[place].release)

    def better(
        self, starts: Sequence[int], hints: Sequence[Sequence[int]], seconds: float
    ) -> list[int]:
        """Solve one program and return the new schedule.

        `hints` are further starts of each task, from the LP; it may be empty.
        """
        method = self._random.choice(self._methods)
        places = self._drawn(int(self._jobs[method]))
        model = self._model(places, starts, hints, method)
        began, first = perf_counter(), model.encode([starts[place] for place in places])
        found = solve(model.program, seconds=min(SECONDS, seconds), start=first)
        self._fit(method, (perf_counter() - began) / SECONDS)
        better = [*starts]
        if found.values is not None:
            for place, start in zip(places, model.decode(found.values), strict=True):
                better[place] = start
        # Moves by several slots can leave gaps; list scheduling in the same order closes them.
        return in_order(self._problem, better) or better

    def _drawn(self, jobs: int) -> list[int]:
        """Return a random range of jobs in order of submission, with equal odds at both ends."""
        jobs = min(len(self._order), jobs)
        middle = self._random.randrange(len(self._order))
        first = max(0, min(middle - jobs // 2, len(self._order) - jobs))
        return sorted(self._order[first : first + jobs])

    def _fit(self, method: PolishMethod, spent: float) -> None:
        """Adapt the number of jobs to the share of the time limit that was spent."""
        jobs = self._jobs[method] * (GROWTH if spent < 0.2 else 1 / GROWTH if spent > 0.8 else 1.0)
        self._jobs[method] = max(FEWEST, min(jobs, float(len(self._order))))

    def _model(
        self,
        places: Sequence[int],
        starts: Sequence[int],
        hints: Sequence[Sequence[int]],
        method: PolishMethod,
    ) -> ProgramModel:
        """Return the program of these jobs, with all others fixed."""
        near, step, hinted = method
        problem = self._problem
        tasks = [problem.tasks[place] for place in places]
        taken = sum(problem.quotas) - problem.capacity() + problem.usage(starts)
        for place, task in zip(places, tasks, strict=True):
            taken[starts[place] : starts[place] + task.length] -= task.width
        cells = [
            _cells(task, (starts[place], *(hints[place] if hints and hinted else ())), near, step)
            for place, task in zip(places, tasks, strict=True)
        ]
        return ProgramModel(Problem(tasks, problem.quotas, 0.0, taken), self._form, cells)


def hinted(
    cells: Sequence[Sequence[SlotRange]], parts: Sequence[Sequence[float]]
) -> list[list[int]]:
    """Return the starts of each task with a fraction above PART in the LP."""
    return [
        [cell.first for cell, part in zip(of, own, strict=True) if part > PART]
        for of, own in zip(cells, parts, strict=True)
    ]


def _cells(task: Task, hints: Sequence[int], near: int, step: int) -> list[SlotRange]:
    """Return cells for the submission and for slots near each hint."""
    slots = {task.release}
    for hint in hints:
        around = range(hint - near * step, hint + near * step + 1, step)
        slots.update(slot for slot in around if task.release <= slot <= task.latest)
    return [SlotRange(slot, slot) for slot in sorted(slots)]
