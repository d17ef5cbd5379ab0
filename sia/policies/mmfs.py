"""Max-min fair sharing between the pools that have something waiting, run to completion (§4.1)."""

from __future__ import annotations

from collections.abc import Iterator

from sia.policies import Policy, Proposal, Start, stream_of
from sia.policies.lineup import Lineup
from sia.state import State


class MaxMin(Policy):
    """Of the heads that fit in what is idle, that of the pool with least of its quota starts."""

    shares = True

    def attach(self, state: State) -> None:
        """Line up the heads of each group."""
        self._lineups = {group: Lineup(group) for group in state.groups}
        super().attach(state)

    def propose(self, now: float) -> Iterator[Proposal]:
        """Serve the groups that changed until no head fits."""
        for pool in self.state.dirty:
            head = pool.head
            if head is None:
                self._lineups[pool.group].drop(pool)
            else:
                self._lineups[pool.group].put(pool, head.width)
        for group in self.state.dirty_groups():
            lineup = self._lineups[group]
            while (first := lineup.first()) is not None:
                job = first.head
                assert job is not None
                yield Start(job, stream_of(first, job.width), "least allocation of its group")
                if (head := first.head) is None:
                    lineup.drop(first)
                else:
                    lineup.put(first, head.width)

    def check(self) -> None:
        """The lineups agree with themselves."""
        for lineup in self._lineups.values():
            lineup.check()
