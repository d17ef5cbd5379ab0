"""A plan that gives each lease to the jobs with the least laxity.

Laxity is the number of leases that a job can miss and still meet its step. It stays the same while
a job has leases, and falls by one with each lease that it misses.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from heapq import heappop, heappush
from operator import le

from sia.policies.chronus.leases.claims import Claim, LeasePlan
from sia.policies.chronus.leases.free import Room, numbers

MOST_STEPS = 200_000
"""Largest number of jobs that have leases or miss them, counted in each lease: a plan with more is
not searched. In such a plan most jobs miss many leases, and lists find one as well."""


def by_laxity(claims: Sequence[Claim], room: Room) -> LeasePlan | None:
    """Return a plan that gives each lease to the jobs with the least laxity, or None.

    Of equal jobs wider ones come first, then earlier ones; a job that does not fit is passed over.
    The jobs of a lease keep the following ones until one of them ends or another job has less
    laxity. None if a job would miss its last step, or after `MOST_STEPS`. O(such spans · jobs whose
    turn may come).
    """
    if any(claim.leases > claim.last for claim in claims):
        return None
    steps = sum(claim.leases for claim in claims)
    queue = _Queue(claims, room)
    while queue.lasts and steps <= MOST_STEPS:
        until = queue.choose()
        if until <= queue.now:
            return None
        steps += (until - queue.now) * queue.waiting
        queue.go_on(until)
    if steps > MOST_STEPS:
        return None
    return {claim.job_id: numbers(had) for claim, had in zip(claims, queue.had, strict=True)}


class _Queue:
    """The jobs that have the present lease, and those that wait, both by laxity.

    A job is a key: its laxity, then its GPUs subtracted from the most, then its number. The key of
    a waiting job has the sum of its laxity and the present lease, which stays the same.

    Attributes:
        now: The present lease.
        had: The spans of leases that each job has had.
    """

    def __init__(self, claims: Sequence[Claim], room: Room) -> None:
        most, self._count = max((claim.gpus for claim in claims), default=0), max(1, len(claims))
        self._step = (most + 1) * self._count  # a key grows by so much with a lease of laxity
        self._has = list[int]()
        self._waits = sorted(
            (claim.last - claim.leases) * self._step + (most - claim.gpus) * self._count + n
            for n, claim in enumerate(claims)
        )
        self._free, self._uses = [*room], [claim.uses for claim in claims]
        self._needs = [claim.leases for claim in claims]
        self._begun: dict[int, int] = {}  # by key: since when a job has leases
        self._ends: list[tuple[int, int]] = []  # a heap of ends and keys, also of jobs that stopped
        self.now = 0
        self.had: list[list[range]] = [[] for _ in claims]

    @property
    def lasts(self) -> bool:
        """Whether a job still needs leases."""
        return bool(self._has or self._waits)

    @property
    def waiting(self) -> int:
        """The number of jobs that miss the present lease."""
        return len(self._waits)

    def choose(self) -> int:
        """Give the present lease to jobs, and return until which lease they have it.

        Jobs with less laxity than all waiting jobs keep it without a check.
        """
        has, waits, passed = self._has, self._waits, self.now * self._step
        first = bisect_left(has, waits[0] - passed) if waits else len(has)
        again = has[first:]
        del has[first:]
        for key in again:
            self._use(key, -1)
        latest, missed, limits = has[-1] if has else None, list[int](), list[int]()
        i = n = 0
        while i < len(again) or n < len(waits):
            waited = i == len(again) or (n < len(waits) and waits[n] - passed < again[i])
            key = waits[n] - passed if waited else again[i]
            if self._fits(key):
                self._use(key, 1)
                has.append(key)
                latest = key
                if waited:
                    self._begin(key)
            else:
                if not missed:
                    limits.append(key // self._step)  # then it can miss no lease
                if latest is not None:  # it may get less laxity than the latest job that fits
                    limits.append(-((latest - key) // self._step))
                    latest = None  # the following ones get it later
                if not self._free[0]:
                    break
                missed.append(key + passed)
                if not waited:
                    self._stop(key)
            n, i = n + waited, i + (not waited)
        for key in again[i:]:
            self._stop(key)
        self._waits = [*missed, *sorted([*(key + passed for key in again[i:]), *waits[n:]])]
        return min([self.now + limit for limit in limits] + self._next_end())

    def go_on(self, until: int) -> None:
        """Let the jobs have the leases up to this one, and remove those that end."""
        while self._next_end() == [until]:
            _, key = heappop(self._ends)
            self.now = until
            self._stop(key)
            self._use(key, -1)
            del self._has[bisect_left(self._has, key)]
        self.now = until

    def _fits(self, key: int) -> bool:
        uses = self._uses[key % self._count]
        return uses[0] <= self._free[0] and (len(uses) == 1 or all(map(le, uses, self._free)))

    def _use(self, key: int, times: int) -> None:
        for i, use in enumerate(self._uses[key % self._count]):
            self._free[i] -= times * use

    def _begin(self, key: int) -> None:
        self._begun[key] = self.now
        heappush(self._ends, (self.now + self._needs[key % self._count], key))

    def _stop(self, key: int) -> None:
        begun, n = self._begun.pop(key), key % self._count
        self.had[n].append(range(begun, self.now))
        self._needs[n] -= self.now - begun

    def _next_end(self) -> list[int]:
        """Return when the next job that has leases ends, or nothing."""
        while self._ends:
            end, key = self._ends[0]
            begun = self._begun.get(key)
            if begun is not None and begun + self._needs[key % self._count] == end:
                return [end]
            heappop(self._ends)  # it has stopped since
        return []
