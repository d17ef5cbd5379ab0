"""Caps on widths: the largest width with a given efficiency (PCS, §3.3)."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from itertools import pairwise

from sia.model import Job
from sia.policies.shared.elastic import least_width, most_width

EQUAL = 1e-9
"""Efficiencies that differ by less are equal: that of a linear job is 1 except for rounding."""

KINDS = 65536
"""Number of cached caps. Jobs with the same widths and demand share one; a log has few kinds."""


def cap(job: Job, efficiency: float) -> int:
    """Return the largest width of a job with ζ of at least `efficiency`.

    ζ(k) = least · demand(least) / (k · demand(k)) is 1 at the smallest width. Measured demands are
    not monotone, so a wider job may be more efficient. For an efficiency of 0 or below the cap is
    the largest width.
    """
    least, most = least_width(job), most_width(job)
    if efficiency <= EQUAL or most <= least or not job.demand:
        return most
    return _cap(job.width, least, most, job.demand, efficiency - EQUAL)


@lru_cache(maxsize=KINDS)
def _cap(
    width: int, least: int, most: int, demand: tuple[tuple[int, float], ...], efficiency: float
) -> int:
    """Return the cap of jobs of a kind. O(points · log(most))."""
    job = Job("", "", 0.0, width, demand=demand)
    base = job.speed(least) / least

    def enough(gpus: int) -> bool:
        return job.speed(gpus) / gpus >= efficiency * base

    inner = (gpus for gpus, _ in demand if least < gpus < most)
    ends = [least, *inner, most]  # the rate is linear between two of them, so ζ is monotone
    for low, high in reversed([*pairwise(ends)]):
        if enough(high):
            return high
        if enough(low):
            return _last(enough, low, high)
    return least


def _last(enough: Callable[[int], bool], low: int, high: int) -> int:
    """Return the largest efficient width; `low` must be efficient and `high` must not."""
    while high - low > 1:
        middle = (low + high) // 2
        if enough(middle):
            low = middle
        else:
            high = middle
    return low
