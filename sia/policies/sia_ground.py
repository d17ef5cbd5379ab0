"""What a pass of SIA over a group goes by, and what of it may be taken away."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import Enum
from math import ceil
from typing import Any, NamedTuple

from sia.line import Line
from sia.model import Options
from sia.state import GroupState, JobState, PoolState

ROUNDING = 1e-9
"""GPUs by which a slack factor's product may miss a whole number, as 10 · 1.1 does in floats."""


class Kind(Enum):
    """What may be taken away."""

    TURN = "jobs of the pool that wait before the job"
    END = "a running job"
    QUEUE = "all other jobs that wait in a pool"
    LOAD = "all that is foreseen for a pool"
    KEEP = "that a pool lends nothing"
    LENDING = "that lending is off"
    LEND = "a pool's limit on lending"
    BORROW = "a pool's limit on borrowing"
    OTHERS = "all that waits or is foreseen in several pools"


class Unit(NamedTuple):
    """One thing that is taken away as a whole; `of` is a pool, `Others` or a running job."""

    kind: Kind
    of: Any


class Others:
    """Pools of which nothing is to be done and nothing held back; not that of the job."""

    def __init__(self, pools: Iterable[PoolState], ground: Ground) -> None:
        """O(pools · windows)."""
        self.pools = frozenset(pools)
        held = [ground.held[pool] for pool in self.pools]
        self.held = [sum(column) for column in zip(*held, strict=True)] or [0] * len(
            ground.reserved
        )


class Ground(NamedTuple):
    """What a pass over a group goes by, as it is now."""

    group: GroupState
    options: Options
    queues: Mapping[PoolState, Sequence[Mapping[int, Line]]]
    """Of pools with waiting jobs, by bin and width."""
    waiting: Collection[PoolState]
    """Pools with jobs in these queues."""
    keeps: Mapping[PoolState, Collection[int]]
    """Windows in which a pool lends nothing."""
    rank: Mapping[PoolState, int]
    held: Mapping[PoolState, Sequence[int]]
    """GPUs held back for each pool, by window."""
    reserved: Sequence[int]
    """Their sums."""
    heads: Sequence[tuple[PoolState, JobState]]
    """Heads that fit in what is left of their pools' quotas."""


def need(pool: PoolState, window: int, options: Options, *, keeps: bool) -> int:
    """GPUs that are held back for a pool in a window: see `Sia`."""
    unused = max(0, pool.quota - pool.dedicated)
    if keeps:
        return unused
    wanted: float = pool.pending_width + pool.load[window]
    if options.slack != 1.0:
        wanted = ceil(wanted * options.slack - ROUNDING)
    return min(int(wanted), unused)


def ground(
    group: GroupState,
    options: Options,
    queues: Mapping[PoolState, Sequence[Mapping[int, Line]]],
    waiting: Collection[PoolState],
    keeps: Mapping[PoolState, Collection[int]],
    rank: Mapping[PoolState, int],
) -> Ground:
    """Look at a group. O(pools · windows)."""
    windows = range(len(options.windows))
    held = {p: [need(p, i, options, keeps=i in keeps[p]) for i in windows] for p in group.pools}
    reserved = [sum(column) for column in zip(*held.values(), strict=True)]
    heads = []
    for pool in group.pools:
        if pool.pending_width:
            head = pool.head
            if head is not None and pool.dedicated + head.width <= pool.quota:
                heads.append((pool, head))
    return Ground(group, options, queues, waiting, keeps, rank, held, reserved, heads)
