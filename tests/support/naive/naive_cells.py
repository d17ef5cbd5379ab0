"""A naive model of cells that tries every place, without buddies or free lists."""

from __future__ import annotations

from cells.chain.chain_state import ChainState
from cells.layout.shape import Cell


class Naive:
    """One chain as sets of leaves, computed from its jobs and bound cells."""

    def __init__(self, state: ChainState) -> None:
        self.shape = state.shape
        self.every = range(state.tops * state.shape.size[-1])
        self.lost = self._leaves([Cell(state.shape.node, node) for node in state.out])
        self.given = self._leaves(state.cells_given())
        self.lent = self._leaves(state.loans.jobs)
        self.owner = {
            leaf: root.zone.name
            for root in state.roots.values()
            for leaf in self._leaves([root.cell()])
        }
        self.unbound = {
            pool: [zone.unbound(level) for level in state.shape.levels]
            for pool, zone in state.zones.items()
        }

    def _leaves(self, cells) -> set[int]:
        return {leaf for cell in cells for leaf in self.shape.leaves(cell)}

    def cells(self, level: int) -> list[set[int]]:
        """Return every cell of a level, as its set of leaves."""
        size = self.shape.size[level]
        return [set(self.every[first : first + size]) for first in self.every[::size]]

    def missing(self) -> list[int]:
        """Return quota cells without a place, the largest first, ignoring spare jobs."""
        free = set(self.every) - self.lost - self.owner.keys()
        found = []
        for level in reversed(self.shape.levels):
            wanted = sum(unbound[level] for unbound in self.unbound.values())
            for cell in self.cells(level):
                if wanted and cell <= free:
                    free -= cell
                    wanted -= 1
            found.append(wanted)
        return found

    def bindable(self, pool: str, level: int) -> list[set[int]]:
        """Return cells of a level that the pool may bind without harm to others."""
        if not self.unbound[pool][level]:
            return []
        return [
            cell
            for cell in self.cells(level)
            if not cell & self.owner.keys() and self._harmless(pool, level, cell)
        ]

    def _harmless(self, pool: str, level: int, cell: set[int]) -> bool:
        before = self.missing()
        self.unbound[pool][level] -= 1
        self.owner |= dict.fromkeys(cell, pool)
        after = self.missing()
        self.unbound[pool][level] += 1
        for leaf in cell:
            del self.owner[leaf]
        return all(more <= fewer for more, fewer in zip(after, before, strict=True))

    def can_have(self, pool: str, level: int, *, over_spare: bool = False) -> bool:
        """Return whether a cell of a level is free in cells that the pool has bound or may bind."""
        taken = self.given | self.lost | (set() if over_spare else self.lent)
        free = [cell for cell in self.cells(level) if not cell & taken]
        mine = {leaf for leaf, owner in self.owner.items() if owner == pool}
        if any(cell <= mine for cell in free):
            return True
        return any(
            cell <= site
            for above in self.shape.levels[level:]
            for site in self.bindable(pool, above)
            for cell in free
        )
