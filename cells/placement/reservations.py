"""Reservations against spare jobs (SIA §5.5), and whether a spare start respects them.

A pool that reserves n GPUs keeps cells free of spare jobs: as many of its largest cells as fit in
n, then the next smaller ones, until they add up to n or the pool has no more. In bound cells these
are parts of the cells. An unbound quota cell is reserved whole, because it is bound whole.

The guarantee: while each pool's arrivals stay within its reservation, every request that would find
cells if the pool were alone finds them at once. Widths are rounded up to cells and may add up to n.
This is exact for a pool with one cell type per chain. With several types, quota cells of every type
are reserved, because a request takes the smallest sufficient one; more than n may be reserved then.
The same holds for common cells: if unbound quota has several types, the vacant parts of larger,
partly lent cells are not counted.

A spare pass has one `ReservedGpus` per window. After a pool's cells or its reservation changed, the
next spare start costs O(levels²) for this pool. Each spare start costs O(pools), and O(levels²) for
each candidate cell.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from cells.chain.chain_state import ChainState
from cells.chain.zones import CellZone
from cells.layout.shape import Shape
from cells.layout.spec import CellsError

MOST_CLEAN = 0.75
"""The most of the unbound quota cells that spare jobs leave for one pool: some are lent even if all
others are in use."""


class _PoolReservation:
    """The reservation of one pool: unbound quota cells, and parts of its bound cells.

    Attributes:
        quota: Unbound quota cells that are reserved whole, by level.
        left: Vacant cells of the bound ones that are not reserved, by level. Negative if the
            reservation is not satisfied.
    """

    __slots__ = ("changes", "gpus", "left", "quota", "zone")

    def __init__(self, zone: CellZone) -> None:
        """Start without a reservation."""
        self.zone = zone
        self.gpus = 0
        self.changes = -1
        self.quota = [0] * len(zone.quota)
        self.left = [0] * len(zone.quota)


class _Common(NamedTuple):
    """The numbers of common cells of each level.

    Attributes:
        opened: Cells without dedicated jobs.
        vacant: Cells without dedicated and spare jobs.
        clean: Cells that are in both sets as they are, not as part of a larger one.
    """

    opened: list[int]
    vacant: list[int]
    clean: list[int]

    def without(self, shape: Shape, level: int, above: int, *, alone: bool) -> _Common:
        """Return the numbers after lending a cell of `level` out of a cell of `above`.

        O(levels).
        """
        vacant, clean = self.vacant.copy(), self.clean.copy()
        vacant[above] -= 1
        clean[above] -= alone
        for below in range(level, above):
            vacant[below] += shape.fan[below + 1] - 1
        return _Common(self.opened, vacant, clean)


class ReservedGpus:
    """The GPUs that the pools of one chain reserve in one window.

    Args:
        state: The state of the chain.
        exclude_bound: Whether spare jobs are kept out of all bound cells, as if every pool had a
            reservation.
        clean: A fraction of the unbound quota cells of a level that are not reserved. Spare jobs
            leave this number of cells (rounded down) without a spare job, too. If it is not 0,
            they leave as many as one pool could bind at once, up to `MOST_CLEAN` of all.
    """

    def __init__(
        self, state: ChainState, *, exclude_bound: bool = False, clean: float = 0.0
    ) -> None:
        """Start without reservations."""
        self._states = state
        self._exclude_bound = exclude_bound
        self._clean = clean
        self._pools: dict[str, _PoolReservation] = {}
        self._quota = [0] * len(state.shape.levels)
        self._unmet = 0
        self._changes = -1
        self._common = _Common([], [], [])
        self._enough = False
        self._most = [0] * len(state.shape.levels)

    def set(self, pool: str, gpus: int) -> None:
        """Reserve GPUs for a pool, with widths rounded up to cells. O(1).

        Raises CellsError for an unknown pool.
        """
        assert gpus >= 0, f"{pool} cannot reserve {gpus} GPUs"
        if pool not in self._states.zones:
            raise CellsError(f"no pool {pool!r}; use a pool of the cells file")
        held = self._pools.get(pool)
        if held is None:
            held = self._pools[pool] = _PoolReservation(self._states.zones[pool])
        held.gpus = gpus
        held.changes = -1

    def satisfied(self) -> bool:
        """Return whether all reservations are satisfied. O(pools + changed pools · levels²)."""
        for held in self._pools.values():
            if held.changes != held.zone.changes:
                self._renew(held)
        if self._unmet:
            return False
        if self._changes != self._states.common.changes:
            self._changes = self._states.common.changes
            self._common = _counted(self._states)
            if self._clean:
                self._most = self._most_of_one_pool()
            self._enough = common_suffices(self._states, self._common, self._quota)
        return self._enough

    def unmet(self) -> list[str]:
        """Return the pools whose bound cells cannot satisfy their reservation, in order.

        O(pools).
        """
        self.satisfied()
        return [pool for pool, held in self._pools.items() if min(held.left) < 0]

    def can_lend_common(self, level: int, above: int, *, alone: bool) -> bool:
        """Return whether a common cell may be lent, given that all reservations are met.

        O(levels²).

        Args:
            level: The level of the cell to lend.
            above: The level of the vacant cell that it is taken from.
            alone: Whether that vacant cell is an open cell as it is, not a part of one.
        """
        lent = self._common.without(self._states.shape, level, above, alone=alone)
        return common_suffices(self._states, lent, self._left_clean(above))

    def _left_clean(self, above: int) -> list[int]:
        """Return, by level, the quota cells to leave vacant when a cell of `above` is lent from.

        A vacant cell smaller than any unbound quota cell is part of one that is lent from already.
        """
        held, unbound = self._quota, self._states.unbound
        if not self._clean or not any(unbound[: above + 1]):
            return held
        rest = (max(0, free - own) for free, own in zip(unbound, held, strict=True))
        return [
            own + max(int(self._clean * more), min(most, int(MOST_CLEAN * more)))
            for own, more, most in zip(held, rest, self._most, strict=True)
        ]

    def _most_of_one_pool(self) -> list[int]:
        """Return, by level, the most unbound quota cells of one pool that are not reserved.

        O(pools · levels).
        """
        most = [0] * len(self._quota)
        for name, zone in self._states.zones.items():
            held = self._pools.get(name)
            for level in zone.wanted(0):
                own = 0 if held is None else held.quota[level]
                most[level] = max(most[level], zone.unbound(level) - own)
        return most

    def reserves(self, zone: CellZone) -> bool:
        """Return whether spare jobs must stay out of cells bound to the pool. O(1).

        This is so while the pool has a reservation. A spare job there would influence where the
        pool's own jobs go, and would keep a larger cell from merging when they end.
        """
        held = self._pools.get(zone.name)
        return self._exclude_bound or (held is not None and held.zone is zone and held.gpus > 0)

    def _renew(self, held: _PoolReservation) -> None:
        self._add(held, -1)
        held.changes = held.zone.changes
        held.quota, parts = demand(held.zone, held.gpus)
        held.left = left_of(held.zone, parts)
        self._add(held, 1)

    def _add(self, held: _PoolReservation, sign: int) -> None:
        if any(held.quota):
            for level, count in enumerate(held.quota):
                self._quota[level] += sign * count
            self._changes = -1
        self._unmet += sign * (min(held.left) < 0)


def demand(zone: CellZone, gpus: int) -> tuple[list[int], list[int]]:
    """Return the unbound quota cells, and the parts of bound cells, to reserve for `gpus` GPUs.

    Both lists are by level.
    """
    shape, free = zone.shape, zone.open.free
    quota, parts = [0] * len(free), [0] * len(free)
    mine = spare = 0  # free cells of this level in bound cells, and in quota cells reserved so far
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
    """Return the vacant cells of each level that are left besides reserved ones. O(levels)."""
    shape = zone.shape
    found = [0] * len(shape.levels)
    left = 0
    for level in reversed(shape.levels):
        left += len(zone.vacant.free[level]) - parts[level]
        found[level] = left
        left *= shape.fan[level]
    return found


def _counted(state: ChainState) -> _Common:
    """Count common cells. O(levels); O(common cells) with several quota types and loans."""
    common = state.common
    several = sum(map(bool, state.unbound)) > 1
    clean = common.clean() if several else [0] * len(state.unbound)
    return _Common(common.open.counts(), common.vacant.counts(), clean)


def common_suffices(state: ChainState, common: _Common, held: Sequence[int]) -> bool:
    """Return whether reserved quota finds vacant common cells and other quota finds open ones.

    Open cells with spare jobs in them count for quota that is not reserved. Cells that are missing
    even without spare jobs, because nodes are out, do not make the result False. O(levels).
    """
    shape, (opened, all_vacant, clean) = state.shape, common
    wanted = [level for level in shape.levels if state.unbound[level]]
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
        others = state.unbound[level] - held[level]
        vacant -= min(vacant, max(0, others - lent))
        lent -= min(lent, others)
    return True
