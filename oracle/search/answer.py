"""Progress and result of a solve."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import NamedTuple


class SolverProgress(NamedTuple):
    """Best cost, bound, number of branch-and-bound nodes, and seconds left."""

    cost: float
    bound: float
    nodes: int
    left: float


ProgressCallback = Callable[[SolverProgress], None]


class SolveResult(NamedTuple):
    """The best schedule found, if any, its cost, and a lower bound on the cost."""

    status: str
    starts: list[int] | None
    cost: float
    bound: float
    variables: int = 0
    nonzeros: int = 0


def gap_of(cost: float, bound: float) -> float:
    """Return (cost - bound) / cost; infinite without a schedule."""
    if cost == inf:
        return inf
    return (cost - bound) / cost if cost > bound else 0.0
