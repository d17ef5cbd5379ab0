"""A buddy allocator: the largest free cells, by level."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import Generic, Protocol, TypeVar

from cells.layout.shape import Cell, Shape

SLACK = 64
"""Entries that a heap may hold before it is built anew, however few cells are free; else twice as
many as these. So few cost nothing, and building anew is paid for by the changes since."""


class Within(Protocol):
    """What free cells lie in."""

    level: int
    """Cells are merged up to this level."""


Root = TypeVar("Root", bound=Within)


class Buddy(Generic[Root]):
    """Free cells of a zone, in its own numbers, merged as far as their roots reach.

    Each level has its free cells in a dict, and their numbers in a heap, which may name cells too
    that are no longer free: so the least is found, and any cell taken, in O(log n) amortised.

    Attributes:
        free: Free cells of each level, none within another, each with the root it lies in.

    Args:
        shape: Geometry of the chain.
    """

    __slots__ = ("_fan", "_heaps", "_shape", "free")

    def __init__(self, shape: Shape) -> None:
        """Start with nothing free."""
        self._shape = shape
        self._fan = shape.fan
        self.free: list[dict[int, Root]] = [{} for _ in shape.levels]
        self._heaps: list[list[int]] = [[] for _ in shape.levels]

    def copy(self) -> Buddy[Root]:
        """One of its own with the same cells. O(cells)."""
        other = Buddy[Root](self._shape)
        other.free = [cells.copy() for cells in self.free]
        other._heaps = [heap.copy() for heap in self._heaps]
        return other

    def counts(self) -> list[int]:
        """Number of free cells of each level. O(levels)."""
        return [len(cells) for cells in self.free]

    def first(self, level: int) -> int:
        """The least free cell of a level that has one. O(log n) amortised."""
        heap, free = self._heaps[level], self.free[level]
        while heap[0] not in free:
            heappop(heap)
        return heap[0]

    def least(self, level: int, count: int) -> list[int]:
        """So many free cells of a level, the least ones, in order. O(count · log n) amortised."""
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
        """Level of the free cell that holds a cell, or None. O(levels)."""
        fan, top = self._shape.fan, self._shape.top
        while number not in self.free[level]:
            if level == top:
                return None
            level += 1
            number //= fan[level]
        return level

    def root(self, level: int, number: int) -> Root:
        """The root of a cell that is free, or lies in a free one. O(levels)."""
        over = self.over(level, number)
        assert over is not None, f"{Cell(level, number)} is not free"
        return self.free[over][self._shape.around(Cell(level, number), over).number]

    def pop(self, above: int, level: int) -> tuple[int, Root]:
        """Take a cell of a level from the least free one of a level above, or of its own.

        None must be free of the levels below that one. O(levels + log n) amortised.
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
            self._heaps[above][:] = buddies  # ascending: a heap; what it named was not free
        return number, root

    def take(self, level: int, number: int) -> None:
        """Make a cell no longer free, splitting the one that holds it. O(levels · log n)."""
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
        """Make a cell free; merge it with its buddies within its root. O(levels · log n)."""
        free, top = self.free[level], root.level
        while level < top:
            fan = self._fan[level + 1]
            if fan == 2:  # mostly pairs
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
        """Make all of a cell's buddies no longer free, up to a level; they all are. O(levels)."""
        while level < top:
            fan, free = self._fan[level + 1], self.free[level]
            for buddy in _buddies(number, fan):
                del free[buddy]
            level += 1
            number //= fan

    def cut(self, level: int, number: int) -> list[tuple[int, int]]:
        """Make all of a cell no longer free.

        Returns:
            Levels and numbers of what was free: the cell, or cells in it. O(levels · log n) if it
            was free as a whole, else O(cells in it).
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
        """Free cells inside a cell that is not free as a whole. O(cells in it)."""
        found: list[tuple[int, int]] = []
        first, last = number, number + 1
        for below in range(level - 1, -1, -1):
            fan = self._shape.fan[below + 1]
            first, last = first * fan, last * fan
            free = self.free[below]
            found += [(below, part) for part in range(first, last) if part in free]
        return found

    def _renew(self, level: int) -> None:
        """Let the heap of a level, if it is too long, name free cells alone. O(1) amortised."""
        heap, free = self._heaps[level], self.free[level]
        if len(heap) > max(SLACK, 2 * len(free)):
            heap[:] = free
            heapify(heap)


def _pop_all(free: dict[int, Root], buddies: list[int]) -> bool:
    """Make cells no longer free if they all are."""
    for buddy in buddies:
        if buddy not in free:
            return False
    for buddy in buddies:
        del free[buddy]
    return True


def _buddies(number: int, fan: int) -> list[int]:
    """The other children of a cell's parent."""
    first = number - number % fan
    return [buddy for buddy in range(first, first + fan) if buddy != number]
