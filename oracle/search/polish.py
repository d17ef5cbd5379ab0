"""A schedule made better by programs: some jobs start anew, near where they did or the LP says.

The local search takes out a dozen jobs and puts them back by rules; a program of a hundred that are
submitted one after the other, each with a few starts to choose from, is solved in seconds and finds
what no dozen can do. The others stay where they are.
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
from oracle.solver.solvers import solve

JOBS = 100
"""Jobs that start anew, at first: more where that is solved at once, fewer where it is not."""

NEAR = (3, 8, 25)
"""Slots by which a job may start before and after where it did or the LP has a part of it; one is
drawn for each program. Many jobs that move little find one thing, few that move far another. Where
slots are short, half of the programs have as many starts, as far apart as coarser slots are long.
And half of all know nothing of the LP: it has many a job in many places, and they take more jobs.
"""

GROWTH, FEWEST = 1.1, 10.0
"""Factor by which the number of jobs changes, and the least it may be."""

PART = 1e-3
"""The part of a job in a cell that counts: interior points leave a trace everywhere."""

SECONDS = 5.0
"""For one program; one that is solved in a fifth of that was too small."""


class PolishMethod(NamedTuple):
    """Of a program: how many starts on each side, how far apart, whether near the LP's, too."""

    near: int
    step: int
    hinted: bool


class Polish:
    """Programs of jobs drawn; their number fits itself to what is solved in the time."""

    def __init__(self, problem: Problem, form: Form, seed: int) -> None:
        """Nothing is solved yet."""
        self._problem, self._form, self._random = problem, form, Random(seed)  # noqa: S311
        steps, hinted = sorted({1, together(problem)}), (False, True)
        self._ways = [PolishMethod(*way) for way in product(NEAR, steps, hinted)]
        self._jobs = dict.fromkeys(self._ways, float(JOBS))
        tasks = problem.tasks
        self._order = sorted(range(len(tasks)), key=lambda place: tasks[place].release)

    def better(
        self, starts: Sequence[int], hints: Sequence[Sequence[int]], seconds: float
    ) -> list[int]:
        """The schedule after one program; `hints` are more starts for each task, if there are."""
        way = self._random.choice(self._ways)
        places = self._drawn(int(self._jobs[way]))
        model = self._model(places, starts, hints, way)
        begun, first = perf_counter(), model.encode([starts[place] for place in places])
        found = solve(model.milp, seconds=min(SECONDS, seconds), start=first)
        self._fit(way, (perf_counter() - begun) / SECONDS)
        better = [*starts]
        if found.values is not None:
            for place, start in zip(places, model.decode(found.values), strict=True):
                better[place] = start
        # what moved in steps of some slots may leave gaps; in their order none starts later
        return in_order(self._problem, better) or better

    def _drawn(self, jobs: int) -> list[int]:
        """Jobs that are submitted one after the other; the first and last as often as others."""
        jobs = min(len(self._order), jobs)
        middle = self._random.randrange(len(self._order))
        first = max(0, min(middle - jobs // 2, len(self._order) - jobs))
        return sorted(self._order[first : first + jobs])

    def _fit(self, way: PolishMethod, spent: float) -> None:
        """More jobs or fewer next time, by the part of the time that was spent."""
        jobs = self._jobs[way] * (GROWTH if spent < 0.2 else 1 / GROWTH if spent > 0.8 else 1.0)
        self._jobs[way] = max(FEWEST, min(jobs, float(len(self._order))))

    def _model(
        self,
        places: Sequence[int],
        starts: Sequence[int],
        hints: Sequence[Sequence[int]],
        way: PolishMethod,
    ) -> ProgramModel:
        """The program of these jobs, with the others where they are."""
        near, step, hinted = way
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
    """Where the LP has a part of each task start."""
    return [
        [cell.first for cell, part in zip(of, own, strict=True) if part > PART]
        for of, own in zip(cells, parts, strict=True)
    ]


def _cells(task: Task, hints: Sequence[int], near: int, step: int) -> list[SlotRange]:
    """A cell for some slots near each hint, and for the job's submission."""
    slots = {task.release}
    for hint in hints:
        around = range(hint - near * step, hint + near * step + 1, step)
        slots.update(slot for slot in around if task.release <= slot <= task.latest)
    return [SlotRange(slot, slot) for slot in sorted(slots)]
