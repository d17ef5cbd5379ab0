"""The best schedule so far, shared by the search and the solver's thread."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from threading import Lock
from typing import NamedTuple

from oracle.errors import BrokenScheduleError
from oracle.problem.problem import Problem


class KnownSchedule(NamedTuple):
    """A schedule and its cost; the cost is infinite without a schedule."""

    cost: float = inf
    starts: list[int] | None = None


class Incumbent:
    """The best known schedule of a problem. Thread-safe.

    `known` is replaced as a whole, so that its cost and schedule always belong together.
    """

    def __init__(self, problem: Problem) -> None:
        """Start without a schedule."""
        self.problem, self.known = problem, KnownSchedule()
        self._lock = Lock()

    def offer(self, starts: Sequence[int]) -> bool:
        """Store a schedule if it is feasible and the best so far; return whether it was stored."""
        try:
            self.problem.check(starts)
        except BrokenScheduleError:
            return False
        cost = self.problem.cost(starts)
        with self._lock:
            if cost >= self.known.cost:
                return False
            self.known = KnownSchedule(cost, [*starts])
        return True
