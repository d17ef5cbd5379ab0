"""Zones of a chain: the common cells, each pool's bound cells, and pinned cells."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from operator import mul

from cells.chain.buddy import Buddy
from cells.layout.shape import Cell, Shape


class Root:
    """A physical cell bound to a quota cell or pinned; or the root of all common cells.

    A zone numbers its cells independently of where they are: a pool's first quota cell of a level
    always has number 0. So allocations in a pool do not depend on where its cells are bound.

    Attributes:
        zone: The zone it belongs to.
        level: Its level. Free cells in it merge up to this level.
        number: Its physical number.
        slot: Its number among the bound cells of its zone and level.
        shifts: For each level up to its own, the physical number minus the zone's number.
        jobs: The number of dedicated jobs' cells in it.
    """

    __slots__ = ("jobs", "level", "number", "shifts", "slot", "zone")

    def __init__(self, zone: CellZone, level: int, number: int) -> None:
        """Build a root that is not bound yet."""
        self.zone = zone
        self.level = level
        self.number = number
        self.slot = 0
        self.shifts: tuple[int, ...] = (0,) * (level + 1)
        self.jobs = 0

    def cell(self) -> Cell:
        """Return the physical cell."""
        return Cell(self.level, self.number)


class CellZone:
    """Cells of one pool, pinned cells of one name, or all cells that are not bound.

    Attributes:
        name: The pool, or "" for the common cells.
        quota: Quota cells of each level.
        bound: The number of quota cells of each level that are bound to physical cells.
        pin: The pinned cell, if this zone is for one. It stays bound.
        open: Healthy cells without a dedicated job, merged. Spare jobs may run in them.
        vacant: Open cells without a spare job, merged. The same object as `open` if all are.
        changes: A counter that increases whenever the cells or free cells of the zone may change.
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
        """Give a root the lowest free slot of its level. O(log n).

        Args:
            root: The root.
            slot: A specific slot, at least `highest`. The slots skipped become free.
        """
        level, size = root.level, self.shape.size
        slots = self._slots[level]
        root.zone = self
        if slot < 0:
            slot = heappop(slots) if slots else self.bound[level]
        else:
            slots += range(self.highest(level), slot)  # ascending, so the list stays a heap
        root.slot = slot
        shift = (root.number - slot) * size[level] - level * self.shape.region  # in leaves
        root.shifts = tuple([shift // leaves for leaves in size[: level + 1]])
        self.bound[level] += 1

    def highest(self, level: int) -> int:
        """Return one more than the highest slot of a level ever used."""
        return self.bound[level] + len(self._slots[level])

    def leave(self, root: Root) -> None:
        """Free a root's slot. O(log n)."""
        self.bound[root.level] -= 1
        heappush(self._slots[root.level], root.slot)

    def split_vacant(self) -> None:
        """Make `vacant` a copy of `open` if they are the same object. O(cells) in that case."""
        if self.vacant is self.open:
            self.vacant = self.open.copy()

    def merge_vacant(self) -> None:
        """Make `vacant` the same object as `open` again if they are equal. O(levels)."""
        if self.vacant is not self.open and self.vacant.counts() == self.open.counts():
            self.vacant = self.open

    def unbound(self, level: int) -> int:
        """Return the number of unbound quota cells of a level."""
        return max(0, self.quota[level] - self.bound[level])

    def gpus(self) -> int:
        """Return the GPUs of its quota, or of its pinned cell."""
        size = self.shape.size
        return size[self.pin.level] if self.pin else sum(map(mul, self.quota, size))

    def wanted(self, level: int) -> list[int]:
        """Return the levels, from `level` up, with unbound quota cells, smallest first.

        O(levels).
        """
        quota, bound = self.quota, self.bound
        return [above for above in range(level, len(quota)) if quota[above] > bound[above]]

    def clean(self) -> list[int]:
        """Return the number of open cells of each level without spare jobs.

        O(cells of the smaller set).
        """
        if self.vacant is self.open:
            return self.open.counts()
        pairs = zip(self.open.free, self.vacant.free, strict=True)
        return [sum(i in more for i in few) for few, more in (sorted(p, key=len) for p in pairs)]
