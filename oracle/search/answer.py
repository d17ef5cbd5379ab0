"""What is said of a problem while it is solved, and at the end."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import NamedTuple


class SolverProgress(NamedTuple):
    """How far it is: costs, the solver's nodes, seconds left."""

    cost: float
    bound: float
    nodes: int
    left: float


ProgressCallback = Callable[[SolverProgress], None]


class SolveResult(NamedTuple):
    """What is known of a problem: a schedule, if any, and what no schedule costs less than."""

    status: str
    starts: list[int] | None
    cost: float
    bound: float
    variables: int = 0
    nonzeros: int = 0


def gap_of(cost: float, bound: float) -> float:
    """(cost - bound) / cost; 0 where both are the same, infinite without a schedule."""
    if cost == inf:
        return inf
    return (cost - bound) / cost if cost > bound else 0.0
