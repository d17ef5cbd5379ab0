"""Whose a part of a chain is: the common cells, and each pool's quota."""

from __future__ import annotations

from collections.abc import Sequence
from operator import mul

from cells.buddy import Buddy
from cells.shape import Cell, Shape


class Zone:
    """Cells of one pool, pinned cells of one name, or those bound to nobody.

    Attributes:
        name: The pool; for the common cells, empty.
        quota: Quota cells of each level.
        bound: Of these, how many are bound to physical cells.
        pin: The pinned cell, if this is one; it stays bound.
        open: Healthy cells without a dedicated job, merged. Spare jobs may run in them.
        vacant: Those of them without a spare job, merged.
    """

    def __init__(
        self, shape: Shape, name: str, quota: Sequence[int] = (), pin: Cell | None = None
    ) -> None:
        """Start with nothing bound."""
        self.shape = shape
        self.name = name
        self.quota = list(quota) or [0] * len(shape.levels)
        self.bound = [0] * len(shape.levels)
        self.pin = pin
        self.open = Buddy(shape)
        self.vacant = Buddy(shape)

    def copy(self) -> Zone:
        """One of its own. O(cells)."""
        other = Zone(self.shape, self.name, self.quota, self.pin)
        other.bound = self.bound[:]
        other.open, other.vacant = self.open.copy(), self.vacant.copy()
        return other

    def unbound(self, level: int) -> int:
        """Quota cells of a level that no physical cell stands for."""
        return max(0, self.quota[level] - self.bound[level])

    def gpus(self) -> int:
        """GPUs of its quota, or of its pinned cell."""
        size = self.shape.size
        return size[self.pin.level] if self.pin else sum(map(mul, self.quota, size))

    def smallest_quota(self, level: int) -> list[int]:
        """Levels, from this one up, of unbound quota cells; the smallest first. O(levels)."""
        return [above for above in range(level, len(self.quota)) if self.unbound(above)]

    def stamp(self) -> tuple[int, ...]:
        """Differs whenever what the zone has free may differ. O(levels)."""
        return self.open.changes, self.vacant.changes, *self.quota, *self.bound

    def clean(self) -> list[int]:
        """Open cells of each level with no spare job in them. O(cells of the smaller set)."""
        pairs = zip(self.open.free, self.vacant.free, strict=True)
        return [sum(i in more for i in few) for few, more in (sorted(p, key=len) for p in pairs)]


class Root:
    """A physical cell that stands for a quota cell or a pinned one.

    Attributes:
        zone: Whose it is.
        jobs: Cells of dedicated jobs in it.
    """

    __slots__ = ("jobs", "zone")

    def __init__(self, zone: Zone, jobs: int = 0) -> None:
        """Bind to a zone."""
        self.zone = zone
        self.jobs = jobs
