"""Cells of start slots: one per slot up to a horizon, and one coarse cell (the tail) after it.

A job's start window is as long as the baseline's queue, but good schedules use only its first
slots. So each job gets one variable per slot up to a horizon, and one for its tail. In the tail the
job has the cost of the tail's first slot, and uses GPUs only in slots in which it would run for
every start in the tail. This is a relaxation. If its LP starts no job in a tail, its bound equals
that of all slots. Jobs that start in their tail get a longer horizon.
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
from sia.contract.solvers import solve

FIRST = 20
"""Initial horizon in slots: few jobs wait longer in the best schedules of the paper's workloads."""

SPARE_SLOTS = 5
"""Number of slots by which a job's horizon exceeds its start in the best schedule, so that the
program can represent that schedule."""

LONGER = 3.0
"""Factor by which a horizon beyond the cheapest start grows. With 1.5 twice as many rounds were
needed, and programs were a quarter smaller."""

ENOUGH = 5e-4
"""Minimum relative increase of the bound for another round."""

TAILS = 1e-4
"""Minimum fraction of a task in its tail that counts. Smaller ones are ignored, because solutions
of interior-point methods are positive everywhere."""

SLACK = 1e-6
"""Minimum cost advantage of a later start for which a horizon is extended. A smaller one is a
numerical error of the LP."""


class Fitted(NamedTuple):
    """A program with its cells, the fraction of each task in each cell in its LP, and prices.

    `prices` are the duals by slot, or None if the solver does not provide them.
    """

    model: ProgramModel
    parts: list[list[float]]
    horizons: list[int]
    prices: Floats | None
    settled: bool = False
    """Whether horizons are long enough; false if the time limit ended the computation."""


def cells_of(task: Task, horizon: int) -> list[SlotRange]:
    """Return one cell per slot up to the horizon, and the tail if there is one."""
    last = min(task.latest, task.release + horizon)
    cells = [SlotRange(slot, slot) for slot in range(task.release, last + 1)]
    return [*cells, SlotRange(last + 1, task.latest)] if last < task.latest else cells


def fitted(
    problem: Problem,
    form: Form,
    until: float,
    horizons: Sequence[int],
    on_bound: Callable[[float], None],
    stop: Callable[[], bool],
) -> Fitted | None:
    """Lengthen horizons until the LP starts no job in a tail, or the clock reads `until`.

    `on_bound` is called with each bound. Return None if the first LP was not solved in time. Raises
    NoScheduleError if there is no schedule.
    """
    grown, best, before = [*horizons], None, -inf
    while not stop() and perf_counter() < until:
        of = [cells_of(task, horizon) for task, horizon in zip(problem.tasks, grown, strict=True)]
        model = ProgramModel(problem, form, of)
        found = solve(
            model.program,
            relaxed=True,
            interior=not problem.beta,
            seconds=until - perf_counter(),
            progress=lambda *_: stop(),
        )
        if found.status == "infeasible":
            raise NoScheduleError("no schedule meets all cutoffs; allow a slowdown")
        if found.values is None:
            return best
        prices = model.prices(found.duals) if found.duals else None
        bound = found.bound if prices is None else priced_bound(problem, prices)
        on_bound(bound)
        best = Fitted(model, model.parts(found.values), [*grown], prices)
        longer = _longer(best)
        if not longer or bound - before < ENOUGH * bound:
            return best._replace(settled=True)
        before = max(before, bound)
        for place, horizon in longer.items():
            grown[place] = horizon
    return best


def _longer(fit: Fitted) -> dict[int, int]:
    """Return longer horizons, by index, of tasks that use their tail or would be cheaper in it."""
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
    """Return initial horizons, long enough for a known schedule."""
    if known is None:
        return [FIRST] * len(problem.tasks)
    return [
        max(FIRST, start - task.release + SPARE_SLOTS)
        for task, start in zip(problem.tasks, known, strict=True)
    ]
