"""Elastic FIFO: the first job gets all GPUs that it can use, the next job the remaining ones."""

from __future__ import annotations

from sia.contract.views import JobStateView, PoolStateView
from sia.policies.shared.elastic import Elastic, deal_in_order


class ElasticFifo(Elastic):
    """Gives GPUs in order of arrival within each pool. No job passes one that does not fit."""

    reason = "first of its pool"

    def deal(self, pool: PoolStateView, gpus: int, now: float) -> dict[JobStateView, int]:
        """Give GPUs in order of priority and arrival. O(jobs)."""
        return deal_in_order(self.line(pool), gpus, passing=False)
