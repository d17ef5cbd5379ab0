"""What past run times say of the next one: the estimators of JamaisVu, §3.3, and one more.

Run times are seconds, above 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappush, heappushpop

import numpy as np

ALPHA = 0.5
"""Weight of the newest run time in `rolling` (§3.3)."""

RECENT = 20
"""Run times that `recent` averages (§3.3)."""

MOST_RUNS = 2**16
"""Run times behind a median; beyond, every other one of their order is dropped, which leaves the
median where it is."""

DECAY = 0.92
"""Weight in `densest` of a run time, of that of the next one: Helios' and KTH's users would rather
have 0.8, Google's 0.95; each loses a job or two in a hundred by it at most."""

REACH = 1.2 * float(np.log(2))
"""How far from a run time `densest` still counts it, in the logarithm: a bit over a factor of two,
as what is at the edge hardly counts."""

KEPT = 50
"""Newest run times that `densest` looks at. With 30 it is worse on Google's log, with 100 no
better."""

WEIGHTS = DECAY ** np.arange(KEPT - 1, -1, -1.0)

ESTIMATORS = ("average", "median", "rolling", "recent")
"""The paper's, in the order in which `RunTimeEstimators` gives them."""

DENSEST = "densest"


class RunTimeEstimators:
    """The paper's four estimates of a growing list of run times.

    The median lies between two heaps: `_low` has the lower half, negated.
    """

    __slots__ = ("_count", "_high", "_low", "_recent", "_rolling", "_total")

    def __init__(self) -> None:
        """Start with no run times."""
        self._count = 0
        self._total = self._rolling = 0.0
        self._low: list[float] = []
        self._high: list[float] = []
        self._recent: list[float] = []

    @property
    def average(self) -> float:
        """Of all run times."""
        return self._total / self._count

    def add(self, run_time: float) -> tuple[float, ...]:
        """Take a run time; returns the estimates. O(log n), amortised."""
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
    """The run time near which most of at most `KEPT` others are, the oldest first, newer ones more.

    It is what most likely is within a factor of two of the next: of two kinds of jobs that take
    turns an average or a median lies between, near neither. O(n²) in numpy for n run times.
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
