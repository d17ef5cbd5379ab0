"""Fair share within each pool: every job has as many GPUs as the others, if it can use them.

A replay simulates it as a fluid (`replay.run.fluid`), in which jobs use fractions of GPUs. In a
daemon this class gives whole GPUs.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush

from sia.contract.views import JobStateView, PoolStateView
from sia.policies.shared.elastic import Elastic, least_width, most_width


class FairShare(Elastic):
    """A pass costs O(GPUs · log jobs) for each changed pool. Ties go to the earlier job."""

    fluid = True
    reason = "an equal share of its pool"

    def deal(self, pool: PoolStateView, gpus: int, now: float) -> dict[JobStateView, int]:
        """Give each job its least width while that fits, then GPUs one by one to the narrowest."""
        dealt: dict[JobStateView, int] = {}
        for job in self.line(pool):
            least = least_width(job.job)
            if least <= gpus:
                dealt[job] = least
                gpus -= least
        turns = [(width, job.sequence, job) for job, width in dealt.items()]
        heapify(turns)
        while gpus and turns:
            width, sequence, job = heappop(turns)
            if width < most_width(job.job):
                dealt[job] += 1
                gpus -= 1
                heappush(turns, (width + 1, sequence, job))
        return dealt
