"""Elastic shortest remaining time first."""

from __future__ import annotations

from sia.contract.views import JobStateView, PoolStateView
from sia.policies.shared.elastic import Elastic, deal_in_order, remaining


class ElasticSrtf(Elastic):
    """Deals within each pool by the remaining time at a job's own width; jobs that do not fit wait.

    Ties go to the earlier job.
    """

    reason = "shortest remaining time of its pool"

    def deal(self, pool: PoolStateView, gpus: int, now: float) -> dict[JobStateView, int]:
        """Deal in order of what remains. O(jobs · log jobs)."""
        jobs = sorted(
            self.line(pool), key=lambda job: (-job.job.priority, self.left_to_do(job, now))
        )
        return deal_in_order(jobs, gpus, passing=True)

    def left_to_do(self, job: JobStateView, now: float) -> float:
        """Return the seconds that remain at the job's own width."""
        return remaining(job, now)
