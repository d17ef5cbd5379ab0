"""Shortest service first in each pool, without sharing (§4.1)."""

from __future__ import annotations

from sortedcontainers import SortedList

from sia.contract.policy import Changes, Needs, Policy
from sia.contract.proposals import Proposals, Start
from sia.contract.views import ClusterStateView, JobStateView, PoolStateView
from sia.model import Stream


class Ssf(Policy):
    """Starts the job with the least run time · width once it fits in quota.

    Until then it blocks.
    """

    needs = Needs(run_times=True)
    places = True
    reason = "least service of its pool, within quota"

    def attach(self, state: ClusterStateView) -> None:
        """Sort each pool's queue by rank."""
        self._queues: dict[PoolStateView, SortedList[tuple[int, float, int, str]]] = {
            pool: SortedList() for pool in state.pools.values()
        }
        super().attach(state)

    def rank(self, job: JobStateView) -> tuple[int, float, int, str]:
        """Return the order of a job: priority, service, sequence."""
        service = job.run_time * job.job.width
        return -job.job.priority, service, job.sequence, job.job.id

    def submitted(self, job: JobStateView) -> None:
        """Add a job to the pool's queue. O(log n)."""
        self._queues[job.pool].add(self.rank(job))

    def left(self, job: JobStateView) -> None:
        """Remove a job from the pool's queue. O(log n)."""
        self._queues[job.pool].remove(self.rank(job))

    def propose(self, now: float, changes: Changes) -> Proposals:
        """Start the jobs with the least service in the pools that changed."""
        for pool in changes.pools:
            queue = self._queues[pool]
            while queue:
                job = self.state.jobs[queue[0][-1]]
                if pool.dedicated + job.width > pool.quota:
                    break
                yield Start(job, Stream.DEDICATED, self.reason)
                if job.stream is None:
                    break

    def check(self) -> None:
        """Assert that every pending job is in its queue once."""
        for pool, queue in self._queues.items():
            assert list(queue) == sorted(map(self.rank, pool.waiting())), pool.name
