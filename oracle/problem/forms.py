"""Fig. 19 as a mixed-integer program, in two forms: the paper's *pulse*, and *step*.

In the pulse form a variable says in which slot a job starts, in the step form by which slot it has
started. A job runs in slot t if its start lies in (t - length, t]: a sum of up to `length` pulses,
or the difference of two steps. Both have the same LP bound.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple, Protocol

import numpy as np

from oracle.arrays import Floats
from oracle.problem.problem import Problem, Task
from oracle.solver.program import Milp


class SlotRange(NamedTuple):
    """Slots first … last, of which a job starts in one."""

    first: int
    last: int


class Form(Protocol):
    """One job's variables, whatever they mean."""

    def add(self, milp: Milp, costs: Sequence[float]) -> int:
        """Add variables for the choice between cells of such costs; the number of the first."""

    def between(self, first: int, cells: int, low: int, high: int) -> dict[int, float]:
        """The terms of "starts in one of cells low … high - 1"; the key -1 is a constant."""

    def encode(self, cells: int, chosen: int) -> list[float]:
        """The values that choose a cell."""

    def decode(self, values: Sequence[float]) -> int:
        """The cell that values choose."""

    def parts(self, values: Sequence[float], cells: int) -> list[float]:
        """How much of the job starts in each cell, by the values of an LP."""


CONSTANT = -1
"""The key of a constant among terms."""


class PulseForm:
    """x[k] = 1: the job starts in cell k."""

    def add(self, milp: Milp, costs: Sequence[float]) -> int:
        """A variable a cell, of which exactly one is 1."""
        first = milp.binaries(costs)
        milp.exactly(range(first, first + len(costs)), 1.0)
        return first

    def between(self, first: int, cells: int, low: int, high: int) -> dict[int, float]:
        """As many terms as there are cells."""
        return dict.fromkeys(range(first + low, first + high), 1.0)

    def encode(self, cells: int, chosen: int) -> list[float]:
        """One 1."""
        return [float(k == chosen) for k in range(cells)]

    def decode(self, values: Sequence[float]) -> int:
        """Where the 1 is."""
        return max(range(len(values)), key=values.__getitem__)

    def parts(self, values: Sequence[float], cells: int) -> list[float]:
        """The values themselves."""
        return [*values]


class StepForm:
    """z[k] = 1: the job has started in a cell up to k; of the last cell that is certain."""

    def add(self, milp: Milp, costs: Sequence[float]) -> int:
        """A variable a cell but the last, ascending."""
        first = milp.binaries([a - b for a, b in pairwise(costs)])
        milp.offset += costs[-1]
        for k in range(first, first + len(costs) - 2):
            milp.at_most({k: 1.0, k + 1: -1.0}, 0.0)
        return first

    def between(self, first: int, cells: int, low: int, high: int) -> dict[int, float]:
        """At most two terms."""
        terms = {}
        if high:
            terms[CONSTANT if high == cells else first + high - 1] = 1.0
        if low:
            terms[first + low - 1] = -1.0
        return terms

    def encode(self, cells: int, chosen: int) -> list[float]:
        """0 before the cell, 1 from it on."""
        return [float(k >= chosen) for k in range(cells - 1)]

    def decode(self, values: Sequence[float]) -> int:
        """Where the first 1 is."""
        return next((k for k, value in enumerate(values) if value > 0.5), len(values))

    def parts(self, values: Sequence[float], cells: int) -> list[float]:
        """By how much they rise."""
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
        """Build it. Without `cells` each slot is one, and the program is exact.

        In a cell of several slots a task costs what its first does, and holds its GPUs only while
        it runs wherever in the cell it starts: such a program is a bound.
        """
        self.problem = problem
        self.form = form
        self.cells = cells or [all_slots(task) for task in problem.tasks]
        self.milp = Milp()
        self.slot_of: dict[int, int] = {}  # of rows that hold capacity
        self._first = [
            form.add(self.milp, [task.cost(cell.first) for cell in of])
            for task, of in zip(problem.tasks, self.cells, strict=True)
        ]
        self._binaries = len(self.milp.costs)
        self._add_slots()

    def _add_slots(self) -> None:
        """Capacity where it may bind, and with `beta` the largest share in each slot."""
        problem, milp = self.problem, self.milp
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
            row = len(milp.rows)
            milp.at_most(rows[t], float(capacity[t]) - fixed)
            if len(milp.rows) > row:
                self.slot_of[row] = t
        if problem.beta:
            self._add_shares(shares)

    def _add_shares(self, shares: dict[tuple[int, int], dict[int, float]]) -> None:
        """Rows 8 and 13 of Fig. 19; `shares` are the terms of a pool's use, by slot and pool."""
        milp = self.milp
        alphas: dict[int, int] = {}
        for (t, pool), terms in sorted(shares.items()):
            if t not in alphas:
                alphas[t] = milp.number(self.problem.beta)
            fixed = terms.pop(CONSTANT, 0.0)
            milp.at_most({**terms, alphas[t]: -float(self.problem.quotas[pool])}, -fixed)

    def running(self, place: int, task: Task) -> Iterator[tuple[int, dict[int, float]]]:
        """For each slot in which a task may run: the terms of "it runs"."""
        cells, first, low, high = self.cells[place], self._first[place], 0, 0
        for t in range(cells[0].last, cells[-1].first + task.length):
            while high < len(cells) and cells[high].last <= t:
                high += 1
            while low < len(cells) and cells[low].first + task.length <= t:
                low += 1
            if low < high:
                yield t, self.form.between(first, len(cells), low, high)

    def prices(self, duals: Sequence[float]) -> Floats:
        """What a GPU is worth in each slot, by the LP's duals; at least 0."""
        found = np.zeros(self.problem.slots)
        for row, slot in self.slot_of.items():
            found[slot] = max(0.0, -duals[row])
        return found

    def encode(self, starts: Sequence[int]) -> list[float]:
        """The values of all variables for a schedule, the shares left at 0 (solvers fill them)."""
        values = [0.0] * len(self.milp.costs)
        for cells, first, start in zip(self.cells, self._first, starts, strict=True):
            chosen = next(k for k, cell in enumerate(cells) if cell.last >= start)
            for k, value in enumerate(self.form.encode(len(cells), chosen)):
                values[first + k] = value
        return values

    def decode(self, values: Sequence[float]) -> list[int]:
        """The first slots of the cells that values choose."""
        return [
            cells[self.form.decode(of)].first
            for cells, of in zip(self.cells, self._split(values), strict=True)
        ]

    def in_tails(self, values: Sequence[float]) -> list[int]:
        """The places of tasks whose cell is of several slots: values say no start of theirs."""
        chosen = zip(self.cells, self._split(values), strict=True)
        picked = [cells[self.form.decode(of)] for cells, of in chosen]
        return [place for place, cell in enumerate(picked) if cell.first < cell.last]

    def says(self, starts: Sequence[int]) -> bool:
        """Whether each of these starts has a cell of its own."""
        pairs = zip(self.cells, starts, strict=True)
        return all(start <= cells[-1].first for cells, start in pairs)

    def parts(self, values: Sequence[float]) -> list[list[float]]:
        """For each task the part of it that starts in each of its cells, in an LP."""
        return [
            self.form.parts(of, len(cells))
            for cells, of in zip(self.cells, self._split(values), strict=True)
        ]

    def _split(self, values: Sequence[float]) -> Iterator[Sequence[float]]:
        for low, high in pairwise([*self._first, self._binaries]):
            yield values[low:high]


def all_slots(task: Task) -> list[SlotRange]:
    """Each slot a cell."""
    return [SlotRange(t, t) for t in range(task.release, task.latest + 1)]


def _add(row: dict[int, float], terms: dict[int, float], factor: float) -> None:
    for variable, coefficient in terms.items():
        row[variable] = row.get(variable, 0.0) + factor * coefficient
