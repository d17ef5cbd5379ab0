"""What a pass of SIA over a group goes by, and what of it may be taken away."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property
from math import ceil

from sia.limits import UNLIMITED
from sia.model import Options
from sia.policies.explain.copies import Lenders
from sia.policies.explain.why_least import Kind, Unit
from sia.policies.shared.fifo import FifoQueue
from sia.state.state import GroupState, JobState, PoolState

ROUNDING = 1e-9
"""GPUs by which a slack factor's product may miss a whole number, as 10 · 1.1 does in floats."""


class Others:
    """Pools of which nothing is to be done and nothing held back; not that of the job."""

    def __init__(self, pools: Iterable[PoolState], ground: PassInputs) -> None:
        """O(pools · windows)."""
        self.pools = frozenset(pools)
        held = [ground.held[pool] for pool in self.pools]
        self.held = [sum(column) for column in zip(*held, strict=True)] or [0] * len(
            ground.reserved
        )


def keeps_of(pool: PoolState, options: Options) -> list[int]:
    """Windows in which a pool was told to lend nothing. O(windows)."""
    no = options.no_lending
    return [i for i, window in enumerate(options.windows) if (pool.name, window) in no]


def needs(pool: PoolState, options: Options, keeps: Collection[int]) -> list[int]:
    """GPUs that are held back for a pool in each window: see `Sia`. O(windows)."""
    unused = max(0, pool.quota - pool.dedicated)
    waiting, slack = pool.pending_width, options.slack
    if slack == 1.0:
        found = [min(waiting + load, unused) for load in pool.load]
    else:
        found = [min(ceil((waiting + load) * slack - ROUNDING), unused) for load in pool.load]
    for window in keeps:
        found[window] = unused
    return found


class PassInputs:
    """What a pass over a group goes by, as it is now.

    Attributes:
        queues: Of pools with waiting jobs, by bin and width.
        waiting: Pools with jobs in these queues.
        keeps: Windows in which a pool lends nothing.
        rank: Of pools: the least is served first.
        held: GPUs held back for each pool, by window.
        reserved: Their sums, with the GPUs that are out.
        heads: Those that fit in what is left of their pools' quotas.
    """

    def __init__(
        self,
        group: GroupState,
        options: Options,
        queues: Mapping[PoolState, Sequence[Mapping[int, FifoQueue]]],
        waiting: Collection[PoolState],
        keeps: Mapping[PoolState, Collection[int]],
        rank: Mapping[PoolState, int],
    ) -> None:
        """Look at a group. O(pools · windows)."""
        self.group, self.options, self.queues, self.waiting = group, options, queues, waiting
        self.keeps, self.rank = keeps, rank
        self.held = {pool: needs(pool, options, keeps[pool]) for pool in group.pools}
        columns = zip(*self.held.values(), strict=True)
        self.reserved = [sum(column) + group.out for column in columns]
        self.heads: list[tuple[PoolState, JobState]] = []
        for pool in group.pools:
            if pool.pending_width:
                head = pool.head
                if head is not None and pool.dedicated + head.width <= pool.quota:
                    self.heads.append((pool, head))
        self._lenders: dict[tuple[bool, bool], Lenders] = {}

    @cached_property
    def in_order(self) -> list[tuple[int, float, str, PoolState]]:
        """Pools with jobs that may be spare ones, by who is served first. O(pools · log n)."""
        return sorted((self.rank[pool], pool.ratio, pool.name, pool) for pool in self.waiting)

    @cached_property
    def _limits(self) -> list[PoolState]:
        pools = self.group.pools
        return [p for p in pools if min(p.lend_limit, p.borrow_limit) < UNLIMITED]

    def lenders(self, gone: Iterable[Unit]) -> Lenders | None:
        """Who may lend what without some limits; None if there are none left. O(of these)."""
        if not self.group.limited:
            return None
        units = frozenset(gone)
        lending = self.group.lending or _LENDING in units
        lends = _LENDS in units

        def binds(pool: PoolState) -> bool:
            lend = pool.lend_limit < UNLIMITED and not lends
            borrow = pool.borrow_limit < UNLIMITED
            return (lend and Unit(Kind.LEND, pool) not in units) or (
                borrow and Unit(Kind.BORROW, pool) not in units
            )

        if lending and not any(binds(pool) for pool in self._limits):
            return None
        found = self._lenders.get((lending, lends))
        if found is None:
            made = Lenders(self.group, lending=lending, lends=lends)
            found = self._lenders[lending, lends] = made
        return found


_LENDING, _LENDS = Unit(Kind.LENDING, None), Unit(Kind.LENDS, None)
