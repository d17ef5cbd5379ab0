"""Online conformal calibration of quantiles by feedback.

A quantile of the past is correct only as long as the future is like the past. Here each miss moves
the stated value up and each hit moves it down, in the ratio in which misses and hits should occur.
So the coverage tends to the target for any data (Gibbs and Candès 2021; the quantile tracker of
Angelopoulos, Candès and Tibshirani 2023).
"""

from __future__ import annotations

from collections.abc import Hashable

RATE = 0.01
"""How much one outcome above the stated quantile raises its logarithm, for a target near 1. With
larger steps the quantiles of run times fluctuate and are less accurate on average; without steps
(0) they are too low."""

SETTLED = 10.0
"""Added to the number of updates in the size of decaying steps, so that the first update of a key
moves its shift by less than a tenth of `first`."""

MOST = 20.0
"""Largest shift, as a logarithm. A factor of e²⁰ exceeds the ratio of any two run times or loads,
and from a bounded shift the correction can return within a bounded number of updates."""


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
            first: If set, the n-th update of a key has the step `first` / (n + `SETTLED`) while
                that is larger than `rate`, so that early values are averaged (decaying steps:
                Angelopoulos, Barber and Bates 2024).
        """
        self._rate, self._most, self._first = rate, most, first
        self._shifts: dict[tuple[float, Hashable], float] = {}
        self._updates: dict[tuple[float, Hashable], int] = {}

    def shift(self, target: float, key: Hashable = None) -> float:
        """Return the number to add to the quantile `target` (0 to 1) for a key."""
        return self._shifts.get((target, key), 0.0)

    def update(self, target: float, *, covered: bool, key: Hashable = None) -> None:
        """Record whether the outcome was at most the stated value. O(1)."""
        rate = self._rate
        if self._first:
            count = self._updates[target, key] = self._updates.get((target, key), 0) + 1
            rate = max(rate, self._first / (count + SETTLED))
        moved = self.shift(target, key) + rate * (target - covered)
        self._shifts[target, key] = min(max(moved, -self._most), self._most)
