"""The order of jobs by pool, so that listing some pools' jobs costs nothing for the others."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from heapq import merge

SPARE = 64
"""Entries of removed jobs that a pool's list may have beyond as many as there are jobs, before
it is rebuilt."""


class JobIndex:
    """Job ids by pool, in order of addition. It must not change during an iteration."""

    def __init__(self) -> None:
        """Create an empty index."""
        self._last = 0
        self._numbers: dict[str, int] = {}
        self._pools: dict[str, _PoolJobs] = {}

    def add(self, pool: str, job_id: str) -> None:
        """Append a job. O(1)."""
        self._last += 1
        self._numbers[job_id] = self._last
        self._pools.setdefault(pool, _PoolJobs()).add(self._last, job_id)

    def drop(self, pool: str, job_id: str) -> None:
        """Remove a job. O(1) amortized."""
        jobs = self._pools[pool]
        jobs.drop(self._numbers.pop(job_id))
        if not jobs.ids:
            del self._pools[pool]

    def newest(self, pools: Iterable[str] | None, after: str = "") -> Iterator[str]:
        """Yield ids, newest first, of these pools or of all (None).

        With `after`, only ids behind this one, if it is there. O(pools · log jobs) for the first.
        """
        names = self._pools if pools is None else pools
        before = self._numbers.get(after, self._last + 1)
        parts = [self._pools[name].before(before) for name in names if name in self._pools]
        for _, job_id in merge(*parts, reverse=True):
            yield job_id


class _PoolJobs:
    """The ids of one pool by their numbers, which only grow."""

    def __init__(self) -> None:
        self.ids: dict[int, str] = {}
        self._numbers: list[int] = []  # including removed ones, until it is rebuilt

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
