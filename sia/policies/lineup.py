"""The heads of a group's queues, visited by CurrentAllocation / Quota (§5.3)."""

from __future__ import annotations

from sia.state import GroupState, PoolState


class Lineup:
    """Pools with a head that may start, and which of them is next.

    A pass in which nothing fits costs O(1): the narrowest head is remembered.
    """

    def __init__(self, group: GroupState) -> None:
        """Start with no pool lined up."""
        self._group = group
        self._widths: dict[PoolState, int] = {}
        self._narrowest = 0  # of all widths; 0 when it has to be looked up again

    def put(self, pool: PoolState, width: int) -> None:
        """Line a pool up with this head, in place of any earlier one. O(1)."""
        if self._widths.get(pool) == self._narrowest:
            self._narrowest = 0
        elif width < self._narrowest:
            self._narrowest = width
        self._widths[pool] = width

    def drop(self, pool: PoolState) -> None:
        """Take a pool out, if it is in. O(1)."""
        if self._widths.pop(pool, None) == self._narrowest:
            self._narrowest = 0

    def first(self) -> PoolState | None:
        """The least ratio, ties by name, of the pools whose head fits in what is idle.

        O(1) if none fits, O(pools lined up) if one does.
        """
        widths = self._widths
        if not widths:
            return None
        if not self._narrowest:
            self._narrowest = min(widths.values())
        if self._narrowest > self._group.idle:
            return None
        idle = self._group.idle
        fitting = [pool for pool, width in widths.items() if width <= idle]
        return min(fitting, key=lambda p: (p.ratio, p.name)) if len(fitting) > 1 else fitting[0]

    def check(self) -> None:
        """The remembered width is right, or not remembered."""
        assert self._narrowest in (0, min(self._widths.values(), default=0)), self._group.name
