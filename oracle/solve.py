"""The best schedule that can be found in the time there is, and what none can beat."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from time import perf_counter
from typing import NamedTuple

from oracle.forms import Form, Model
from oracle.problem import Problem
from oracle.solver import solve


class Answer(NamedTuple):
    """What is known of a problem: a schedule, if any, and what no schedule costs less than."""

    status: str
    starts: list[int] | None
    cost: float
    bound: float
    variables: int = 0
    nonzeros: int = 0

    @property
    def gap(self) -> float:
        """(cost - bound) / cost."""
        return gap_of(self.cost, self.bound)


def gap_of(cost: float, bound: float) -> float:
    """(cost - bound) / cost; 0 where both are the same, infinite without a schedule."""
    if cost == inf:
        return inf
    return max(0.0, cost - bound) / cost if cost > bound else 0.0


def solve_problem(
    problem: Problem,
    form: Form,
    seconds: float,
    threads: int = 1,
    start: Sequence[int] | None = None,
) -> Answer:
    """Solve one problem, from a schedule `start` if there is one."""
    until = perf_counter() + seconds
    model = Model(problem, form)
    found = solve(
        model.milp,
        seconds=until - perf_counter(),
        threads=threads,
        start=None if start is None else model.encode(start),
    )
    starts = None if found.values is None else model.decode(found.values)
    if starts is None and start is not None:
        starts = list(start)
    cost = inf if starts is None else problem.cost(starts)
    size = len(model.milp.costs), model.milp.nonzeros
    return Answer(found.status, starts, cost, min(cost, found.bound), *size)
