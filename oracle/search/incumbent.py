"""The best schedule so far, offered from the search and from the solver's thread."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from threading import Lock
from typing import NamedTuple

from oracle.errors import BrokenScheduleError
from oracle.problem.problem import Problem


class KnownSchedule(NamedTuple):
    """A schedule and its cost; infinite without one."""

    cost: float = inf
    starts: list[int] | None = None


class Incumbent:
    """What is `known` of a problem: replaced whole, so that cost and schedule belong together."""

    def __init__(self, problem: Problem) -> None:
        """Nothing is known yet."""
        self.problem, self.known = problem, KnownSchedule()
        self._lock = Lock()

    def offer(self, starts: Sequence[int]) -> bool:
        """Take a schedule if it is one, and the best so far; solvers may hand back what is none."""
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
