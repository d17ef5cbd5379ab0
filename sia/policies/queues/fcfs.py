"""First come, first served in each pool, without sharing: the baseline (§4.1)."""

from __future__ import annotations

from sia.contract.policy import Changes, Policy
from sia.contract.proposals import Proposals, Start
from sia.model import Stream


class Fcfs(Policy):
    """Starts the head of each queue once it fits in its pool's quota.

    Until then it blocks the queue.
    """

    places = True

    def propose(self, now: float, changes: Changes) -> Proposals:
        """Start heads of the pools that changed. O(1) for each start."""
        for pool in changes.pools:
            while (head := pool.head) is not None and pool.dedicated + head.width <= pool.quota:
                yield Start(head, Stream.DEDICATED, "head of its pool, within quota")
                if head.stream is None:
                    break
