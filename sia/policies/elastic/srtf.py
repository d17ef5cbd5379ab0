"""Elastic shortest remaining time first."""

from __future__ import annotations

from typing import Any

from sia.contract.views import JobStateView, PoolStateView
from sia.policies.shared.elastic import Elastic, deal_in_order, remaining


class ElasticSrtf(Elastic):
    """Gives GPUs within each pool by the remaining time at a job's own width.

    A job that does not fit waits, and later ones may pass it.

    Ties go to the earlier job.
    """

    reason = "shortest remaining time of its pool"

    def deal(self, pool: PoolStateView, gpus: int, now: float) -> dict[JobStateView, int]:
        """Give GPUs in order of remaining time. O(jobs · log jobs)."""
        return deal_in_order(sorted(self.line(pool), key=self.rank), gpus, passing=True)

    def rank(self, job: JobStateView) -> Any:
        """Return priority, then remaining time."""
        return -job.job.priority, self.left_to_do(job, self.state.now), job.sequence

    def left_to_do(self, job: JobStateView, now: float) -> float:
        """Return the seconds that remain at the job's own width."""
        return remaining(job, now)
