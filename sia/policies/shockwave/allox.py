"""AlloX: the least sum of ends; what runs is not stopped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sia.contract.views import JobStateView, PoolStateView
from sia.policies.shockwave.rounds import RoundPolicy


class AlloX(RoundPolicy):
    """Who runs goes on; then who has the least GPU-time left, by today's speed.

    On GPUs for one-GPU jobs this is the matching of least sum of ends. For gangs, where a matching
    knows no widths, it is Smith's order.
    """

    def choose(
        self, pool: PoolStateView, jobs: Sequence[JobStateView], now: float
    ) -> Mapping[JobStateView, int]:
        """Return all jobs, running ones first. O(n · log n)."""

        def rank(job: JobStateView) -> tuple[bool, float, int]:
            left = self.foresee(job, now, "last").remaining * job.job.width
            return job.stream is None, left, job.sequence

        return {job: job.job.width for job in sorted(jobs, key=rank)}
