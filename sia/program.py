"""Linear programs with whole numbers, as plain values: what a policy asks a solver to solve.

Programs are decisions and their solutions are events, so both are stored as JSON: None stands for
infinity. Solvers are found by entry point `sia.solvers`; the core knows none of them.
"""

from __future__ import annotations

from msgspec import Struct


class ProgramRow(Struct, frozen=True, gc=False, array_like=True):
    """A constraint: low ≤ Σ coefficient · variable ≤ high."""

    columns: tuple[int, ...]
    coefficients: tuple[float, ...]
    low: float | None = None
    high: float | None = None


class Program(Struct, frozen=True):
    """Minimise Σ cost · variable + `offset`. One entry per variable in the first four fields."""

    costs: tuple[float, ...]
    lows: tuple[float, ...]
    highs: tuple[float | None, ...]
    whole: tuple[bool, ...]
    """Whether the variable must be a whole number."""
    rows: tuple[ProgramRow, ...]
    offset: float = 0.0

    def check(self) -> None:
        """Assert that fields agree in length and rows name existing variables. O(nonzeros)."""
        count = len(self.costs)
        assert len(self.lows) == len(self.highs) == len(self.whole) == count
        for row in self.rows:
            assert len(row.columns) == len(row.coefficients)
            assert all(0 <= column < count for column in row.columns)


class SolveLimit(Struct, frozen=True, gc=False):
    """When a solver stops early.

    A replay heeds `gap` and the limits on work, never `seconds`, so that the same input gives the
    same answer on every machine.
    """

    seconds: float
    """Of wall-clock time, live."""
    nodes: int
    """Of branch and bound."""
    iterations: int
    """Of the simplex method."""
    gap: float = 1e-6
    """Relative distance to the optimum at which an answer is good enough."""
