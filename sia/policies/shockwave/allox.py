"""AlloX: minimises the sum of the jobs' ends; running jobs are not stopped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sia.contract.views import JobStateView, PoolStateView
from sia.policies.shockwave.rounds import RoundPolicy


class AlloX(RoundPolicy):
    """Running jobs first, then jobs by remaining GPU-time at their present speed.

    For jobs with one GPU this is the matching with the least sum of ends. A matching does not know
    widths; for gangs the order is Smith's.
    """

    def choose(
        self, pool: PoolStateView, jobs: Sequence[JobStateView], now: float
    ) -> Mapping[JobStateView, int]:
        """Return all jobs, running ones first. O(n · log n)."""

        def rank(job: JobStateView) -> tuple[bool, float, int]:
            left = self.foresee(job, now, "last").remaining * job.job.width
            return job.stream is None, left, job.sequence

        return {job: job.job.width for job in sorted(jobs, key=rank)}
