"""A buddy allocator: the largest free cells, by level."""

from __future__ import annotations

from sortedcontainers import SortedSet

from cells.shape import Cell, Shape


class Buddy:
    """Free cells of a part of a chain, merged as far as they can be.

    Args:
        shape: Geometry of the chain.
    """

    def __init__(self, shape: Shape) -> None:
        """Start with nothing free."""
        self._shape = shape
        self.free: list[SortedSet[int]] = [SortedSet() for _ in shape.levels]
        self.changes = 0

    def copy(self) -> Buddy:
        """One of its own with the same cells. O(cells)."""
        other = Buddy(self._shape)
        other.free = [SortedSet(indices) for indices in self.free]
        other.changes = self.changes
        return other

    def counts(self) -> list[int]:
        """Number of free cells of each level, none counted within another. O(levels)."""
        return [len(indices) for indices in self.free]

    def over(self, cell: Cell) -> Cell | None:
        """The free cell that holds it, or None. O(levels)."""
        level, index = cell
        fan, top = self._shape.fan, self._shape.top
        while index not in self.free[level]:
            if level == top:
                return None
            level += 1
            index //= fan[level]
        return Cell(level, index)

    def smallest(self, level: int) -> Cell | None:
        """The first of the smallest free cells that hold one of a level. O(levels)."""
        for above in range(level, self._shape.top + 1):
            if self.free[above]:
                return Cell(above, self.free[above][0])
        return None

    def within(self, level: int, around: Cell) -> Cell | None:
        """As `smallest`, but inside a cell, or the free cell that holds it. O(levels · log n)."""
        size = self._shape.size
        for above in range(level, around.level):
            ratio = size[around.level] // size[above]
            first, last = around.number * ratio, (around.number + 1) * ratio - 1
            found = next(self.free[above].irange(first, last), None)
            if found is not None:
                return Cell(above, found)
        return around if self.over(around) else None

    def take(self, cell: Cell) -> None:
        """Make a cell no longer free, splitting the one that holds it. O(levels · log n)."""
        holder = self.over(cell)
        assert holder is not None, f"{cell} is not free"
        self.changes += 1
        level, index = holder
        self.free[level].remove(index)
        shape = self._shape
        while level > cell.level:
            fan = shape.fan[level]
            level, first = level - 1, index * fan
            index = shape.around(cell, level).number
            free = self.free[level]
            for buddy in range(first, first + fan):
                if buddy != index:
                    free.add(buddy)

    def put(self, cell: Cell, root: int) -> None:
        """Make a cell free; merge it with its buddies up to a level. O(levels · log n)."""
        self.changes += 1
        level, index = cell
        shape, free = self._shape, self.free
        while level < root:
            fan = shape.fan[level + 1]
            first = index - index % fan
            buddies = [i for i in range(first, first + fan) if i != index]
            if not all(i in free[level] for i in buddies):
                break
            for buddy in buddies:
                free[level].remove(buddy)
            level, index = level + 1, index // fan
        free[level].add(index)
