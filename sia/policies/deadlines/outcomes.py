"""Distributions of run times, from the run times of similar jobs (3Sigma, §3)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from sia.model import Job

KEPT = 50
"""Number of latest jobs in the distribution of each user, and in that of all users."""

MOST_USERS = 1_024
"""Largest number of remembered users, those whose jobs ended last. With fifty numbers each they
take a few hundred kilobytes in each snapshot."""

ENOUGH = 8
"""Number of ended jobs of a user from which on the distribution of this user alone is used."""

ALL = ""
"""The name of all users together."""


class Outcomes:
    """Ratios of real run times to estimates, of each user and of all.

    Attributes:
        kept: The latest ratios by user, and of all under an empty name.
    """

    def __init__(self) -> None:
        """Start without ratios: estimates are then taken as exact."""
        self.kept: dict[str, list[float]] = {}

    def add(self, job: Job, estimate: float, seconds: float) -> None:
        """Record the run time of an ended job, in seconds. O(1)."""
        for name in dict.fromkeys((job.user, ALL)):
            ratios = self.kept.pop(name, [])
            self.kept[name] = [*ratios[1 - KEPT :], seconds / estimate]
        if len(self.kept) > MOST_USERS + 1:
            del self.kept[next(iter(self.kept))]

    def of(self, job: Job) -> list[float]:
        """Return the possible ratios, ascending; all have the same probability."""
        own = self.kept.get(job.user, ())
        return sorted(own if len(own) >= ENOUGH else self.kept.get(ALL, ())) or [1.0]


def chance_to_last(ratios: Sequence[float], age: float, until: float) -> float:
    """Return the probability that a job of this age runs longer than `until`.

    Ages are fractions of the estimate. A job older than all ratios may end at any moment after now.
    O(log ratios).
    """
    older = len(ratios) - bisect_right(ratios, age)
    if not older:
        return float(until <= age)
    return (len(ratios) - bisect_right(ratios, max(age, until))) / older
