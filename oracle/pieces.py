"""A bound from pieces of time, each with a tree of its own.

Whether a congestion on Monday was solved best says nothing of one on Wednesday, yet branching on
both together multiplies their trees. Here the rows of each piece of time (its capacity, its cuts)
are held by a program of its own, of all jobs that may run in it, and what each choice costs is
dealt out among the pieces that it touches. Whatever the deal, the sum of the pieces' bounds is one;
dealt out by the LP's duals it begins at the LP's, and grows with every node of every tree.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from oracle.cuts import Cut
from oracle.forms import Floats, Model
from oracle.problem import Problem


class Piece(NamedTuple):
    """Slots begin … end - 1: a program of them, its tasks' places, and what the duals say of it."""

    begin: int
    end: int
    model: Model
    places: list[int]
    least: float


def deal(
    model: Model, cuts: Sequence[Cut], duals: Sequence[float], at: Sequence[int]
) -> tuple[float, list[Piece]]:
    """Part a model at these slots; `duals` are of its LP's rows, then of the cuts.

    What no schedule costs less than is the sum of the first and of the pieces' bounds.
    """
    milp, problem = model.milp, model.problem
    held = [(slot, milp.rows[row], min(0.0, duals[row])) for row, slot in model.slot_of.items()] + [
        (cut.slot, cut.row, min(0.0, dual))
        for cut, dual in zip(cuts, duals[len(milp.rows) :], strict=True)
    ]
    own = np.asarray(milp.costs)
    shares, least = np.zeros((len(at) + 1, len(own))), np.zeros(len(at) + 1)
    for slot, row, dual in held:
        if dual:
            piece = int(np.searchsorted(at, slot, side="right"))
            np.add.at(shares[piece], row.variables, dual * np.asarray(row.coefficients))
            least[piece] += dual * row.high
    spare, fixed = [], milp.offset
    for costs in model.worth(own - shares.sum(axis=0)):
        spare.append(costs - costs.min())
        fixed += float(costs.min())
    dealt = [model.worth(share) for share in shares]
    bounds = [*zip([0, *at], [*at, problem.slots], strict=True)]
    return fixed, [
        _piece(model, begin, end, costs, spare, float(least[i]))
        for i, ((begin, end), costs) in enumerate(zip(bounds, dealt, strict=True))
    ]


def _piece(
    model: Model, begin: int, end: int, dealt: list[Floats], spare: list[Floats], least: float
) -> Piece:
    """What of a choice no row asks for is paid where the job is submitted."""
    problem = model.problem
    places = [
        place
        for place, (task, cells) in enumerate(zip(problem.tasks, model.cells, strict=True))
        if cells[0].first < end and cells[-1].first + task.length > begin
    ]
    costs = [
        dealt[p] + spare[p] if begin <= problem.tasks[p].release < end else dealt[p] for p in places
    ]
    inner = Problem([problem.tasks[p] for p in places], problem.quotas, 0.0, problem.taken)
    cells = [model.cells[p] for p in places]
    part = Model(inner, model.form, cells, [*map(list, costs)], begin, min(end, inner.slots))
    return Piece(begin, end, part, places, least)


def torn(model: Model, values: Sequence[float]) -> Floats:
    """For each slot, how many GPUs' jobs that the LP tears apart span its beginning."""
    found = np.zeros(model.problem.slots + 1)
    for task, cells, parts in zip(
        model.problem.tasks, model.cells, model.parts(values), strict=True
    ):
        most = max(parts)
        if most < 1.0 - 1e-6:
            some = [cell.first for cell, part in zip(cells, parts, strict=True) if part > 1e-6]
            found[some[0] + 1 : some[-1] + task.length] += (1.0 - most) * task.width
    return found


def parted(model: Model, values: Sequence[float], pieces: int) -> list[int]:
    """Where to part the time into so many pieces of as many cells: where least is torn."""
    size = np.zeros(model.problem.slots + 1)
    for task, cells in zip(model.problem.tasks, model.cells, strict=True):
        size[task.release] += len(cells)
    done, loose, at = np.cumsum(size), torn(model, values), [0]
    for k in range(1, pieces):
        low, high = np.searchsorted(done, done[-1] * np.array([k - 0.4, k + 0.4]) / pieces)
        if high > low:
            at.append(int(low + np.argmin(loose[low:high])))
    return sorted({*at} - {0})
