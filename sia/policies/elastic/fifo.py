"""Elastic FIFO: the first job gets all the GPUs that it can use, the next one what is left."""

from __future__ import annotations

from sia.contract.views import JobStateView, PoolStateView
from sia.policies.shared.elastic import Elastic, deal_in_order


class ElasticFifo(Elastic):
    """Deals in order of arrival within each pool. Nobody passes a job that does not fit."""

    reason = "first of its pool"

    def deal(self, pool: PoolStateView, gpus: int, now: float) -> dict[JobStateView, int]:
        """Deal in order of priority and arrival. O(jobs)."""
        return deal_in_order(self.line(pool), gpus, passing=False)
