"""Alternate rounds of local search and programs, and pause them when they stop improving.

The local search improves a list schedule most in its first seconds. Programs find improvements
later, once or twice a minute. Rounds without improvement halve the speed of the prover, so pauses
between them grow.
"""

from __future__ import annotations

from math import inf

PATIENT = 4
"""Number of rounds without improvement before the first pause. Late improvements by programs are
half a minute apart."""

FEWER = 2
"""Number of further rounds of programs after each local search without improvement."""


class SchedulingRounds:
    """Decides which method has the next round, and when rounds pause. Times are in seconds."""

    def __init__(self) -> None:
        """Start with the local search."""
        self._rounds_in_vain, self._least, self._rests_until = 0, inf, -inf
        self._searches_in_vain = self._programs = 0

    def rests(self, cost: float, now: float) -> bool:
        """Return whether rounds pause now; a lower cost than after the last round ends a pause."""
        return cost >= self._least and now < self._rests_until

    def round_over(self, before: float, cost: float, began: float, now: float) -> None:
        """Record a round that changed the best cost from `before` to `cost`.

        After rounds without improvement, the pauses grow.
        """
        self._least = cost
        self._rounds_in_vain = self._rounds_in_vain + 1 if cost >= before else 0
        self._rests_until = now + max(0, self._rounds_in_vain - PATIENT) * (now - began)

    def programs(self) -> bool:
        """Return whether this round belongs to programs, and count it."""
        if self._programs:
            self._programs -= 1
            return True
        return False

    def searched(self, *, in_vain: bool) -> None:
        """Record a round of the local search."""
        self._searches_in_vain = self._searches_in_vain + 1 if in_vain else 0
        self._programs = 1 + FEWER * self._searches_in_vain
