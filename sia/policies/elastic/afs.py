"""AFS-L: GPUs go one by one to the job that gains more from it, short ones first (PCS, §5.1).

The algorithm is from Hwang et al., *Elastic Resource Sharing for Distributed Deep Learning*, §4.
"""

from __future__ import annotations

from math import inf
from typing import Any

from sia.contract.views import JobStateView, PoolStateView
from sia.policies.shared.elastic import Elastic, least_width, most_width, remaining

EQUAL = 1e-9
"""Gains closer than this are equal: a linear speed-up is not exactly linear in floats."""


class Afs(Elastic):
    """A pass costs O(jobs · GPUs) for each changed pool. Ties go to the earlier job."""

    reason = "more GPUs shorten it most"

    def rank(self, job: JobStateView) -> Any:
        """Return priority and remaining time on the least width, as for the first GPUs."""
        return -job.job.priority, _alone(job, self.state.now), job.sequence

    def deal(self, pool: PoolStateView, gpus: int, now: float) -> dict[JobStateView, int]:
        """Give each GPU, or the first GPUs of a job, to the job with the highest priority."""
        claims = [_Claim(job, now) for job in self.line(pool)]
        open_claims = claims
        while open_claims := [claim for claim in open_claims if 0 < claim.step <= gpus]:
            top = open_claims[0]
            for claim in open_claims[1:]:
                top = _prior(top, claim)
            gpus -= top.step
            top.grow()
        return {claim.job: claim.gpus for claim in claims if claim.gpus}


class _Claim:
    """A job with the GPUs that it has been dealt so far."""

    __slots__ = (
        "_most", "_work", "alone", "gpus", "job", "length", "longer", "shorter", "speed", "step"
    )  # fmt: skip

    def __init__(self, job: JobStateView, now: float) -> None:
        self.job = job
        self._work, self._most = remaining(job, now), most_width(job.job)
        self.gpus, self.speed, self.step = 0, 0.0, least_width(job.job)
        self.length, self.alone = inf, _alone(job, now)
        self._look_ahead()

    def grow(self) -> None:
        """Take one step: the least width first, then one GPU."""
        self.gpus += self.step
        self.speed = self.job.job.speed(self.gpus)
        self.length = self._work / self.speed
        self.step = 1 if self.gpus < self._most else 0
        self._look_ahead()

    def _look_ahead(self) -> None:
        """Compute the gain of the next step, relative to the speed before and after it."""
        faster = self.job.job.speed(self.gpus + self.step)
        gain = faster - self.speed
        self.shorter = gain / self.speed if self.speed else inf
        self.longer = gain / faster


def _alone(job: JobStateView, now: float) -> float:
    """Return the seconds that remain on the least width."""
    return remaining(job, now) / job.job.speed(least_width(job.job))


def _prior(a: _Claim, b: _Claim) -> _Claim:
    """Return which of two jobs gets the next GPUs; `a` came earlier or has a higher priority."""
    if a.job.job.priority != b.job.job.priority:
        return a
    if not a.gpus and not b.gpus:
        return b if b.alone < a.alone else a
    if a.length > b.length:
        a, b = b, a
    return b if b.longer > a.shorter + EQUAL else a
