"""What pools hold back from spare jobs (SIA §5.5), and whether a spare start leaves it.

A pool that holds back n GPUs holds cells free of spare jobs: as many of the largest cells within
n as it has, then of the next smaller ones, until they add up to n or it has no more. In cells bound
to it these are parts; an unbound quota cell is held whole, as it is bound whole.

Promised, as long as each pool's arrivals stay within what it holds: any of its requests, their
widths rounded up to cells and adding up to no more than n, that would find its cells in the pool
alone finds them at once. That is exact for a pool whose quota is of one cell type in a chain. With
several types, quota cells of every type are held, as a request takes the smallest that suffices:
more than n may then be held. The same in the common cells: where unbound quota is of several types,
vacant parts of larger cells that are in part lent are not counted on.

A spare pass keeps one `ReservedGpus` per window. Any pool that has changed, or holds back another
number, costs the next spare start O(levels²); each costs O(pools), and O(levels²) for each cell
looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from cells.chain.chain_state import ChainState
from cells.chain.zones import CellZone
from cells.layout.shape import Shape
from cells.layout.spec import CellsError


class _Held:
    """What one pool holds back: quota cells to be bound, and cells of its bound ones.

    Attributes:
        quota: Unbound quota cells that are held whole, by level.
        left: Of each level, vacant cells of the bound ones that are not held. Less than 0 if what
            is held is not there.
    """

    __slots__ = ("changes", "gpus", "left", "quota", "zone")

    def __init__(self, zone: CellZone) -> None:
        """Nothing is held."""
        self.zone = zone
        self.gpus = 0
        self.changes = -1
        self.quota = [0] * len(zone.quota)
        self.left = [0] * len(zone.quota)


class _Common(NamedTuple):
    """Common cells of each level.

    Attributes:
        opened: Those without dedicated jobs.
        vacant: Those without spare jobs either.
        clean: Those that are both, as they are: neither part of a larger one.
    """

    opened: list[int]
    vacant: list[int]
    clean: list[int]

    def without(self, shape: Shape, level: int, above: int, *, alone: bool) -> _Common:
        """What it were, were a vacant cell lent, out of one of a level above. O(levels)."""
        vacant, clean = self.vacant.copy(), self.clean.copy()
        vacant[above] -= 1
        clean[above] -= alone
        for below in range(level, above):
            vacant[below] += shape.fan[below + 1] - 1
        return _Common(self.opened, vacant, clean)


class ReservedGpus:
    """Numbers of GPUs that the pools of one chain hold back in one window.

    Args:
        ground: The chain.
        apart: No spare job gets into bound cells at all, as if all pools needed something.
    """

    def __init__(self, ground: ChainState, *, apart: bool = False) -> None:
        """Nothing is held back."""
        self._ground = ground
        self._apart = apart
        self._pools: dict[str, _Held] = {}
        self._quota = [0] * len(ground.shape.levels)
        self._unmet = 0
        self._changes = -1
        self._common = _Common([], [], [])
        self._enough = False

    def set(self, pool: str, gpus: int) -> None:
        """Hold back so many GPUs (widths rounded up to cells) of a pool. O(1).

        Raises CellsError for an unknown pool.
        """
        assert gpus >= 0, f"{pool} cannot hold back {gpus} GPUs"
        if pool not in self._ground.zones:
            raise CellsError(f"no pool {pool!r}; name one of the cells file's")
        held = self._pools.get(pool)
        if held is None:
            held = self._pools[pool] = _Held(self._ground.zones[pool])
        held.gpus = gpus
        held.changes = -1

    def kept(self) -> bool:
        """All that is held back is free of spare jobs. O(pools + changed ones · levels²)."""
        for held in self._pools.values():
            if held.changes != held.zone.changes:
                self._renew(held)
        if self._unmet:
            return False
        if self._changes != self._ground.common.changes:
            self._changes = self._ground.common.changes
            self._common = _counted(self._ground)
            self._enough = common_suffices(self._ground, self._common, self._quota)
        return self._enough

    def unmet(self) -> list[str]:
        """Pools whose bound cells no longer have what they hold back; in order. O(pools)."""
        self.kept()
        return [pool for pool, held in self._pools.items() if min(held.left) < 0]

    def common_spares(self, level: int, above: int, *, alone: bool) -> bool:
        """A common cell of a level may be lent, where all is `kept` now. O(levels²).

        Args:
            level: Of the cell.
            above: Of the vacant cell that it is taken from.
            alone: That is open as it is, not a part of an open one.
        """
        lent = self._common.without(self._ground.shape, level, above, alone=alone)
        return common_suffices(self._ground, lent, self._quota)

    def needs(self, zone: CellZone) -> bool:
        """The pool holds something back: no spare job gets into cells that are bound to it. O(1).

        There it would decide where the pool's own jobs go, and keep a larger cell from becoming
        whole when they end, for which the pool may wait already.
        """
        held = self._pools.get(zone.name)
        return self._apart or (held is not None and held.zone is zone and held.gpus > 0)

    def _renew(self, held: _Held) -> None:
        self._add(held, -1)
        held.changes = held.zone.changes
        held.quota, parts = demand(held.zone, held.gpus)
        held.left = left_of(held.zone, parts)
        self._add(held, 1)

    def _add(self, held: _Held, sign: int) -> None:
        if any(held.quota):
            for level, count in enumerate(held.quota):
                self._quota[level] += sign * count
            self._changes = -1
        self._unmet += sign * (min(held.left) < 0)


def demand(zone: CellZone, gpus: int) -> tuple[list[int], list[int]]:
    """Unbound quota cells, and parts of bound ones, by level, that are held for so many GPUs."""
    shape, free = zone.shape, zone.open.free
    quota, parts = [0] * len(free), [0] * len(free)
    mine = spare = 0  # cells of this level in bound cells, and left of quota cells held so far
    rest, wanted = gpus, zone.wanted(0)
    for level in reversed(shape.levels if rest else ()):
        fan, size = shape.fan[level + 1] if level < shape.top else 1, shape.size[level]
        mine, spare = mine * fan + len(free[level]), spare * fan
        want = rest // size
        if not want:
            continue
        first = min(want, spare)
        parts[level] = part = min(want - first, mine)
        mine, spare, taken = mine - part, spare - first, first + part
        for above in wanted if taken < want else ():
            if above >= level:
                ratio = shape.size[above] // size
                cells = min(-(-(want - taken) // ratio), zone.unbound(above) - quota[above])
                quota[above] += cells
                got = min(want - taken, cells * ratio)
                taken, spare = taken + got, spare + cells * ratio - got
        rest -= taken * size
    if gpus and sum(map(bool, zone.quota)) > 1:
        most = [min(zone.unbound(k), -(-gpus // shape.size[k])) for k in shape.levels]
        quota = [max(pair) for pair in zip(quota, most, strict=True)]
    return quota, parts


def left_of(zone: CellZone, parts: Sequence[int]) -> list[int]:
    """Cells of each level that are vacant in the zone beside such held ones. O(levels)."""
    shape = zone.shape
    found = [0] * len(shape.levels)
    left = 0
    for level in reversed(shape.levels):
        left += len(zone.vacant.free[level]) - parts[level]
        found[level] = left
        left *= shape.fan[level]
    return found


def _counted(ground: ChainState) -> _Common:
    """O(levels); O(common cells) where unbound quota is of several types and there are loans."""
    common = ground.common
    several = sum(map(bool, ground.unbound)) > 1
    clean = common.clean() if several else [0] * len(ground.unbound)
    return _Common(common.open.counts(), common.vacant.counts(), clean)


def common_suffices(ground: ChainState, common: _Common, held: Sequence[int]) -> bool:
    """Held quota cells find vacant common cells, and all others of unbound quota an open one.

    Open cells with spare jobs in them stand for the quota that is not held. What is missing even
    without spare jobs (nodes are out) is no reason to say no. O(levels).
    """
    shape, (opened, all_vacant, clean) = ground.shape, common
    wanted = [level for level in shape.levels if ground.unbound[level]]
    if not wanted:
        return True
    first = wanted[-1]
    vacant = lent = 0
    for level in shape.levels[first:]:
        ratio = shape.size[level] // shape.size[first]
        vacant += all_vacant[level] * ratio
        lent += (opened[level] - all_vacant[level]) * ratio
    for level in range(first, wanted[0] - 1, -1):
        if level < first:
            vacant = vacant * shape.fan[level + 1] + clean[level]
            lent = lent * shape.fan[level + 1] + opened[level] - clean[level]
        vacant -= held[level]
        if vacant < 0:
            return False
        others = ground.unbound[level] - held[level]
        vacant -= min(vacant, max(0, others - lent))
        lent -= min(lent, others)
    return True
