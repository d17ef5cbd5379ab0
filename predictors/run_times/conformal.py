"""What makes a stated quantile true: online conformal calibration by feedback.

A quantile that is read off the past covers what it says only as long as the future is like the
past. Here each miss moves what is stated up and each hit down, in the proportion in which there
should be hits and misses, so that the share covered tends to the target whatever happens (Gibbs and
Candès 2021; the quantile tracker of Angelopoulos, Candès and Tibshirani 2023).
"""

from __future__ import annotations

from collections.abc import Hashable

RATE = 0.01
"""How far one miss at a target near 1 moves what is stated, in the logarithm. With more the
quantiles of run times jump about, and are further off on average; with 0 they are too short."""

SETTLED = 10.0
"""Updates as whose a first one counts at most: one alone moves nothing far."""

MOST = 20.0
"""How far anything is moved: a factor of e²⁰ is beyond every run time and load, and what is moved
no further comes back soon."""


class Conformal:
    """How far to move a quantile, up or down, for each target and, where wanted, each key.

    The unit is the caller's; the logarithm suits run times and loads. Over any n updates of one
    target and key the share covered differs from the target by at most 2 · `most` / (`rate` · n),
    whatever the data, as long as no shift reaches `most`.
    """

    def __init__(self, rate: float = RATE, most: float = MOST, first: float = 0.0) -> None:
        """Begin with no shift; `rate` and the `most` that it comes to are in its unit.

        With `first` the n-th update of a key moves it by `first` / n, as long as that is more: what
        little is known is averaged, before what comes is followed (decaying steps: Angelopoulos,
        Barber and Bates 2024).
        """
        self._rate, self._most, self._first = rate, most, first
        self._shifts: dict[tuple[float, Hashable], float] = {}
        self._updates: dict[tuple[float, Hashable], int] = {}

    def shift(self, target: float, key: Hashable = None) -> float:
        """What to add to the quantile `target` (0 to 1) of what `key` stands for."""
        return self._shifts.get((target, key), 0.0)

    def update(self, target: float, *, covered: bool, key: Hashable = None) -> None:
        """Learn whether what came was at most what was stated. O(1)."""
        rate = self._rate
        if self._first:
            count = self._updates[target, key] = self._updates.get((target, key), 0) + 1
            rate = max(rate, self._first / (count + SETTLED))
        moved = self.shift(target, key) + rate * (target - covered)
        self._shifts[target, key] = min(max(moved, -self._most), self._most)
