"""Claims: the leases that a job with a deadline needs (Chronus, §3.3.3, §3.3.4).

Leases are numbered from 0, the first that has not been given yet. All have the same length.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, floor, inf
from typing import NamedTuple

from sia.model import LATE, DeadlineStep, Job

ROUNDING = 1e-4
"""Seconds. A job with less remaining work than this gets no further lease and is not stopped: the
rest is rounding, and it ends within the millisecond by which an end may miss a step."""


class Claim(NamedTuple):
    """A job that asks for leases."""

    job_id: str
    uses: tuple[int, ...]
    """The GPUs (rounded up), then the places of each size, that it uses in each of its leases; see
    `NodeSizes.uses`."""
    leases: int
    """The number of leases that it needs, at least 1 (RL)."""
    steps: tuple[tuple[int, float], ...]
    """For each step of its deadline, the number of whole leases before the step (DL, ascending),
    and the reward."""
    renews: bool = False
    """Whether it holds the lease that ends where lease 0 begins."""

    @property
    def gpus(self) -> int:
        """Its GPUs, rounded up."""
        return self.uses[0]

    @property
    def last(self) -> int:
        """Whole leases before its last step."""
        return self.steps[-1][0]

    @property
    def best(self) -> float:
        """The highest reward that it could earn alone in the cluster, or minus infinity."""
        needed = self.leases
        return max([reward for within, reward in self.steps if within >= needed], default=-inf)

    def met(self, leases: Sequence[int]) -> int:
        """Return the number of the first step that the job meets with these leases.

        The leases must be enough for the job.
        """
        latest = leases[-1]
        for number, (within, _) in enumerate(self.steps):
            if latest < within:
                return number
        raise ValueError(f"lease {latest} of job {self.job_id} is after its last step")

    def earned(self, leases: Sequence[int]) -> float:
        """Return the reward of the first step that the job meets with these leases."""
        return self.steps[self.met(leases)][1]


LeasePlan = dict[str, tuple[int, ...]]
"""The leases of each job, ascending."""


def lease_cost(job: Job, resume_cost: float) -> float:
    """Return the cost of a resume in seconds; infinite if the job cannot continue after a stop."""
    if job.preemptible is None:
        return resume_cost
    seconds = job.stop_seconds
    return inf if seconds is None else seconds


def leases_needed(remaining: float, lease: float, cost: float) -> int:
    """Return the number of leases that a job needs (RL), even if none are consecutive.

    All arguments are in seconds; `cost` must be less than `lease`.
    """
    return max(1, ceil((remaining - ROUNDING) / (lease - cost)))


def leases_before(
    steps: Sequence[DeadlineStep], begin: float, lease: float
) -> tuple[tuple[int, float], ...]:
    """Return the number of whole leases from `begin` to each step (DL), with its reward."""
    return tuple((max(0, floor((at - begin + LATE) / lease)), reward) for at, reward in steps)


def first_lease(now: float, lease: float) -> int:
    """Return the number, from second 0, of the first lease that begins now or later."""
    return ceil((now - LATE) / lease)
