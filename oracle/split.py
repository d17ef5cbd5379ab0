"""A bound from pieces of time, each solved on its own.

Whether a congestion on Monday was solved best says nothing of one on Wednesday, yet branch and
bound on both together multiplies their trees. Here capacity is held in each piece of time by a
program of its own, of all jobs that may run in it, with the cost of each choice dealt out among the
pieces that it touches. Whatever the deal, the sum of the pieces' least costs is a bound; dealt out
by what the LP's duals say that GPUs are worth, it is at least the LP's, and grows with every piece
in which whole jobs cost more than parts of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from oracle.cells import Fitted
from oracle.forms import Cell, Floats, Form, Model
from oracle.problem import Problem, Task


class Piece(NamedTuple):
    """Slots begin … end - 1: a program of them, and its tasks' places in the problem."""

    begin: int
    end: int
    model: Model
    places: list[int]
    least: float
    """What the LP says it costs at least."""


class Dealt(NamedTuple):
    """The problem in pieces: `fixed` and the sum of their least costs is a bound."""

    fixed: float
    pieces: list[Piece]

    @property
    def bound(self) -> float:
        """What the duals alone say."""
        return self.fixed + sum(piece.least for piece in self.pieces)


def deal(
    problem: Problem,
    form: Form,
    cells: Sequence[Sequence[Cell]],
    prices: Floats,
    cuts: Sequence[int],
) -> Dealt:
    """Cut the problem at these slots, with what a GPU is worth in each slot."""
    capacity = problem.capacity()
    sums = np.concatenate([[0.0], np.cumsum(prices)])
    fixed, spare = 0.0, []
    for task, of in zip(problem.tasks, cells, strict=True):
        full = [task.cost(cell.first) + task.width * _worth(sums, task, cell) for cell in of]
        least = min(full)
        fixed += least
        spare.append([cost - least for cost in full])
    pieces = []
    for begin, end in zip([0, *cuts], [*cuts, problem.slots], strict=True):
        places, costs = [], []
        for place, (task, of) in enumerate(zip(problem.tasks, cells, strict=True)):
            if of[0].first >= end or of[-1].first + task.length <= begin:
                continue
            own = begin <= task.release < end
            places.append(place)
            costs.append(
                [
                    (extra if own else 0.0) - task.width * _worth(sums, task, cell, begin, end)
                    for extra, cell in zip(spare[place], of, strict=True)
                ]
            )
        inner = Problem([problem.tasks[p] for p in places], problem.quotas, 0.0, problem.taken)
        model = Model(inner, form, [cells[p] for p in places], costs, begin, min(end, inner.slots))
        pieces.append(
            Piece(begin, end, model, places, -float(prices[begin:end] @ capacity[begin:end]))
        )
    return Dealt(fixed, pieces)


def _worth(sums: Floats, task: Task, cell: Cell, begin: int = 0, end: int | None = None) -> float:
    """What the slots are worth in which a job of this cell surely runs."""
    low = max(cell.last, begin)
    high = cell.first + task.length if end is None else min(cell.first + task.length, end)
    return float(sums[high] - sums[low]) if low < high else 0.0


def loose(fit: Fitted) -> Floats:
    """For each slot, how many GPUs' jobs that the LP tears apart span its beginning."""
    problem = fit.model.problem
    found = np.zeros(problem.slots + 1)
    for task, cells, parts in zip(problem.tasks, fit.model.cells, fit.parts, strict=True):
        torn = 1.0 - max(parts)
        if torn > 1e-6:
            first = next(c.first for c, part in zip(cells, parts, strict=True) if part > 1e-6)
            last = max(c.first for c, part in zip(cells, parts, strict=True) if part > 1e-6)
            found[first + 1 : last + task.length] += torn * task.width
    return found


def cuts_of(fit: Fitted, pieces: int) -> list[int]:
    """Where to cut the time into so many pieces of as many variables: where least is torn apart."""
    problem = fit.model.problem
    size = np.zeros(problem.slots + 1)
    for task, cells in zip(problem.tasks, fit.model.cells, strict=True):
        size[task.release] += len(cells) - 1
    done = np.cumsum(size)
    torn = loose(fit)
    cuts: list[int] = []
    for k in range(1, pieces):
        low = int(np.searchsorted(done, done[-1] * (k - 0.4) / pieces))
        high = int(np.searchsorted(done, done[-1] * (k + 0.4) / pieces))
        if high > low:
            cut = low + int(np.argmin(torn[low:high]))
            if cut > (cuts[-1] if cuts else 0):
                cuts.append(cut)
    return cuts
