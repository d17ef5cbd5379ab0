"""The order of lenders in a sharing group: the pool that may lend most comes first."""

from __future__ import annotations

from heapq import heapify, heappop, heappush, heapreplace

from sia.state.state import GroupState, PoolState


class LenderOrder:
    """The pools of a group by unused GPUs within their lend limit, most first, ties by name.

    This is a heap. Pools that have changed get another entry when somebody asks for a lender, and
    stale entries are removed when they reach the top. O(1) for each change, O(log pools) amortised
    for each of these pools and each query.
    """

    def __init__(self, group: GroupState) -> None:
        """Order the pools as they are now."""
        self._pools = group.pools
        self._places = {pool: i for i, pool in enumerate(group.pools)}  # pools are sorted by name
        self._heap: list[tuple[int, int]] = []
        self._changed: dict[PoolState, None] = {}  # since the last query
        self._rebuild()

    def changed(self, pool: PoolState) -> None:
        """Record that the GPUs that a pool may lend have changed."""
        self._changed[pool] = None

    def _update(self) -> None:
        """Give the pools that have changed their entries."""
        heap = self._heap
        for pool in self._changed:
            place = self._places[pool]
            entry = -pool.available, place
            if heap[0][1] == place:  # as after each loan of the first lender
                heapreplace(heap, entry)
            else:
                heappush(heap, entry)
        self._changed.clear()
        if len(heap) > 2 * len(self._pools) + 64:
            self._rebuild()

    def most(self, besides: PoolState) -> PoolState:
        """Return the pool, other than `besides`, that may lend most.

        Some pool must have unused GPUs.
        """
        if self._changed:
            self._update()
        heap, aside = self._heap, []
        while True:
            minus, place = heap[0]
            pool = self._pools[place]
            if -minus != pool.available:
                heappop(heap)
            elif pool is besides:
                aside.append(heappop(heap))
            else:
                break
        for entry in aside:
            heappush(heap, entry)
        return pool

    def check(self) -> None:
        """Assert that the heap has a current entry for every pool that has not changed."""
        entries = set(self._heap)
        for i, pool in enumerate(self._pools):
            assert (-pool.available, i) in entries or pool in self._changed, pool.name

    def _rebuild(self) -> None:
        self._heap = [(-pool.available, i) for i, pool in enumerate(self._pools)]
        heapify(self._heap)
