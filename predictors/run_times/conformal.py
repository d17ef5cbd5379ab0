"""Online conformal calibration of quantiles by feedback.

A quantile of the past is correct only as long as the future is like the past. Here each miss moves
the stated value up and each hit moves it down, in the ratio in which misses and hits should occur.
So the coverage tends to the target for any data (Gibbs and Candès 2021; the quantile tracker of
Angelopoulos, Candès and Tibshirani 2023).
"""

from __future__ import annotations

from collections.abc import Hashable

RATE = 0.01
"""Step, in logarithms, of one miss at a target near 1. With larger steps the quantiles of run times
fluctuate and are less accurate on average; with 0 they are too short."""

SETTLED = 10.0
"""The first update counts as one of this many, so that a single update moves no value far."""

MOST = 20.0
"""Maximum shift. A factor of e²⁰ is beyond every run time and load, and a bounded shift returns
soon."""


class Conformal:
    """The shift of a quantile for each target and, optionally, each key.

    The caller chooses the unit; logarithms suit run times and loads. Over any n updates of one
    target and key, the coverage differs from the target by at most 2 · `most` / (`rate` · n), for
    any data, as long as no shift reaches `most`.
    """

    def __init__(self, rate: float = RATE, most: float = MOST, first: float = 0.0) -> None:
        """Start without shifts.

        Args:
            rate: The step.
            most: The maximum shift.
            first: If set, the n-th update of a key has the step `first` / n while that is larger
                than `rate`, so that early values are averaged (decaying steps: Angelopoulos, Barber
                and Bates 2024).
        """
        self._rate, self._most, self._first = rate, most, first
        self._shifts: dict[tuple[float, Hashable], float] = {}
        self._updates: dict[tuple[float, Hashable], int] = {}

    def shift(self, target: float, key: Hashable = None) -> float:
        """Return what to add to the quantile `target` (0 to 1) for a key."""
        return self._shifts.get((target, key), 0.0)

    def update(self, target: float, *, covered: bool, key: Hashable = None) -> None:
        """Record whether the outcome was at most the stated value. O(1)."""
        rate = self._rate
        if self._first:
            count = self._updates[target, key] = self._updates.get((target, key), 0) + 1
            rate = max(rate, self._first / (count + SETTLED))
        moved = self.shift(target, key) + rate * (target - covered)
        self._shifts[target, key] = min(max(moved, -self._most), self._most)
