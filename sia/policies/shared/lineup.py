"""The heads of a group's queues, ordered by CurrentAllocation / Quota (§5.3)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container
from typing import Any

from sia.contract.views import GroupStateView, PoolStateView


def _ratio(pool: PoolStateView) -> tuple[float, str]:
    return pool.ratio, pool.name


class Lineup:
    """The pools of a group whose head may start.

    A pass in which no head fits costs O(different widths), however many pools there are.
    """

    def __init__(self, group: GroupStateView) -> None:
        """Start without pools."""
        self._group = group
        self._heads: dict[PoolStateView, int] = {}  # the width of each head
        self._widths: dict[int, int] = {}  # heads of each width

    def put(self, pool: PoolStateView, width: int) -> None:
        """Add a pool whose head has this width, or update the width. O(1)."""
        if self._heads.get(pool) == width:
            return
        self.drop(pool)
        self._heads[pool] = width
        self._widths[width] = self._widths.get(width, 0) + 1

    def drop(self, pool: PoolStateView) -> None:
        """Remove a pool if present. O(1)."""
        width = self._heads.pop(pool, None)
        if width is not None:
            self._widths[width] -= 1
            if not self._widths[width]:
                del self._widths[width]

    def first(
        self,
        by: Callable[[PoolStateView], Any] = _ratio,
        besides: Container[PoolStateView] = (),
        more: int = 0,
    ) -> PoolStateView | None:
        """Return the pool that comes first among those whose head fits in the idle GPUs, or None.

        O(pools) if there is one.

        Args:
            by: The order of the pools; by default allocation / quota, ties by name.
            besides: Pools to skip, because their head could not start earlier in this pass.
            more: GPUs that could be made idle in addition.
        """
        idle = self._group.idle + more
        if not self._widths or min(self._widths) > idle:
            return None
        fitting = [pool for pool, width in self._heads.items() if width <= idle]
        if besides:  # only with cells or preemption
            fitting = [pool for pool in fitting if pool not in besides]
        return min(fitting, key=by, default=None)

    def check(self, expected: dict[PoolStateView, int]) -> None:
        """Assert that exactly these heads are present."""
        assert self._heads == expected, self._group.name
        assert self._widths == Counter(expected.values()), self._group.name
