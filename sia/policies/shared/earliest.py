"""The first of many items, in order of arrival, whose value is small enough."""

from __future__ import annotations

from math import inf
from sys import float_info

MOST = float_info.max
"""Values are finite."""

SMALLEST = 8
"""Leaves of an empty tree."""


class Earliest:
    """Items in order of their sequence numbers, each with a value.

    A binary tree over the items, each node with the least value below it. O(log n) to add, remove
    and find; leaves of removed items are given up when the tree is full.
    """

    def __init__(self) -> None:
        """Start without items."""
        self._size = SMALLEST  # leaves
        self._least = [inf] * (2 * SMALLEST)  # node i has the children 2i and 2i + 1
        self._order: list[int] = []  # the sequence number at each leaf
        self._leaves: dict[int, int] = {}

    def __len__(self) -> int:
        """How many items there are."""
        return len(self._leaves)

    def add(self, sequence: int, value: float) -> None:
        """Add an item. O(n) if it is not after all that were ever added."""
        if self._order and sequence <= self._order[-1]:
            self._rebuild(dict(sorted([*self._items().items(), (sequence, value)])))
            return
        if len(self._order) == self._size:
            self._rebuild(self._items())
        self._leaves[sequence] = len(self._order)
        self._order.append(sequence)
        self._put(len(self._order) - 1, value)

    def remove(self, sequence: int) -> None:
        """Take an item out; it must be in."""
        self._put(self._leaves.pop(sequence), inf)

    def first(self, limit: float) -> int | None:
        """The first item with a value of at most `limit`."""
        least = self._least
        limit = min(limit, MOST)  # leaves that hold nothing are infinite
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
            least[node] = left if left < right else right  # noqa: FURB136  a third of its time

    def _items(self) -> dict[int, float]:
        return {s: self._least[leaf + self._size] for s, leaf in self._leaves.items()}

    def _rebuild(self, items: dict[int, float]) -> None:
        """Have these in this order, and room for as many again."""
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
        """Assert that every node has the least of its leaves, and that order is kept."""
        assert self._order == sorted(self._order)
        for sequence, leaf in self._leaves.items():
            assert self._order[leaf] == sequence
            assert self._least[leaf + self._size] < inf
        gone = set(range(self._size)) - set(self._leaves.values())
        assert all(self._least[leaf + self._size] == inf for leaf in gone)
        for node in range(1, self._size):
            assert self._least[node] == min(self._least[2 * node], self._least[2 * node + 1])
