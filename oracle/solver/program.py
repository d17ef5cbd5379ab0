"""A solver-independent mixed-integer program and its result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import ClassVar, NamedTuple

TOLERANCE = 1e-6
"""Tolerance of solvers: absolute for rows and integrality, relative for bounds."""

SolverCallback = Callable[[float, float, int], bool]
"""Called from time to time with the best cost, the bound and the nodes; True stops the solver."""


OnIncumbent = Callable[[Sequence[float]], object]
"""Called with the values of each new best solution."""


class Solved(NamedTuple):
    """The result of a solver. `values` is None without a solution; `bound` is a lower bound."""

    status: str
    values: list[float] | None
    cost: float
    bound: float
    duals: list[float] | None = None
    """Duals of the rows, for an LP that HiGHS solved."""


class SolverRequest(NamedTuple):
    """How to solve a program.

    Attributes:
        relaxed: Solve the LP: all variables may be fractions.
        interior: Solve an LP by interior points if the solver can.
        seconds: Time limit.
        start: A first solution, for a program with whole numbers.
        gap: Relative gap between cost and bound at which to stop.
        progress: Called from time to time.
        improved: Called with each better solution.
    """

    relaxed: bool = False
    interior: bool = False
    seconds: float = inf
    start: Sequence[float] | None = None
    gap: float = 0.0
    progress: SolverCallback | None = None
    improved: OnIncumbent | None = None


class Solver:
    """Base of the solvers; each is a class under entry point `sia.solvers`, and has no state."""

    rank: ClassVar[int] = 100
    """The installed solver with the lowest rank is used."""

    @classmethod
    def available(cls) -> bool:
        """Return whether the solver can be used here."""
        return True

    @classmethod
    def solve(cls, milp: Milp, request: SolverRequest) -> Solved:
        """Solve a program with at least one variable. Raises SolverError for a crash."""
        raise NotImplementedError


class Constraint(NamedTuple):
    """`low` ≤ Σ coefficient · variable ≤ `high`."""

    variables: Sequence[int]
    coefficients: Sequence[float]
    low: float
    high: float


@dataclass
class Milp:
    """Minimise Σ cost · variable + `offset`. Variables are at least 0."""

    costs: list[float] = field(default_factory=list)
    highs: list[float] = field(default_factory=list)
    binary: list[bool] = field(default_factory=list)
    rows: list[Constraint] = field(default_factory=list)
    offset: float = 0.0
    impossible: bool = False
    """Whether a row without variables is violated; such rows are not passed to solvers."""

    def binaries(self, costs: Sequence[float]) -> int:
        """Add a binary variable for each cost; return the index of the first."""
        first = len(self.costs)
        self.costs += costs
        self.highs += [1.0] * len(costs)
        self.binary += [True] * len(costs)
        return first

    def number(self, cost: float) -> int:
        """Add a continuous variable of at least 0; return its index."""
        self.costs.append(cost)
        self.highs.append(inf)
        self.binary.append(False)
        return len(self.costs) - 1

    def at_most(self, terms: dict[int, float], high: float) -> None:
        """Add a row, unless all of its coefficients are 0."""
        if any(terms.values()):
            self.rows.append(Constraint([*terms], [*terms.values()], -inf, high))
        else:
            self.impossible |= high < 0.0

    def exactly(self, variables: Sequence[int], value: float) -> None:
        """Add the row: the sum of these variables is `value`."""
        self.rows.append(Constraint(variables, [1.0] * len(variables), value, value))

    @property
    def nonzeros(self) -> int:
        """Number of coefficients of all rows."""
        return sum(len(row.variables) for row in self.rows)
