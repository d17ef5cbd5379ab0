"""Whose a part of a chain is: the common cells, and each pool's quota."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from operator import mul

from cells.chain.buddy import Buddy
from cells.layout.shape import Cell, Shape


class Root:
    """A physical cell that stands for a quota cell or a pinned one; or all common cells.

    Cells in it are numbered anew in its zone: a pool's first quota cell of a level is always its
    number 0, wherever it is bound. So what a pool gets does not depend on where that is.

    Attributes:
        zone: Whose it is.
        level: Its level; free cells in it merge up to this.
        number: Its number.
        slot: Its number among the bound cells of its zone and level.
        shifts: What numbers of the zone lack to those of the chain, by level up to its own.
        jobs: Cells of dedicated jobs in it.
    """

    __slots__ = ("jobs", "level", "number", "shifts", "slot", "zone")

    def __init__(self, zone: CellZone, level: int, number: int) -> None:
        """Not bound yet."""
        self.zone = zone
        self.level = level
        self.number = number
        self.slot = 0
        self.shifts: tuple[int, ...] = (0,) * (level + 1)
        self.jobs = 0

    def cell(self) -> Cell:
        """The physical cell."""
        return Cell(self.level, self.number)


class CellZone:
    """Cells of one pool, pinned cells of one name, or those bound to nobody.

    Attributes:
        name: The pool; for the common cells, empty.
        quota: Quota cells of each level.
        bound: Of these, how many are bound to physical cells.
        pin: The pinned cell, if this is one; it stays bound.
        open: Healthy cells without a dedicated job, merged. Spare jobs may run in them.
        vacant: Those of them without a spare job, merged; the same object where all are.
        changes: Differs whenever what the zone has, or has free, may differ.
    """

    __slots__ = ("_slots", "bound", "changes", "name", "open", "pin", "quota", "shape", "vacant")

    def __init__(
        self, shape: Shape, name: str, quota: Sequence[int] = (), pin: Cell | None = None
    ) -> None:
        """Start with nothing bound."""
        self.shape = shape
        self.name = name
        self.quota = list(quota) or [0] * len(shape.levels)
        self.bound = [0] * len(shape.levels)
        self.pin = pin
        self.open = Buddy[Root](shape)
        self.vacant = self.open
        self.changes = 0
        self._slots: list[list[int]] = [[] for _ in shape.levels]

    def enter(self, root: Root, slot: int = -1) -> None:
        """Give a root the lowest number that no other of its level has here. O(log n).

        Or another, `highest` at least: then those between are free.
        """
        level, size = root.level, self.shape.size
        slots = self._slots[level]
        root.zone = self
        if slot < 0:
            slot = heappop(slots) if slots else self.bound[level]
        else:
            slots += range(self.highest(level), slot)  # ascending: it stays a heap
        root.slot = slot
        shift = (root.number - slot) * size[level] - level * self.shape.region  # in leaves
        root.shifts = tuple([shift // leaves for leaves in size[: level + 1]])
        self.bound[level] += 1

    def highest(self, level: int) -> int:
        """The number that comes after all that roots of a level have, or had and gave back."""
        return self.bound[level] + len(self._slots[level])

    def leave(self, root: Root) -> None:
        """Take a root's number back. O(log n)."""
        self.bound[root.level] -= 1
        heappush(self._slots[root.level], root.slot)

    def part(self) -> None:
        """Keep vacant cells apart from open ones. O(cells) if they were not."""
        if self.vacant is self.open:
            self.vacant = self.open.copy()

    def join(self) -> None:
        """Keep them as one where they are the same. O(levels)."""
        if self.vacant is not self.open and self.vacant.counts() == self.open.counts():
            self.vacant = self.open

    def unbound(self, level: int) -> int:
        """Quota cells of a level that no physical cell stands for."""
        return max(0, self.quota[level] - self.bound[level])

    def gpus(self) -> int:
        """GPUs of its quota, or of its pinned cell."""
        size = self.shape.size
        return size[self.pin.level] if self.pin else sum(map(mul, self.quota, size))

    def wanted(self, level: int) -> list[int]:
        """Levels, from this one up, of unbound quota cells; the smallest first. O(levels)."""
        quota, bound = self.quota, self.bound
        return [above for above in range(level, len(quota)) if quota[above] > bound[above]]

    def clean(self) -> list[int]:
        """Open cells of each level with no spare job in them. O(cells of the smaller set)."""
        if self.vacant is self.open:
            return self.open.counts()
        pairs = zip(self.open.free, self.vacant.free, strict=True)
        return [sum(i in more for i in few) for few, more in (sorted(p, key=len) for p in pairs)]
