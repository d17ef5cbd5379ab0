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

A spare pass keeps one `Holds` for each window; setting one pool's number costs O(levels²), asking
for a spare start O(pools + levels²) besides the search for a place.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from cells.ground import Ground
from cells.spec import CellsError
from cells.zones import Zone


@dataclass(slots=True)
class _Held:
    """What one pool holds back: cells of its bound ones, and quota cells to be bound."""

    gpus: int
    stamp: tuple[int, ...] = ()
    quota: list[int] = field(default_factory=list)
    parts: list[int] = field(default_factory=list)
    kept: bool = True


class Holds:
    """Numbers of GPUs that the pools of one chain hold back in one window.

    Args:
        ground: The chain.
    """

    def __init__(self, ground: Ground) -> None:
        """Nothing is held back."""
        self._ground = ground
        self._pools: dict[str, _Held] = {}
        self._quota = [0] * len(ground.shape.levels)
        self._broken = 0

    def set(self, pool: str, gpus: int) -> None:
        """Hold back so many GPUs (widths rounded up to cells) of a pool. O(levels²).

        Raises CellsError for an unknown pool.
        """
        assert gpus >= 0, f"{pool} cannot hold back {gpus} GPUs"
        if pool not in self._ground.zones:
            raise CellsError(f"no pool {pool!r}; name one of the cells file's")
        held = self._pools.setdefault(pool, _Held(0))
        held.gpus = gpus
        self._renew(pool, held)

    def kept(self) -> bool:
        """All that is held back is free of spare jobs. O(pools + levels²)."""
        for pool, held in self._pools.items():
            zone = self._ground.zones.get(pool)
            if zone is None or held.stamp != zone.stamp():
                self._renew(pool, held)
        return not self._broken and common_suffices(self._ground, self._quota)

    def unmet(self) -> list[str]:
        """Pools whose bound cells no longer have what they hold back; in order. O(pools)."""
        self.kept()
        return [pool for pool, held in self._pools.items() if not held.kept]

    def _renew(self, pool: str, held: _Held) -> None:
        zone = self._ground.zones.get(pool)
        self._add(held, -1)
        if zone is None:
            held.quota, held.parts, held.kept = [], [], True
        else:
            held.stamp = zone.stamp()
            held.quota, held.parts = demand(zone, held.gpus)
            held.kept = bound_suffices(zone, held.parts)
        self._add(held, 1)

    def _add(self, held: _Held, sign: int) -> None:
        for level, count in enumerate(held.quota):
            self._quota[level] += sign * count
        self._broken += sign * (not held.kept)


def demand(zone: Zone, gpus: int) -> tuple[list[int], list[int]]:
    """Unbound quota cells, and parts of bound ones, by level, that are held for so many GPUs."""
    shape = zone.shape
    unbound = [zone.unbound(level) for level in shape.levels]
    quota, parts = [0] * len(unbound), [0] * len(unbound)
    mine = spare = 0  # cells of this level in bound cells, and left of quota cells held so far
    rest = gpus
    for level in reversed(shape.levels):
        fan = shape.fan[level + 1] if level < shape.top else 1
        mine, spare = mine * fan + len(zone.open.free[level]), spare * fan
        want = rest // shape.size[level]
        taken = min(want, spare)
        part = min(want - taken, mine)
        parts[level], mine, spare = part, mine - part, spare - taken
        taken += part
        for above in range(level, len(unbound)):
            ratio = shape.size[above] // shape.size[level]
            cells = min(-(-(want - taken) // ratio), unbound[above] - quota[above])
            quota[above] += cells
            got = min(want - taken, cells * ratio)
            taken, spare = taken + got, spare + cells * ratio - got
        rest -= taken * shape.size[level]
    if gpus and sum(map(bool, zone.quota)) > 1:
        most = [min(unbound[k], -(-gpus // shape.size[k])) for k in shape.levels]
        quota = [max(pair) for pair in zip(quota, most, strict=True)]
    return quota, parts


def bound_suffices(zone: Zone, parts: list[int]) -> bool:
    """The zone has such cells free of spare jobs. O(levels)."""
    left = 0
    for level in reversed(zone.shape.levels):
        fan = zone.shape.fan[level + 1] if level < zone.shape.top else 1
        left = left * fan + len(zone.vacant.free[level]) - parts[level]
        if left < 0:
            return False
    return True


def common_suffices(ground: Ground, held: list[int]) -> bool:
    """Held quota cells find vacant common cells, and all others of unbound quota an open one.

    Open cells with spare jobs in them stand for the quota that is not held. What is missing even
    without spare jobs (nodes are out) is no reason to say no. O(levels) where the unbound quota is
    of one type.
    """
    shape, common = ground.shape, ground.common
    first = max((level for level in shape.levels if ground.unbound[level]), default=None)
    if first is None:
        return True
    clean: list[int] | None = None
    above = range(first, len(shape.levels))
    ratio = [size // shape.size[first] for size in shape.size]
    vacant = sum(len(common.vacant.free[level]) * ratio[level] for level in above)
    lent = sum(len(common.open.free[level]) * ratio[level] for level in above) - vacant
    for level in range(first, -1, -1):
        if level < first:
            if not any(ground.unbound[: level + 1]):
                break
            clean = clean or common.clean()
            vacant = vacant * shape.fan[level + 1] + clean[level]
            lent = lent * shape.fan[level + 1] + len(common.open.free[level]) - clean[level]
        vacant -= held[level]
        if vacant < 0:
            return False
        others = ground.unbound[level] - held[level]
        vacant -= min(vacant, max(0, others - lent))
        lent -= min(lent, others)
    return True
