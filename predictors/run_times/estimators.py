"""Estimators of the next run time: those of JamaisVu (§3.3) and one more.

Run times are in seconds and above 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappush, heappushpop

import numpy as np

ALPHA = 0.5
"""Weight of the newest run time in `rolling` (§3.3)."""

RECENT = 20
"""Number of run times that `recent` averages (§3.3)."""

MOST_RUNS = 2**16
"""Maximum number of run times for the median. Beyond it, every other one in sorted order is
dropped, which leaves the median unchanged."""

DECAY = 0.92
"""Weight of a run time in `densest` relative to the next one. The best value for the users of
Helios and KTH is 0.8, for Google's 0.95; the difference is at most one or two jobs in a hundred."""

REACH = 1.2 * float(np.log(2))
"""Distance in logarithms up to which `densest` counts a run time. Slightly above a factor of two,
because run times near the edge hardly count."""

KEPT = 50
"""Number of newest run times that `densest` uses. 30 is worse on Google's log, 100 no better."""

WEIGHTS = DECAY ** np.arange(KEPT - 1, -1, -1.0)

ESTIMATORS = ("average", "median", "rolling", "recent")
"""The paper's estimators, in the order in which `RunTimeEstimators` returns them."""

DENSEST = "densest"


class RunTimeEstimators:
    """The paper's four estimates of a growing list of run times.

    The median lies between two heaps; `_low` has the lower half, negated.
    """

    __slots__ = ("_count", "_high", "_low", "_recent", "_rolling", "_total")

    def __init__(self) -> None:
        """Start without run times."""
        self._count = 0
        self._total = self._rolling = 0.0
        self._low: list[float] = []
        self._high: list[float] = []
        self._recent: list[float] = []

    @property
    def average(self) -> float:
        """The mean of all run times."""
        return self._total / self._count

    def add(self, run_time: float) -> tuple[float, ...]:
        """Add a run time and return the estimates. O(log n) amortised."""
        self._count += 1
        self._total += run_time
        alpha = ALPHA if self._count > 1 else 1.0
        self._rolling = alpha * run_time + (1 - alpha) * self._rolling
        recent = self._recent
        recent.append(run_time)
        if len(recent) > RECENT:
            del recent[0]
        median = self._median_with(run_time)
        return self._total / self._count, median, self._rolling, sum(recent) / len(recent)

    def _median_with(self, run_time: float) -> float:
        low, high = self._low, self._high
        if len(low) == len(high):
            heappush(low, -heappushpop(high, run_time))
            return -low[0]
        heappush(high, -heappushpop(low, -run_time))
        median = (high[0] - low[0]) / 2
        if len(low) > MOST_RUNS // 2:
            low.sort()  # a sorted list is a heap
            high.sort()
            del low[1::2], high[1::2]
        return median


def densest(runs: Sequence[float]) -> float:
    """Return the value near which most of the newest run times lie, with newer ones weighted more.

    It maximises the chance to be within a factor of two of the next run time. If two kinds of jobs
    alternate, an average or median lies between them, near neither. O(n²) in numpy for n ≤ `KEPT`
    run times, oldest first.
    """
    if len(runs) == 1:
        return runs[0]
    logs = np.log(runs)
    order = np.argsort(logs, kind="stable")
    at, weights = logs[order], WEIGHTS[-len(runs) :][order]
    spots = np.concatenate([at, (at[1:] + at[:-1]) / 2, (at[2:] + at[:-2]) / 2])
    near = np.minimum(((spots[:, None] - at) / REACH) ** 2, 1.0)
    counts = (1.0 - near * near * near) @ weights
    return float(np.exp(spots[counts.argmax()]))
