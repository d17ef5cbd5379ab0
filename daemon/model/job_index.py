"""Jobs of each pool in their order: a page of some pools' jobs costs nothing for all others."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from heapq import merge

SPARE = 64
"""Places that may be empty in a line beside as many as are taken, before it is made anew."""


class JobIndex:
    """Jobs' ids by pool, in the order in which they came. Nobody may come or go during a look."""

    def __init__(self) -> None:
        """Nobody is there."""
        self._last = 0
        self._numbers: dict[str, int] = {}
        self._pools: dict[str, _Line] = {}

    def add(self, pool: str, job_id: str) -> None:
        """One comes, after all others. O(1)."""
        self._last += 1
        self._numbers[job_id] = self._last
        self._pools.setdefault(pool, _Line()).add(self._last, job_id)

    def drop(self, pool: str, job_id: str) -> None:
        """One goes. O(1), on the whole."""
        line = self._pools[pool]
        line.drop(self._numbers.pop(job_id))
        if not line.ids:
            del self._pools[pool]

    def newest(self, pools: Iterable[str] | None, after: str = "") -> Iterator[str]:
        """The latest first, of some pools or of all (None); after one, if that is there.

        O(pools log jobs) for the first.
        """
        names = self._pools if pools is None else pools
        before = self._numbers.get(after, self._last + 1)
        lines = [self._pools[name].before(before) for name in names if name in self._pools]
        for _, job_id in merge(*lines, reverse=True):
            yield job_id


class _Line:
    """Ids by their numbers, which grow."""

    def __init__(self) -> None:
        self.ids: dict[int, str] = {}
        self._numbers: list[int] = []  # those that went too, until it is made anew

    def add(self, number: int, job_id: str) -> None:
        self.ids[number] = job_id
        self._numbers.append(number)

    def drop(self, number: int) -> None:
        del self.ids[number]
        if len(self._numbers) > 2 * len(self.ids) + SPARE:
            self._numbers = [*self.ids]

    def before(self, number: int) -> Iterator[tuple[int, str]]:
        for i in range(bisect_left(self._numbers, number) - 1, -1, -1):
            found = self._numbers[i]
            if found in self.ids:
                yield found, self.ids[found]
