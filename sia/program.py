"""Mixed-integer linear programs as plain values, which policies ask solvers to solve.

Programs are decisions and their solutions are events, so both are stored as JSON: None stands for
infinity. `sia.contract.solvers` finds the solvers; the core does not depend on them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import compress, pairwise
from math import inf, isfinite
from operator import mul
from typing import NamedTuple

from msgspec import Struct

TOLERANCE = 1e-6
"""Tolerance of solvers: absolute for rows and integrality, relative for bounds."""

ROW_TOLERANCE = 1e-5
"""How far a solution may exceed the bounds of a row, relative to the sum of its absolute terms.

Ten times the solvers' tolerance: whole variables are rounded after the solve, which moves a row by
up to a millionth of each of its terms.
"""


class ProgramRow(NamedTuple):
    """A constraint: low ≤ Σ coefficient · variable ≤ high."""

    columns: Sequence[int]
    coefficients: Sequence[float]
    low: float
    high: float


class Program(Struct, frozen=True):
    """Minimise Σ cost · variable + `offset`.

    The first four fields have one entry for each column, that is, variable. The entries of row i
    are those of `columns` and `coefficients` from `starts[i]` up to, not including, `starts[i + 1]`
    (compressed sparse rows). `ProgramBuilder` makes programs.
    """

    costs: tuple[float, ...]
    lows: tuple[float, ...]
    highs: tuple[float | None, ...]
    whole: tuple[bool, ...]
    """Whether the variable must be a whole number."""
    starts: tuple[int, ...] = (0,)
    columns: tuple[int, ...] = ()
    coefficients: tuple[float, ...] = ()
    row_lows: tuple[float | None, ...] = ()
    row_highs: tuple[float | None, ...] = ()
    offset: float = 0.0

    @property
    def nonzeros(self) -> int:
        """The number of coefficients of all rows."""
        return len(self.columns)

    @property
    def impossible(self) -> bool:
        """Whether a row without coefficients is violated. O(rows)."""
        return any(
            a == b and not (low or 0.0) <= 0.0 <= (inf if high is None else high)
            for (a, b), low, high in zip(
                pairwise(self.starts), self.row_lows, self.row_highs, strict=True
            )
        )

    def rows(self) -> Iterator[ProgramRow]:
        """Yield the rows in order. O(nonzeros)."""
        for (a, b), low, high in zip(
            pairwise(self.starts), self.row_lows, self.row_highs, strict=True
        ):
            yield ProgramRow(
                self.columns[a:b],
                self.coefficients[a:b],
                -inf if low is None else low,
                inf if high is None else high,
            )

    def cost(self, values: Sequence[float]) -> float:
        """Return the objective of a solution. O(columns)."""
        return sum(map(mul, self.costs, values), self.offset)

    def violation(self, values: Sequence[float]) -> str:
        """Return in one line why these values are not a solution, or "". O(nonzeros)."""
        if len(values) != len(self.costs):
            return f"{len(values)} values for {len(self.costs)} columns"
        if not all(map(isfinite, values)):
            return "a value is not finite"
        for i, (value, least, most) in enumerate(zip(values, self.lows, self.highs, strict=True)):
            if value < least - TOLERANCE or (most is not None and value > most + TOLERANCE):
                return f"column {i} is {value:g}, not within {_bounds(least, most)}"
        for i in compress(range(len(values)), self.whole):
            if abs(values[i] - round(values[i])) > TOLERANCE:
                return f"column {i} is {values[i]:g}, not a whole number"
        terms = list(map(mul, self.coefficients, map(values.__getitem__, self.columns)))
        for i, ((a, b), low, high) in enumerate(
            zip(pairwise(self.starts), self.row_lows, self.row_highs, strict=True)
        ):
            total = sum(terms[a:b])
            over = max(-inf if low is None else low - total, -inf if high is None else total - high)
            if over > TOLERANCE and over > ROW_TOLERANCE * (1.0 + sum(map(abs, terms[a:b]))):
                return f"row {i} is {total:g}, not within {_bounds(low, high)}"
        return ""

    def check(self) -> None:
        """Assert that lengths agree, numbers are finite, and columns exist. O(nonzeros)."""
        count, rows = len(self.costs), len(self.row_lows)
        assert len(self.lows) == len(self.highs) == len(self.whole) == count
        assert len(self.row_highs) == rows == len(self.starts) - 1
        assert len(self.columns) == len(self.coefficients) == self.starts[-1]
        assert self.starts[0] == 0
        assert all(a <= b for a, b in pairwise(self.starts))
        assert not self.columns or 0 <= min(self.columns) <= max(self.columns) < count
        for numbers in (self.costs, self.lows, self.coefficients, (self.offset,)):
            assert all(map(isfinite, numbers))
        for bounds in (self.highs, self.row_lows, self.row_highs):
            assert all(bound is None or isfinite(bound) for bound in bounds)


def _bounds(low: float | None, high: float | None) -> str:
    return f"{'-inf' if low is None else f'{low:g}'} to {'inf' if high is None else f'{high:g}'}"


class ProgramBuilder:
    """Builds a program column by column and row by row.

    Attributes:
        costs: The cost of each column so far.
        rows: The number of rows so far.
        offset: A constant of the objective.
    """

    def __init__(self) -> None:
        """Start without columns and rows."""
        self.costs: list[float] = []
        self.offset = 0.0
        self._lows: list[float] = []
        self._highs: list[float | None] = []
        self._whole: list[bool] = []
        self._starts = [0]
        self._columns: list[int] = []
        self._coefficients: list[float] = []
        self._row_lows: list[float | None] = []
        self._row_highs: list[float | None] = []

    @property
    def rows(self) -> int:
        """The number of rows so far."""
        return len(self._row_lows)

    def column(
        self, cost: float, low: float = 0.0, high: float = inf, *, whole: bool = False
    ) -> int:
        """Add a variable between two bounds; return its index."""
        self.costs.append(cost)
        self._lows.append(low)
        self._highs.append(_finite(high))
        self._whole.append(whole)
        return len(self.costs) - 1

    def binaries(self, costs: Sequence[float]) -> int:
        """Add a variable that is 0 or 1 for each cost; return the index of the first."""
        first, count = len(self.costs), len(costs)
        self.costs += costs
        self._lows += [0.0] * count
        self._highs += [1.0] * count
        self._whole += [True] * count
        return first

    def row(self, terms: Mapping[int, float], low: float = -inf, high: float = inf) -> None:
        """Add a constraint on Σ coefficient · variable; `terms` has the coefficients by column.

        A constraint without coefficients other than 0 is added only if it is violated.
        """
        if any(terms.values()):
            self._columns += terms
            self._coefficients += terms.values()
        elif low <= 0.0 <= high:
            return
        self._end(low, high)

    def at_most(self, terms: Mapping[int, float], high: float) -> None:
        """Add a constraint with an upper bound; see `row`."""
        self.row(terms, high=high)

    def exactly(self, columns: Sequence[int], value: float) -> None:
        """Add the constraint that the sum of these variables is `value`."""
        self._columns += columns
        self._coefficients += [1.0] * len(columns)
        self._end(value, value)

    def _end(self, low: float, high: float) -> None:
        self._starts.append(len(self._columns))
        self._row_lows.append(_finite(low))
        self._row_highs.append(_finite(high))

    def build(self) -> Program:
        """Return the program so far. O(columns + nonzeros)."""
        return Program(
            tuple(self.costs), tuple(self._lows), tuple(self._highs), tuple(self._whole),
            tuple(self._starts), tuple(self._columns), tuple(self._coefficients),
            tuple(self._row_lows), tuple(self._row_highs), self.offset,
        )  # fmt: skip


def _finite(bound: float) -> float | None:
    return bound if isfinite(bound) else None


class SolveLimit(Struct, frozen=True, gc=False):
    """When a solver stops early.

    A replay respects `gap` and the limits on work, never `seconds`, so the same input gives the
    same answer on every machine.
    """

    seconds: float
    """Wall-clock time of a solve in the daemon."""
    nodes: int
    """Nodes of branch and bound."""
    iterations: int
    """Simplex iterations, if the solver counts them."""
    gap: float = 1e-6
    """Relative distance to the optimum at which an answer is good enough."""

    def check(self) -> None:
        """Assert that all limits are finite and above 0; the gap may be 0."""
        assert 0.0 < self.seconds < inf
        assert self.nodes > 0
        assert self.iterations > 0
        assert 0.0 <= self.gap < inf
