"""Max-min fair sharing between pools with pending jobs, run to completion (§4.1)."""

from __future__ import annotations

from sia.contract.policy import Changes, Policy, anywhere, is_barred
from sia.contract.proposals import Proposals
from sia.contract.views import ClusterStateView, PoolStateView
from sia.policies.shared.lineup import Lineup


class MaxMin(Policy):
    """Starts the fitting head of the pool with the lowest allocation / quota."""

    shares = True
    places = True

    def attach(self, state: ClusterStateView) -> None:
        """Add the heads of each group to its line-up."""
        self._lineups = {group: Lineup(group) for group in state.groups}
        super().attach(state)
        for pool in state.pools.values():
            self._line_up(pool)

    def propose(self, now: float, changes: Changes) -> Proposals:
        """Start heads in the groups that changed until none fits."""
        for pool in changes.pools:
            self._line_up(pool)
        for group in changes.groups:
            lineup = self._lineups[group]
            barred: set[PoolStateView] = set()  # pools whose head found no cells or no loan
            if group.limited:
                heads = [(pool, pool.head) for pool in group.pools]
                barred.update(pool for pool, head in heads if head and is_barred(head))
            while (first := lineup.first(besides=barred)) is not None:
                head = first.head
                assert head is not None, "a pool without a head is not lined up"
                yield from anywhere(head, "lowest allocation / quota of its group")
                if head.stream is None:
                    barred.add(first)
                else:
                    self._line_up(first)

    def _line_up(self, pool: PoolStateView) -> None:
        lineup = self._lineups[pool.group]
        head = pool.head
        if head is None:
            lineup.drop(pool)
        else:
            lineup.put(pool, head.width)

    def check(self) -> None:
        """Assert that the heads of unchanged groups are lined up."""
        for group, lineup in self._lineups.items():
            if not any(pool in self.state.dirty for pool in group.pools):
                lineup.check({p: head.width for p in group.pools if (head := p.head)})
