"""What a job with a deadline asks of the plan of leases (Chronus, §3.3.3, §3.3.4).

Leases are counted from 0, the first that has not been given yet. All of them are equally long.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, floor, inf
from typing import NamedTuple

from sia.model import LATE, DeadlineStep, Job

ROUNDING = 1e-4
"""Seconds that are lost in the rounding of times. A job that has less than this to go is not given
a lease for it, and is not stopped: it ends within the millisecond that steps allow."""


class Claim(NamedTuple):
    """A job that asks for leases."""

    job_id: str
    uses: tuple[int, ...]
    """What it uses in each of its leases: GPUs, rounded up, then pieces (`NodeSizes.uses`)."""
    leases: int
    """How many leases it needs, at least 1 (RL)."""
    steps: tuple[tuple[int, float], ...]
    """By step of its deadline: whole leases before it (DL), and the reward. DL ascends."""
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
        """The most that it could earn on GPUs of its own, or minus infinity."""
        return max((reward for within, reward in self.steps if within >= self.leases), default=-inf)

    def met(self, leases: Sequence[int]) -> int:
        """Return the number of the first step that these leases meet, which are enough for it."""
        ends = leases[-1] + 1
        return next(number for number, (within, _) in enumerate(self.steps) if ends <= within)

    def earned(self, leases: Sequence[int]) -> float:
        """Return the reward of the first step that these leases meet."""
        return self.steps[self.met(leases)][1]


LeasePlan = dict[str, tuple[int, ...]]
"""The leases of each job, ascending."""


def lease_cost(job: Job, resume_cost: float) -> float:
    """Return the seconds that going on costs a job; infinite if it cannot go on after a stop."""
    if job.preemptible is None:
        return resume_cost
    seconds = job.stop_seconds
    return inf if seconds is None else seconds


def leases_needed(remaining: float, lease: float, cost: float) -> int:
    """Return how many leases a job needs, wherever they lie (RL). `cost` is less than `lease`."""
    return max(1, ceil((remaining - ROUNDING) / (lease - cost)))


def leases_before(
    steps: Sequence[DeadlineStep], begin: float, lease: float
) -> tuple[tuple[int, float], ...]:
    """Return the whole leases from `begin` to each step (DL), with the step's reward."""
    return tuple((max(0, floor((at - begin + LATE) / lease)), reward) for at, reward in steps)


def first_lease(now: float, lease: float) -> int:
    """Return the number, from second 0, of the first lease that begins now or later."""
    return ceil((now - LATE) / lease)
