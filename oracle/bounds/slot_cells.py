"""Cells that fit the job: fine where it matters when a job starts, one coarse cell for the rest.

A job whose window is as long as the baseline's queue needs a variable for each slot of it, of which
the best schedules use the first few. So each job gets fine cells up to a horizon and one cell for
all later slots (its tail): in it the job costs what the first of them does, and holds GPUs only
where it would run however late it starts. That is a relaxation; where its LP starts nobody in a
tail, its bound is that of all slots. A job that is started there gets a longer horizon.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from time import perf_counter
from typing import NamedTuple

from oracle.arrays import Floats
from oracle.bounds.prices import accumulated, costs_of, priced_bound
from oracle.errors import NoScheduleError
from oracle.problem.forms import Form, ProgramModel, SlotRange
from oracle.problem.problem import Problem, Task
from oracle.solver.solvers import solve

FIRST = 20
"""Slots of a first horizon: few jobs wait longer in the best schedules of the paper's workloads."""

SPARE_SLOTS = 5
"""Slots by which a job's fine cells reach beyond its start in the best schedule, so that the solver
can say it."""

LONGER = 3.0
"""Factor by which a horizon grows beyond what the prices ask for: with 1.5 there were twice as many
rounds, with programs a quarter smaller."""

ENOUGH = 5e-4
"""Part by which a round must raise the bound for there to be another."""

TAILS = 1e-4
"""The part of a task in its tail that counts: interior points leave a trace everywhere."""

SLACK = 1e-6
"""What a later start must cost less, for a horizon to grow: below, it is the LP's own error."""


class Fitted(NamedTuple):
    """A program with fitted cells, which part of each task its LP starts in which cell, prices.

    `prices` are what a GPU is worth in each slot; None where the solver tells no duals.
    """

    model: ProgramModel
    parts: list[list[float]]
    horizons: list[int]
    prices: Floats | None
    settled: bool = False
    """That no longer horizons are worth another LP, rather than that the time was up."""


def cells_of(task: Task, horizon: int) -> list[SlotRange]:
    """A cell for each of the first slots up to the horizon, and the tail if there is one."""
    last = min(task.latest, task.release + horizon)
    cells = [SlotRange(slot, slot) for slot in range(task.release, last + 1)]
    return [*cells, SlotRange(last + 1, task.latest)] if last < task.latest else cells


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
    `rose` is told each bound. Raises NoScheduleError where there is no schedule.
    """
    grown, best, before = [*horizons], None, -inf
    while not stop() and perf_counter() < until:
        of = [cells_of(task, horizon) for task, horizon in zip(problem.tasks, grown, strict=True)]
        model = ProgramModel(problem, form, of)
        found = solve(
            model.milp,
            relaxed=True,
            interior=not problem.beta,
            seconds=until - perf_counter(),
            tell=lambda *_: stop(),
        )
        if found.status == "infeasible":
            raise NoScheduleError("no schedule keeps all cutoffs; allow some slowdown")
        if found.values is None:
            return best
        prices = model.prices(found.duals) if found.duals else None
        bound = found.bound if prices is None else priced_bound(problem, prices)
        rose(bound)
        best = Fitted(model, model.parts(found.values), [*grown], prices)
        longer = _longer(best)
        if not longer or bound - before < ENOUGH * bound:
            return best._replace(settled=True)
        before = max(before, bound)
        for place, horizon in longer.items():
            grown[place] = horizon
    return best


def _longer(fit: Fitted) -> dict[int, int]:
    """Longer horizons, by place: of tasks that the LP has in their tail, or would if it could."""
    sums = None if fit.prices is None else accumulated(fit.prices)
    found = {}
    tasks = fit.model.problem.tasks
    for place, (task, cells) in enumerate(zip(tasks, fit.model.cells, strict=True)):
        if cells[-1].first == cells[-1].last:
            continue
        fine = len(cells) - 1
        wanted = fine if fit.parts[place][-1] > TAILS else 0
        if sums is not None:
            costs = costs_of(task, sums)
            if costs[fine:].min() < costs[:fine].min() - SLACK:
                wanted = fine + int(costs[fine:].argmin())
        if wanted:
            found[place] = int(wanted * LONGER) + 1
    return found


def horizons_of(problem: Problem, known: Sequence[int] | None) -> list[int]:
    """Horizons to begin with: those that a schedule asks for, if one is known."""
    if known is None:
        return [FIRST] * len(problem.tasks)
    return [
        max(FIRST, start - task.release + SPARE_SLOTS)
        for task, start in zip(problem.tasks, known, strict=True)
    ]
