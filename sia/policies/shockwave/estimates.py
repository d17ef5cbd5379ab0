"""Estimates of finish-time fairness and of the makespan (Shockwave, appendix G).

The contention of a job is the average number of present jobs since its submission (at its
submission the number of present jobs), divided by the number of GPUs, and at least 1. Its estimated
finish-time fairness is

    (waited + run + R · contention) / (P · contention)

with its remaining run time R and its total run time P, in seconds.
"""

from __future__ import annotations

from collections.abc import Iterable


def contention(present: float, gpus: int) -> float:
    """Return the contention of a job; `present` is the average number of present jobs."""
    return max(1.0, present / gpus)


def fairness_estimate(age: float, remaining: float, total: float, contended: float) -> float:
    """Return the estimate of finish-time fairness. Times are in seconds; `total` is above 0.

    `age` is the time since submission: the sum of waited and run time.
    """
    return (age + remaining * contended) / (total * contended)


def makespan_bound(jobs: Iterable[tuple[int, float]], gpus: int) -> float:
    """Return H, a lower bound on the makespan of jobs (width, remaining seconds) in seconds."""
    found = [*jobs]
    area = sum(width * remaining for width, remaining in found) / gpus
    return max(area, max((remaining for _, remaining in found), default=0.0))


class PresentCount:
    """The number of jobs that are present over time, and its integral.

    Attributes:
        count: The number of jobs now.
    """

    def __init__(self, now: float = 0.0, area: float = 0.0, count: int = 0) -> None:
        """Start at a time (seconds) with this integral (job-seconds) and number of jobs."""
        self._now, self._area, self.count = now, area, count

    def memory(self) -> tuple[float, float, int]:
        """Return the arguments with which a new count continues this one."""
        return self._now, self._area, self.count

    def area(self, now: float) -> float:
        """Return the integral up to a time that is not before the last change."""
        return self._area + self.count * max(0.0, now - self._now)

    def change(self, now: float, by: int) -> None:
        """Record that from now on `by` more (or fewer, if negative) jobs are present."""
        self._area, self._now = self.area(now), max(now, self._now)
        self.count += by

    def average(self, since: float, area: float, now: float) -> float:
        """Return the average number since a time at which the integral was `area`."""
        return (self.area(now) - area) / (now - since) if now > since else float(self.count)
