"""Kruskal-Wallis tests of whether secondary features distinguish run times (JamaisVu, §3.2).

The jobs with one value of a primary feature, such as a user, are divided by a secondary one, such
as the width. The p-value is the probability that run times differ as much if the division has no
meaning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import exp, lgamma, log
from statistics import median
from typing import NamedTuple

import numpy as np
from msgspec import Struct

from predictors.run_times.jvupredict import logical_name
from sia.core.playout import Arrival
from sia.model import Job
from sia.wording import HOUR

LEAST = 20
"""A value is tested if it has more jobs than this (§3.2)."""

FEWEST = 5
"""Smallest number of jobs in a part. With fewer, the distribution of the statistic is unknown."""

NEWEST = 2_000
"""Number of the newest jobs of a value that are tested; this bounds the memory."""

LEVEL = 0.05
"""A lower p-value is called significant."""

PRIMARY: dict[str, Callable[[Job], str]] = {
    "name": lambda job: job.name,
    "logical name": lambda job: logical_name(job.name),
    "user": lambda job: job.user,
}
SECONDARY: dict[str, Callable[[Job], str]] = {
    "width": lambda job: str(job.width),
    "scheduling class": lambda job: job.sched_class,
    "stated": lambda job: "" if job.estimate is None else f"{job.estimate:g}",
    "priority": lambda job: str(job.priority or ""),
    "hour": lambda job: str(int(job.submit // HOUR) % 24),
}


class KruskalWallis(NamedTuple):
    """The result of one test."""

    statistic: float
    """H, corrected for ties."""
    p: float
    """Probability of an H at least as large if all parts had the same distribution."""


class Refinement(Struct, frozen=True):
    """How well a secondary feature divides the jobs of each value of a primary one."""

    primary: str
    secondary: str
    values: int
    """Values of the primary feature with more than `LEAST` jobs in two or more parts."""
    median_p: float
    significant: float
    """Share of the values with a p-value below `LEVEL`, 0 to 1."""


def kruskal_wallis(parts: Sequence[Sequence[float]]) -> KruskalWallis:
    """Test whether the values of two or more parts have the same distribution. O(n log n).

    If all values are equal, p is 1.
    """
    sizes = np.array([len(part) for part in parts])
    values = np.concatenate([np.asarray(part, float) for part in parts])
    _, where, counts = np.unique(values, return_inverse=True, return_counts=True)
    after = np.cumsum(counts)
    ranks = (after - (counts - 1) / 2)[where]  # equal values have their mean rank
    n = len(values)
    sums = np.add.reduceat(ranks, np.cumsum(sizes) - sizes)
    plain = 12.0 / (n * (n + 1)) * float((sums**2 / sizes).sum()) - 3.0 * (n + 1)
    ties = 1.0 - float((counts.astype(float) ** 3 - counts).sum()) / (float(n) ** 3 - n)
    if ties <= 0.0:
        return KruskalWallis(0.0, 1.0)
    statistic = max(0.0, plain / ties)
    return KruskalWallis(statistic, chance_beyond(statistic, len(parts) - 1))


def chance_beyond(value: float, freedom: int) -> float:
    """Return the probability that a chi-squared variable exceeds a value."""
    a, x = freedom / 2.0, value / 2.0
    if x <= 0.0:
        return 1.0
    scale = exp(a * log(x) - x - lgamma(a))
    if x < a + 1.0:  # the series of the lower incomplete gamma function
        term = total = 1.0 / a
        while term > total * 1e-16:
            a += 1.0
            term *= x / a
            total += term
        return max(0.0, 1.0 - scale * total)
    # the continued fraction of the upper one, by Lentz's method
    b = x + 1.0 - a
    c, d = 1e300, 1.0 / b
    found = d
    for i in range(1, 10_000):
        step = -i * (i - a)
        b += 2.0
        d = 1.0 / (step * d + b)
        c = b + step / c
        found *= c * d
        if abs(c * d - 1.0) < 1e-15:
            break
    return min(1.0, scale * found)


def refinements(arrivals: Iterable[Arrival]) -> list[Refinement]:
    """Test each secondary feature within each primary one; omit features that no job has."""
    found = []
    told = [(job, seconds) for job, seconds in arrivals]
    for primary, first in PRIMARY.items():
        jobs: dict[str, list[tuple[Job, float]]] = {}
        for job, seconds in told:
            value = first(job)
            if value:
                jobs.setdefault(value, []).append((job, seconds))
        groups = [each[-NEWEST:] for each in jobs.values() if len(each) > LEAST]
        for secondary, second in SECONDARY.items():
            tests = [test for each in groups if (test := _test(each, second)) is not None]
            if tests:
                significant = sum(test < LEVEL for test in tests) / len(tests)
                found.append(Refinement(primary, secondary, len(tests), median(tests), significant))
    return found


def _test(jobs: Sequence[tuple[Job, float]], second: Callable[[Job], str]) -> float | None:
    """Return the p-value of a division; None if it leaves too few jobs in two parts."""
    parts: dict[str, list[float]] = {}
    for job, seconds in jobs:
        parts.setdefault(second(job), []).append(seconds)
    enough = [part for part in parts.values() if len(part) >= FEWEST]
    if len(enough) < 2 or sum(map(len, enough)) <= LEAST:
        return None
    return kruskal_wallis(enough).p
