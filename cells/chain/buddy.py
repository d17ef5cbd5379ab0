"""A buddy allocator that keeps the largest free cells of each level."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import Generic, Protocol, TypeVar

from cells.layout.shape import Cell, Shape

SLACK = 64
"""Minimum heap size before stale entries are removed; above it, twice the number of free cells.

Small heaps are never rebuilt, and rebuilding a large one costs O(1) amortised per change.
"""


class Within(Protocol):
    """The cell in which free cells lie."""

    level: int
    """Free cells are merged up to this level."""


Root = TypeVar("Root", bound=Within)


class Buddy(Generic[Root]):
    """The free cells of a zone, in the zone's own numbers, merged as far as their roots reach.

    Each level has a dict of its free cells and a heap of their numbers. The heap may also contain
    numbers that are no longer free. Finding the lowest cell and taking any cell are O(log n)
    amortised.

    Attributes:
        free: For each level, the free cells with the root that each lies in. No free cell lies in
            another.

    Args:
        shape: The shape of the chain.
    """

    __slots__ = ("_fan", "_heaps", "_shape", "free")

    def __init__(self, shape: Shape) -> None:
        """Start without free cells."""
        self._shape = shape
        self._fan = shape.fan
        self.free: list[dict[int, Root]] = [{} for _ in shape.levels]
        self._heaps: list[list[int]] = [[] for _ in shape.levels]

    def copy(self) -> Buddy[Root]:
        """Return an independent copy. O(cells)."""
        other = Buddy[Root](self._shape)
        other.free = [cells.copy() for cells in self.free]
        other._heaps = [heap.copy() for heap in self._heaps]
        return other

    def counts(self) -> list[int]:
        """Return the number of free cells of each level. O(levels)."""
        return [len(cells) for cells in self.free]

    def first(self, level: int) -> int:
        """Return the lowest free cell of a level that has one. O(log n) amortised."""
        heap, free = self._heaps[level], self.free[level]
        while heap[0] not in free:
            heappop(heap)
        return heap[0]

    def least(self, level: int, count: int) -> list[int]:
        """Return the `count` lowest free cells of a level, in order. O(count · log n) amortised."""
        free = self.free[level]
        if len(free) <= 2 * count:
            return sorted(free)[:count]
        heap = self._heaps[level]
        found = [self.first(level)]
        while len(found) < count:
            number = heappop(heap)
            if number in free and number != found[-1]:
                found.append(number)
        for number in found:
            heappush(heap, number)
        return found

    def over(self, level: int, number: int) -> int | None:
        """Return the level of the free cell that contains a cell, or None. O(levels)."""
        fan, top = self._shape.fan, self._shape.top
        while number not in self.free[level]:
            if level == top:
                return None
            level += 1
            number //= fan[level]
        return level

    def root(self, level: int, number: int) -> Root:
        """Return the root of a cell that is free or lies in a free one. O(levels)."""
        over = self.over(level, number)
        assert over is not None, f"{Cell(level, number)} is not free"
        return self.free[over][self._shape.around(Cell(level, number), over).number]

    def pop(self, above: int, level: int) -> tuple[int, Root]:
        """Take a cell of a level from the lowest free cell of the same or a higher level.

        Args:
            above: The level of that free cell. No cell of the levels from `level` to below it is
                free.
            level: The level of the cell to take.

        Returns:
            The number of the cell and its root. O(levels + log n) amortised.
        """
        heap, free = self._heaps[above], self.free[above]
        root = free.pop(number := heappop(heap), None)
        while root is None:
            root = free.pop(number := heappop(heap), None)
        while above > level:
            fan = self._fan[above]
            number *= fan
            above -= 1
            free, buddies = self.free[above], range(number + 1, number + fan)
            for buddy in buddies:
                free[buddy] = root
            self._heaps[above][:] = buddies  # ascending, so a heap; its former entries were stale
        return number, root

    def take(self, level: int, number: int) -> None:
        """Mark a cell as used, splitting the free cell that contains it. O(levels · log n)."""
        over = self.over(level, number)
        assert over is not None, f"{Cell(level, number)} is not free"
        shape = self._shape
        while over > level:
            holder = shape.around(Cell(level, number), over).number
            root = self.free[over].pop(holder)
            first = holder * shape.fan[over]
            over -= 1
            for child in range(first, first + shape.fan[over + 1]):
                self.free[over][child] = root
                heappush(self._heaps[over], child)
            self._renew(over)
        del self.free[level][number]

    def put(self, level: int, number: int, root: Root) -> None:
        """Mark a cell as free and merge it with its buddies within its root. O(levels · log n)."""
        free, top = self.free[level], root.level
        while level < top:
            fan = self._fan[level + 1]
            if fan == 2:  # fast path: most levels are pairs
                if number ^ 1 not in free:
                    break
                del free[number ^ 1]
            elif not _pop_all(free, _buddies(number, fan)):
                break
            number //= fan
            level += 1
            free = self.free[level]
        heap = self._heaps[level]
        free[number] = root
        heappush(heap, number)
        if len(heap) > SLACK:
            self._renew(level)

    def close(self, level: int, number: int, top: int) -> None:
        """Mark all buddies of a cell up to a level as used. All of them must be free. O(levels)."""
        while level < top:
            fan, free = self._fan[level + 1], self.free[level]
            for buddy in _buddies(number, fan):
                del free[buddy]
            level += 1
            number //= fan

    def cut(self, level: int, number: int) -> list[tuple[int, int]]:
        """Mark everything in a cell as used.

        Returns:
            Levels and numbers of the parts that were free: the cell itself, or cells in it.
            O(levels · log n) if the whole cell was free, else O(cells in it).
        """
        if self.free[level].pop(number, None) is not None:
            return [(level, number)]
        if self.over(level, number) is not None:
            self.take(level, number)
            return [(level, number)]
        found = list(self.inside(level, number))
        for below, part in found:
            del self.free[below][part]
        return found

    def inside(self, level: int, number: int) -> list[tuple[int, int]]:
        """Return the free cells inside a cell that is not free as a whole. O(cells in it)."""
        found: list[tuple[int, int]] = []
        first, last = number, number + 1
        for below in range(level - 1, -1, -1):
            fan = self._shape.fan[below + 1]
            first, last = first * fan, last * fan
            free = self.free[below]
            found += [(below, part) for part in range(first, last) if part in free]
        return found

    def _renew(self, level: int) -> None:
        """Remove stale entries from the heap of a level if it is too long. O(1) amortised."""
        heap, free = self._heaps[level], self.free[level]
        if len(heap) > max(SLACK, 2 * len(free)):
            heap[:] = free
            heapify(heap)


def _pop_all(free: dict[int, Root], buddies: list[int]) -> bool:
    """Mark cells as used and return True if all of them are free; else change nothing."""
    for buddy in buddies:
        if buddy not in free:
            return False
    for buddy in buddies:
        del free[buddy]
    return True


def _buddies(number: int, fan: int) -> list[int]:
    """Return the other children of a cell's parent."""
    first = number - number % fan
    return [buddy for buddy in range(first, first + fan) if buddy != number]
