"""Distributions of run times, made of what jobs like this one took (3Sigma, §3)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from sia.model import Job

KEPT = 50
"""The latest jobs that are looked at, of each user and of all."""

MOST_USERS = 1_024
"""Users that are remembered, those whose jobs ended last. Fifty numbers each are a few hundred
kilobytes in each snapshot."""

ENOUGH = 8
"""With this many jobs of a user, only those are used."""

ALL = ""
"""The name of all users together."""


class Outcomes:
    """Ratios of real run times to estimates, of each user and of all.

    Attributes:
        kept: The latest ratios by user, and of all under an empty name.
    """

    def __init__(self) -> None:
        """Start without a past: estimates are taken as true."""
        self.kept: dict[str, list[float]] = {}

    def add(self, job: Job, estimate: float, seconds: float) -> None:
        """Learn how long a job took. O(1)."""
        for name in dict.fromkeys((job.user, ALL)):
            ratios = self.kept.pop(name, [])
            self.kept[name] = [*ratios[1 - KEPT :], seconds / estimate]
        if len(self.kept) > MOST_USERS + 1:
            del self.kept[next(iter(self.kept))]

    def of(self, job: Job) -> list[float]:
        """Return the possible ratios, ascending, each as likely as another."""
        own = self.kept.get(job.user, ())
        return sorted(own if len(own) >= ENOUGH else self.kept.get(ALL, ())) or [1.0]


def chance_to_last(ratios: Sequence[float], age: float, until: float) -> float:
    """Return the chance that a job of this age lasts longer than `until`, in parts of its estimate.

    A job older than all that is known may end at any moment, but not yet. O(log ratios).
    """
    older = len(ratios) - bisect_right(ratios, age)
    if not older:
        return float(until <= age)
    return (len(ratios) - bisect_right(ratios, max(age, until))) / older
