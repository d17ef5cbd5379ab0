"""Who lends next: the pool of a group with most GPUs that it may lend."""

from __future__ import annotations

from heapq import heapify, heappop, heappush

from sia.state.state import GroupState, PoolState


class LenderOrder:
    """The pools of a group by unused GPUs within their limit, most first, ties by name.

    A heap with an entry for each change; entries that no longer hold are dropped when they are met.
    O(log pools) a change and a question, amortised.
    """

    def __init__(self, group: GroupState) -> None:
        """Order the pools as they are now."""
        self._pools = group.pools
        self._places = {pool: i for i, pool in enumerate(group.pools)}  # the order of their names
        self._heap: list[tuple[int, int]] = []
        self._rebuild()

    def beside(self, pools: list[PoolState]) -> LenderOrder:
        """The same of pools in the same places, some of which may be `replaced`. O(pools)."""
        made = object.__new__(LenderOrder)
        made._pools, made._places, made._heap = pools, self._places.copy(), self._heap[:]
        return made

    def replaced(self, pool: PoolState, by: PoolState) -> None:
        """Another object stands in the place of a pool. O(1)."""
        self._places[by] = self._places[pool]

    def changed(self, pool: PoolState) -> None:
        """Take in that what a pool may lend has changed."""
        heappush(self._heap, (-pool.offers, self._places[pool]))
        if len(self._heap) > 2 * len(self._pools) + 64:
            self._rebuild()

    def most(self, besides: PoolState) -> PoolState:
        """The other pool that offers most; there must be one with something unused."""
        heap, aside = self._heap, []
        while True:
            minus, place = heap[0]
            pool = self._pools[place]
            if -minus != pool.offers:
                heappop(heap)
            elif pool is besides:
                aside.append(heappop(heap))
            else:
                break
        for entry in aside:
            heappush(heap, entry)
        return pool

    def check(self) -> None:
        """Assert that every pool stands in the heap with what it offers."""
        entries = set(self._heap)
        for i, pool in enumerate(self._pools):
            assert (-pool.offers, i) in entries, pool.name

    def _rebuild(self) -> None:
        self._heap = [(-pool.offers, i) for i, pool in enumerate(self._pools)]
        heapify(self._heap)
