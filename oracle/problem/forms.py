"""The mixed-integer program of Fig. 19 in two formulations: *pulse* (the paper's) and *step*.

A pulse variable is 1 if the job starts in a slot, a step variable if it has started by a slot. A
job runs in slot t if its start lies in (t - length, t]: a sum of up to `length` pulses, or the
difference of two steps. Both formulations have the same LP bound.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple, Protocol

import numpy as np

from oracle.arrays import Floats
from oracle.problem.problem import Problem, Task
from sia.program import ProgramBuilder


class SlotRange(NamedTuple):
    """The slots first to last, inclusive; a job starts in one of them."""

    first: int
    last: int


class Form(Protocol):
    """How one job's choice of a cell is encoded in variables."""

    def add(self, program: ProgramBuilder, costs: Sequence[float]) -> int:
        """Add variables for the choice between cells with these costs; return the first's index."""

    def between(self, first: int, cells: int, low: int, high: int) -> dict[int, float]:
        """Return the terms of "starts in a cell of [low, high)"; key CONSTANT is a constant."""

    def encode(self, cells: int, chosen: int) -> list[float]:
        """Return the variable values that choose a cell."""

    def decode(self, values: Sequence[float]) -> int:
        """Return the cell that variable values choose."""

    def parts(self, values: Sequence[float], cells: int) -> list[float]:
        """Return the fraction of the job that starts in each cell in an LP solution."""


CONSTANT = -1
"""The key of a constant among terms."""


class PulseForm:
    """x[k] = 1 means that the job starts in cell k."""

    def add(self, program: ProgramBuilder, costs: Sequence[float]) -> int:
        """Add one variable per cell, of which exactly one is 1."""
        first = program.binaries(costs)
        program.exactly(range(first, first + len(costs)), 1.0)
        return first

    def between(self, first: int, cells: int, low: int, high: int) -> dict[int, float]:
        """Return one term per cell."""
        return dict.fromkeys(range(first + low, first + high), 1.0)

    def encode(self, cells: int, chosen: int) -> list[float]:
        """Return a unit vector."""
        return [float(k == chosen) for k in range(cells)]

    def decode(self, values: Sequence[float]) -> int:
        """Return the index of the largest value."""
        return max(range(len(values)), key=values.__getitem__)

    def parts(self, values: Sequence[float], cells: int) -> list[float]:
        """Return the values unchanged."""
        return [*values]


class StepForm:
    """z[k] = 1 means that the job starts in cell k or before; the last cell needs no variable."""

    def add(self, program: ProgramBuilder, costs: Sequence[float]) -> int:
        """Add one variable for each cell but the last, in ascending order."""
        first = program.binaries([a - b for a, b in pairwise(costs)])
        program.offset += costs[-1]
        for k in range(first, first + len(costs) - 2):
            program.at_most({k: 1.0, k + 1: -1.0}, 0.0)
        return first

    def between(self, first: int, cells: int, low: int, high: int) -> dict[int, float]:
        """Return at most two terms."""
        terms = {}
        if high:
            terms[CONSTANT if high == cells else first + high - 1] = 1.0
        if low:
            terms[first + low - 1] = -1.0
        return terms

    def encode(self, cells: int, chosen: int) -> list[float]:
        """Return 0 before the cell and 1 from the cell on."""
        return [float(k >= chosen) for k in range(cells - 1)]

    def decode(self, values: Sequence[float]) -> int:
        """Return the index of the first 1."""
        return next((k for k, value in enumerate(values) if value > 0.5), len(values))

    def parts(self, values: Sequence[float], cells: int) -> list[float]:
        """Return the differences of consecutive values."""
        return [b - a for a, b in pairwise([0.0, *values, 1.0])]


FORMS: dict[str, Form] = {"step": StepForm(), "pulse": PulseForm()}


class ProgramModel:
    """A problem as a program: each task chooses one of its cells."""

    def __init__(
        self,
        problem: Problem,
        form: Form,
        cells: Sequence[Sequence[SlotRange]] | None = None,
    ) -> None:
        """Build the program. By default every slot is a cell, and the program is exact.

        In a cell of several slots, a task has the cost of the first slot and uses its GPUs only in
        the slots in which it runs for every start of the cell. Such a program is a relaxation.
        """
        self.problem = problem
        self.form = form
        self.cells = cells or [all_slots(task) for task in problem.tasks]
        program = ProgramBuilder()
        self.slot_of: dict[int, int] = {}  # slot of each capacity row
        self._first = [
            form.add(program, [task.cost(cell.first) for cell in of])
            for task, of in zip(problem.tasks, self.cells, strict=True)
        ]
        self._binaries = len(program.costs)
        self._add_slots(program)
        self.program = program.build()

    def _add_slots(self, program: ProgramBuilder) -> None:
        """Add capacity rows where they can bind, and with `beta` the largest share per slot."""
        problem = self.problem
        contended, capacity = problem.contended(), problem.capacity()
        rows: list[dict[int, float]] = [{} for _ in range(problem.slots)]
        shares: dict[tuple[int, int], dict[int, float]] = {}
        for place, task in enumerate(problem.tasks):
            for t, terms in self.running(place, task):
                if contended[t]:
                    _add(rows[t], terms, task.width)
                if problem.beta:
                    _add(shares.setdefault((t, task.pool), {}), terms, task.width)
        for t in range(problem.slots):
            fixed = rows[t].pop(CONSTANT, 0.0)
            row = program.rows
            program.at_most(rows[t], float(capacity[t]) - fixed)
            if program.rows > row:
                self.slot_of[row] = t
        if problem.beta:
            self._add_shares(program, shares)

    def _add_shares(
        self, program: ProgramBuilder, shares: dict[tuple[int, int], dict[int, float]]
    ) -> None:
        """Add rows 8 and 13 of Fig. 19; `shares` has the terms of GPU use by (slot, pool)."""
        alphas: dict[int, int] = {}
        for (t, pool), terms in sorted(shares.items()):
            if t not in alphas:
                alphas[t] = program.column(self.problem.beta)
            fixed = terms.pop(CONSTANT, 0.0)
            program.at_most({**terms, alphas[t]: -float(self.problem.quotas[pool])}, -fixed)

    def running(self, place: int, task: Task) -> Iterator[tuple[int, dict[int, float]]]:
        """Yield, for each slot in which a task can run, the terms of "the task runs"."""
        cells, first, low, high = self.cells[place], self._first[place], 0, 0
        for t in range(cells[0].last, cells[-1].first + task.length):
            while high < len(cells) and cells[high].last <= t:
                high += 1
            while low < len(cells) and cells[low].first + task.length <= t:
                low += 1
            if low < high:
                yield t, self.form.between(first, len(cells), low, high)

    def prices(self, duals: Sequence[float]) -> Floats:
        """Return the price of a GPU in each slot, from the LP's duals; at least 0."""
        found = np.zeros(self.problem.slots)
        for row, slot in self.slot_of.items():
            found[slot] = max(0.0, -duals[row])
        return found

    def encode(self, starts: Sequence[int]) -> list[float]:
        """Return the variable values of a schedule, with shares at 0 (solvers complete them)."""
        values = [0.0] * len(self.program.costs)
        for cells, first, start in zip(self.cells, self._first, starts, strict=True):
            chosen = next(k for k, cell in enumerate(cells) if cell.last >= start)
            for k, value in enumerate(self.form.encode(len(cells), chosen)):
                values[first + k] = value
        return values

    def decode(self, values: Sequence[float]) -> list[int]:
        """Return the first slots of the chosen cells."""
        return [
            cells[self.form.decode(of)].first
            for cells, of in zip(self.cells, self._split(values), strict=True)
        ]

    def in_tails(self, values: Sequence[float]) -> list[int]:
        """Return the indices of tasks whose chosen cell has several slots."""
        chosen = zip(self.cells, self._split(values), strict=True)
        picked = [cells[self.form.decode(of)] for cells, of in chosen]
        return [place for place, cell in enumerate(picked) if cell.first < cell.last]

    def represents(self, starts: Sequence[int]) -> bool:
        """Return whether each of these starts is representable by a cell of one slot."""
        pairs = zip(self.cells, starts, strict=True)
        return all(start <= cells[-1].first for cells, start in pairs)

    def parts(self, values: Sequence[float]) -> list[list[float]]:
        """Return, for each task, the fraction that starts in each of its cells in an LP."""
        return [
            self.form.parts(of, len(cells))
            for cells, of in zip(self.cells, self._split(values), strict=True)
        ]

    def _split(self, values: Sequence[float]) -> Iterator[Sequence[float]]:
        for low, high in pairwise([*self._first, self._binaries]):
            yield values[low:high]


def all_slots(task: Task) -> list[SlotRange]:
    """Return one cell per slot."""
    return [SlotRange(t, t) for t in range(task.release, task.latest + 1)]


def _add(row: dict[int, float], terms: dict[int, float], factor: float) -> None:
    for variable, coefficient in terms.items():
        row[variable] = row.get(variable, 0.0) + factor * coefficient
