"""Whether a cell can be had, by trying every place: knows nothing of buddies or free lists."""

from __future__ import annotations

from cells.cells import Cells
from cells.ground import Ground
from cells.shape import Cell


def leaves(ground: Ground, cell: Cell) -> frozenset[int]:
    return frozenset(ground.shape.leaves(cell))


def cells_of(ground: Ground, level: int) -> list[Cell]:
    shape = ground.shape
    return [Cell(level, i) for i in range(ground.tops * shape.size[shape.top] // shape.size[level])]


class Naive:
    """One chain as sets of GPUs, read off what jobs and bound cells there are."""

    def __init__(self, cells: Cells) -> None:
        self.ground = ground = next(iter(cells._ground.values()))
        self.lost = {
            leaf
            for node in ground.out
            for leaf in ground.shape.leaves(Cell(ground.shape.node, node))
        }
        self.given = {
            leaf
            for level, numbers in enumerate(ground.given)
            for number in numbers
            for leaf in ground.shape.leaves(Cell(level, number))
        }
        self.lent = {leaf for cell in ground.lent for leaf in ground.shape.leaves(cell)}
        self.roots = {root.cell(): root.zone.name for root in ground.roots.values()}

    def common(self) -> set[int]:
        """GPUs that any quota cell could be bound to."""
        everything = {
            leaf for cell in cells_of(self.ground, 0) for leaf in leaves(self.ground, cell)
        }
        bound = {leaf for cell in self.roots for leaf in leaves(self.ground, cell)}
        return everything - bound - self.lost

    def unbound(self) -> dict[str, list[int]]:
        """Levels of each pool's unbound quota cells."""
        ground = self.ground
        return {
            pool: [k for k in ground.shape.levels for _ in range(zone.unbound(k))]
            for pool, zone in ground.zones.items()
        }

    def packs(self, free: set[int], levels: list[int]) -> bool:
        """Cells of these levels find room in these GPUs together: every way is tried."""
        if not levels:
            return True
        first, *others = sorted(levels, reverse=True)
        return any(
            self.packs(free - leaves(self.ground, cell), others)
            for cell in cells_of(self.ground, first)
            if leaves(self.ground, cell) <= free
        )

    def can_have(self, pool: str, level: int, *, over_spare: bool = False) -> bool:
        """Some cell of the pool's quota is free for it, and leaves all others theirs."""
        ground, spare = self.ground, set() if over_spare else self.lent
        for root, name in self.roots.items():
            free = set(leaves(ground, root)) - self.given - self.lost - spare
            if name == pool and any(leaves(ground, c) <= free for c in cells_of(ground, level)):
                return True
        unbound = self.unbound()
        others = [k for levels in unbound.values() for k in levels]
        for quota in {k for k in unbound[pool] if k >= level}:
            rest = others.copy()
            rest.remove(quota)
            for root in cells_of(ground, quota):
                mine = leaves(ground, root)
                if mine <= self.common() and self.packs(self.common() - mine, rest):
                    free = set(mine) - spare
                    if any(leaves(ground, c) <= free for c in cells_of(ground, level)):
                        return True
        return False

    def all_fit(self) -> bool:
        """Nothing is missing: all unbound quota finds cells, were spare jobs gone."""
        levels = [k for of_pool in self.unbound().values() for k in of_pool]
        return self.packs(self.common(), levels)
