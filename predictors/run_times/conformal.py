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

MOST = 20.0
"""How far anything is moved: a factor of e²⁰ is beyond every run time and load, and what is moved
no further comes back soon."""


class Conformal:
    """How far to move a quantile, up or down, for each target and, where wanted, each key.

    The unit is the caller's; the logarithm suits run times and loads. Over any n updates of one
    target and key the share covered differs from the target by at most 2 · `most` / (`rate` · n),
    whatever the data, as long as no shift reaches `most`.
    """

    def __init__(self, rate: float = RATE, most: float = MOST) -> None:
        """Begin with no shift; `rate` and the `most` that it comes to are in its unit."""
        self._rate, self._most = rate, most
        self._shifts: dict[tuple[float, Hashable], float] = {}

    def shift(self, target: float, key: Hashable = None) -> float:
        """What to add to the quantile `target` (0 to 1) of what `key` stands for."""
        return self._shifts.get((target, key), 0.0)

    def update(self, target: float, *, covered: bool, key: Hashable = None) -> None:
        """Learn whether what came was at most what was stated. O(1)."""
        moved = self.shift(target, key) + self._rate * (target - covered)
        self._shifts[target, key] = min(max(moved, -self._most), self._most)
