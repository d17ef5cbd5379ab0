"""Queues of wfq: their limits on sizes, and their weights (PCS, §3.3)."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import groupby
from math import exp, fsum


def limits_of(sizes: Sequence[float], variation: float) -> tuple[float, ...]:
    """Return the largest size of each queue except the last, ascending.

    Sizes join a queue in ascending order. A new queue begins where the next size would raise the
    squared coefficient of variation (population variance / mean²) of the queue above `variation`.
    Equal sizes stay in one queue. O(n · log n).
    """
    limits = []
    count, mean, squares = 0, 0.0, 0.0  # of the queue: sum of squares of differences from the mean
    last = 0.0
    for size, same in groupby(sorted(sizes)):
        more = sum(1 for _ in same)
        joined = count + more
        ahead = size - mean
        new_mean = mean + ahead * more / joined
        new_squares = squares + ahead * ahead * count * more / joined
        if count and new_squares / joined > variation * new_mean * new_mean:
            limits.append(last)
            joined, new_mean, new_squares = more, size, 0.0
        count, mean, squares, last = joined, new_mean, new_squares, size
    return tuple(limits)


LEAST_WEIGHT = 1e-300
"""Smallest weight of a queue. Smaller floats become 0, and a queue of weight 0 would get no
GPUs."""


def weights_of(queues: int, spread: float) -> tuple[float, ...]:
    """Return the weight e^(−i · spread) / Σ of each queue, that of the smallest jobs first.

    No weight is below `LEAST_WEIGHT`.
    """
    # Relative to the largest weight, so that nothing overflows.
    top = max(0.0, -spread * (queues - 1))
    raw = [exp(-i * spread - top) for i in range(queues)]
    total = fsum(raw)
    return tuple(max(LEAST_WEIGHT, weight / total) for weight in raw)


def queue_of(limits: Sequence[float], size: float) -> int:
    """Return the queue of a size: a limit belongs to the queue below it. O(log queues)."""
    return bisect_left(limits, size)
