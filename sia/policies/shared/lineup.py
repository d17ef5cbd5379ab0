"""The heads of a group's queues, visited by CurrentAllocation / Quota (§5.3)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container
from typing import Any

from sia.state.state import GroupState, PoolState


def _ratio(pool: PoolState) -> tuple[float, str]:
    return pool.ratio, pool.name


class Lineup:
    """Pools with a head that may start, and which of them is next.

    A pass in which nothing fits costs O(different widths), however many pools are lined up.
    """

    def __init__(self, group: GroupState) -> None:
        """Start with no pool lined up."""
        self._group = group
        self._heads: dict[PoolState, int] = {}  # the width of each head
        self._widths: dict[int, int] = {}  # heads of each width

    def put(self, pool: PoolState, width: int) -> None:
        """Line a pool up with a head of this width, in place of any earlier one. O(1)."""
        if self._heads.get(pool) == width:
            return
        self.drop(pool)
        self._heads[pool] = width
        self._widths[width] = self._widths.get(width, 0) + 1

    def drop(self, pool: PoolState) -> None:
        """Take a pool out, if it is in. O(1)."""
        width = self._heads.pop(pool, None)
        if width is not None:
            self._widths[width] -= 1
            if not self._widths[width]:
                del self._widths[width]

    def first(
        self,
        by: Callable[[PoolState], Any] = _ratio,
        besides: Container[PoolState] = (),
        more: int = 0,
    ) -> PoolState | None:
        """The least `by`, a ratio with ties by name, of the pools whose head fits in what is idle.

        Not one of `besides`, which were found to have no room in this pass. `more` GPUs could be
        made idle. O(pools lined up) if there is one.
        """
        idle = self._group.idle + more
        if not self._widths or min(self._widths) > idle:
            return None
        fitting = [pool for pool, width in self._heads.items() if width <= idle]
        if besides:  # only in cells, or where jobs are stopped for others
            fitting = [pool for pool in fitting if pool not in besides]
        return min(fitting, key=by, default=None)

    def check(self, expected: dict[PoolState, int]) -> None:
        """Assert that these heads, and no others, are lined up."""
        assert self._heads == expected, self._group.name
        assert self._widths == Counter(expected.values()), self._group.name
