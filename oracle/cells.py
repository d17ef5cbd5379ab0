"""Cells that fit the job: fine where it matters when a job starts, one coarse cell for the rest.

A job whose window is as long as the baseline's queue needs a variable for each slot of it, of which
the best schedules use the first few. So each job gets fine cells up to a horizon and one cell for
all later slots (its tail): in it the job costs what the first of them does, and holds GPUs only
where it would run however late it starts. That is a relaxation; where its LP starts nobody in a
tail, its bound is that of all slots. A job that is started there gets a longer horizon.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import NamedTuple

from oracle.errors import NoScheduleError
from oracle.forms import Cell, Form, Model
from oracle.problem import Problem, Task
from oracle.solver import TOLERANCE, Solved, solve

FIRST = 20
"""Slots of a first horizon: few jobs wait longer in the best schedules of the paper's workloads."""

LONGER = 1.5
"""Factor by which a horizon grows: at 2 the programs became a third larger, at 1.2 there were
twice as many rounds."""


class Fitted(NamedTuple):
    """A program with fitted cells, what its LP gave, and which part of each task in which cell."""

    model: Model
    found: Solved
    parts: list[list[float]]
    horizons: list[int]


def cells_of(task: Task, horizon: int) -> list[Cell]:
    """A cell for each of the first slots up to the horizon, and the tail if there is one."""
    last = min(task.latest, task.release + horizon)
    cells = [Cell(slot, slot) for slot in range(task.release, last + 1)]
    return [*cells, Cell(last + 1, task.latest)] if last < task.latest else cells


def fitted(
    problem: Problem,
    form: Form,
    until: float,
    horizons: Sequence[int],
    rose: Callable[[float], None],
    stop: Callable[[], bool],
) -> Fitted | None:
    """Lengthen horizons until the LP starts nobody in a tail, or the time is up.

    `until` is a reading of the clock (seconds); None if not even the first LP was solved by then.
    `rose` is told each LP's bound. Raises NoScheduleError where there is no schedule.
    """
    grown = [*horizons]
    best = None
    while not stop():
        of = [cells_of(task, horizon) for task, horizon in zip(problem.tasks, grown, strict=True)]
        model = Model(problem, form, of)
        found = solve(
            model.milp, relaxed=True, seconds=until - perf_counter(), tell=lambda *_: stop()
        )
        if found.status == "infeasible":
            raise NoScheduleError("no schedule keeps all cutoffs; allow some slowdown")
        if found.values is None:
            return best
        rose(found.bound)
        parts = model.parts(found.values)
        best = Fitted(model, found, parts, [*grown])
        late = [
            place
            for place, (cells, part) in enumerate(zip(of, parts, strict=True))
            if cells[-1].first < cells[-1].last and part[-1] > TOLERANCE
        ]
        if not late:
            return best
        for place in late:
            grown[place] = int(grown[place] * LONGER) + 1
    return best
