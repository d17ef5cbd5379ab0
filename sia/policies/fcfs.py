"""First come, first served in each pool, no sharing: the baseline (§4.1)."""

from __future__ import annotations

from collections.abc import Iterator

from sia.model import Stream
from sia.policies import Proposal, StartProposal
from sia.policies.explain.plain_why import Plain, Queues
from sia.state.state import JobState


class Fcfs(Plain):
    """The head of each queue starts when it fits in its pool's quota; until then it blocks."""

    places = True

    def propose(self, now: float) -> Iterator[Proposal]:
        """Start heads of the pools that changed. O(1) a start."""
        for pool in self.state.dirty:
            while (head := pool.head) is not None and pool.dedicated + head.width <= pool.quota:
                yield StartProposal(head, Stream.DEDICATED, "head of its pool, within quota")
                if head.stream is None:
                    break

    def serve(self, queues: Queues) -> Iterator[JobState]:
        """The same, of what is left."""
        for job in queues.line(queues.job.pool):
            if not queues.within(job):
                return
            yield job
