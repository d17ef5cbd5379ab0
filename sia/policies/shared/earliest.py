"""Finds the first of many items, in order of arrival, whose value is at most a limit."""

from __future__ import annotations

from math import inf
from sys import float_info

MOST = float_info.max
"""The largest value of an item; infinity marks empty leaves."""

SMALLEST = 8
"""Leaves of an empty tree."""


class Earliest:
    """Items in order of their sequence numbers, each with a value.

    A binary tree over the items in which each node has the lowest value below it. O(log n) to add,
    remove and find. Leaves of removed items are reclaimed when the tree is full.
    """

    def __init__(self) -> None:
        """Start without items."""
        self._size = SMALLEST  # leaves
        self._least = [inf] * (2 * SMALLEST)  # node i has the children 2i and 2i + 1
        self._order: list[int] = []  # the sequence number at each leaf
        self._leaves: dict[int, int] = {}

    def __len__(self) -> int:
        """Return the number of items."""
        return len(self._leaves)

    def add(self, sequence: int, value: float) -> None:
        """Add an item. O(n) if its sequence number is not the highest so far."""
        if self._order and sequence <= self._order[-1]:
            self._rebuild(dict(sorted([*self._items().items(), (sequence, value)])))
            return
        if len(self._order) == self._size:
            self._rebuild(self._items())
        self._leaves[sequence] = len(self._order)
        self._order.append(sequence)
        self._put(len(self._order) - 1, value)

    def remove(self, sequence: int) -> None:
        """Remove an item, which must be present."""
        self._put(self._leaves.pop(sequence), inf)

    def first(self, limit: float) -> int | None:
        """Return the first item with a value of at most `limit`, or None."""
        least = self._least
        limit = min(limit, MOST)  # empty leaves are infinite
        if least[1] > limit:
            return None
        node = 1
        while node < self._size:
            node *= 2
            if least[node] > limit:
                node += 1
        return self._order[node - self._size]

    def _put(self, leaf: int, value: float) -> None:
        least, node = self._least, leaf + self._size
        least[node] = value
        while node > 1:
            node //= 2
            left, right = least[2 * node], least[2 * node + 1]
            least[node] = left if left < right else right  # noqa: FURB136  min() takes three times as long

    def _items(self) -> dict[int, float]:
        return {s: self._least[leaf + self._size] for s, leaf in self._leaves.items()}

    def _rebuild(self, items: dict[int, float]) -> None:
        """Rebuild the tree with these items in order, and room for as many more."""
        while self._size < 2 * len(items):
            self._size *= 2
        while SMALLEST < self._size >= 4 * len(items):
            self._size //= 2
        self._order = [*items]
        self._leaves = {sequence: leaf for leaf, sequence in enumerate(items)}
        leaves = [*items.values()] + [inf] * (self._size - len(items))
        self._least = [inf] * self._size + leaves
        for node in range(self._size - 1, 0, -1):
            self._least[node] = min(self._least[2 * node], self._least[2 * node + 1])

    def check(self) -> None:
        """Assert that every node has the lowest value of its leaves and items are in order."""
        assert self._order == sorted(self._order)
        for sequence, leaf in self._leaves.items():
            assert self._order[leaf] == sequence
            assert self._least[leaf + self._size] < inf
        gone = set(range(self._size)) - set(self._leaves.values())
        assert all(self._least[leaf + self._size] == inf for leaf in gone)
        for node in range(1, self._size):
            assert self._least[node] == min(self._least[2 * node], self._least[2 * node + 1])
