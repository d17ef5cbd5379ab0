"""Who has the next round of the search for schedules, and when it rests.

From lists the local search comes further in its first seconds, then it hardly moves, while programs
go on to find something once or twice a minute. And a search in vain costs the prover half its
speed.
"""

from __future__ import annotations

from math import inf

PATIENT = 4
"""Rounds in vain after which there is no rest yet: what programs find late comes half a minute
apart."""

FEWER = 2
"""For each search in vain, so many more rounds of programs come before the next search."""


class SchedulingRounds:
    """Told of each round: whose the next is, and until when it waits (seconds of any clock)."""

    def __init__(self) -> None:
        """Begin with the local search."""
        self._rounds_in_vain, self._least, self._rests_until = 0, inf, -inf
        self._searches_in_vain = self._programs = 0

    def rests(self, cost: float, now: float) -> bool:
        """Whether it rests; a best that costs less than when it left off wakes it."""
        return cost >= self._least and now < self._rests_until

    def round_over(self, before: float, cost: float, began: float, now: float) -> None:
        """The best cost `before` and now costs `cost`; in vain it rests, longer each time."""
        self._least = cost
        self._rounds_in_vain = self._rounds_in_vain + 1 if cost >= before else 0
        self._rests_until = now + max(0, self._rounds_in_vain - PATIENT) * (now - began)

    def programs(self) -> bool:
        """Whether this round is programs'; it is counted as theirs."""
        if self._programs:
            self._programs -= 1
            return True
        return False

    def searched(self, *, in_vain: bool) -> None:
        """A round of the local search is over."""
        self._searches_in_vain = self._searches_in_vain + 1 if in_vain else 0
        self._programs = 1 + FEWER * self._searches_in_vain
