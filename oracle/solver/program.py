"""A mixed-integer program as plain numbers, and what solvers say of it, whichever they are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import ClassVar, NamedTuple

TOLERANCE = 1e-6
"""Of solvers, for rows and whole numbers, and in proportion for what they say of a bound."""

SolverCallback = Callable[[float, float, int], bool]
"""Called now and then with the best cost, the bound and the nodes; True ends the search."""


OnIncumbent = Callable[[Sequence[float]], object]
"""Called with the values of each better solution as it is found."""


class Solved(NamedTuple):
    """What a solver found; `values` are None without a schedule, and none costs below `bound`."""

    status: str
    values: list[float] | None
    cost: float
    bound: float
    duals: list[float] | None = None
    """Of an LP that HiGHS solved, by row: what the cost grows by with the row's bound."""


class SolverRequest(NamedTuple):
    """What a solver is to do with a program.

    Attributes:
        relaxed: Solve the LP: all variables may be fractions.
        interior: Solve an LP by interior points if the solver can.
        seconds: Time limit.
        start: A first solution, for a program with whole numbers.
        gap: Relative gap between cost and bound at which to stop.
        tell: Called now and then with the progress.
        took: Called with each better solution.
    """

    relaxed: bool = False
    interior: bool = False
    seconds: float = inf
    start: Sequence[float] | None = None
    gap: float = 0.0
    tell: SolverCallback | None = None
    took: OnIncumbent | None = None


class Solver:
    """Base of the solvers; each is a class under entry point `sia.solvers`, and has no state."""

    rank: ClassVar[int] = 100
    """The installed solver with the lowest rank is used."""

    @classmethod
    def available(cls) -> bool:
        """Return whether it can be used here."""
        return True

    @classmethod
    def solve(cls, milp: Milp, request: SolverRequest) -> Solved:
        """Solve a program that has variables. Raises SolverError if the solver dies."""
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
    """That a row without variables does not hold: solvers would not be shown it."""

    def binaries(self, costs: Sequence[float]) -> int:
        """Add a variable of 0 or 1 for each cost; the number of the first."""
        first = len(self.costs)
        self.costs += costs
        self.highs += [1.0] * len(costs)
        self.binary += [True] * len(costs)
        return first

    def number(self, cost: float) -> int:
        """Add a variable that may be any number from 0; its own number."""
        self.costs.append(cost)
        self.highs.append(inf)
        self.binary.append(False)
        return len(self.costs) - 1

    def at_most(self, terms: dict[int, float], high: float) -> None:
        """Add a row, unless it binds nothing."""
        if any(terms.values()):
            self.rows.append(Constraint([*terms], [*terms.values()], -inf, high))
        else:
            self.impossible |= high < 0.0

    def exactly(self, variables: Sequence[int], value: float) -> None:
        """Add the row that so many of these are 1."""
        self.rows.append(Constraint(variables, [1.0] * len(variables), value, value))

    @property
    def nonzeros(self) -> int:
        """Entries of all rows."""
        return sum(len(row.variables) for row in self.rows)
