"""The turns of a pool's jobs: its schedule without sharing, known up to now.

A `TurnClock` simulates a pool alone, first come, first served by priority, while its jobs really
start earlier or elsewhere, or are stopped and continue. A job's *turn* is its start in that
schedule. If a stop takes time, an end may become known late; turns that follow from it are then in
the past.

The clock needs no run time in advance, as long as each job that is stopped before its turn
continues at its turn at the latest. Then a job that has not really ended has not ended in this
schedule either. A job that has really ended ends in the schedule at its turn plus its real run
time.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from math import inf
from typing import Self

from msgspec import Struct

MOST_AHEAD = 5000
"""Largest number of jobs ahead of a job whose turn is estimated. The daemon's event loop waits for
the estimate, which then takes about 10 ms."""

MOST_OVER = 10_000
"""Largest number of jobs that have really ended and wait for their turn. In a pool that always uses
more than its quota their number would grow without end, 50 bytes of a snapshot for each."""

SPARE = 64
"""Stale entries that the order may have in addition to as many as there are waiting jobs."""


class TurnClockSnapshot(Struct):
    """The state of a clock, with jobs by number. Lists are in ascending order."""

    quota: int
    waits: list[tuple[int, int, int, float | None, float]]
    """(sequence, job, width, seconds that it ran if it has really ended, time of submission)."""
    taken: list[tuple[int, float, int, float | None]]
    """(job, turn, width, end in the pool alone if it has really ended)."""


class _Waiting:
    __slots__ = ("ran", "sequence", "submit", "width")

    def __init__(self, sequence: int, width: int, submit: float, ran: float | None = None) -> None:
        self.sequence, self.width, self.submit, self.ran = sequence, width, submit, ran


class TurnClock:
    """The schedule of one pool without sharing. Numbers of jobs are never used again.

    A job wider than the quota blocks the jobs behind it until it has really ended; then the clock
    drops it. It also drops a job that really ends while `MOST_OVER` jobs that have ended wait for
    their turn; jobs behind it may then get their turn too early.

    Attributes:
        quota: GPUs of the pool.
        used: GPUs that its jobs use in this schedule.
        changed: Whether anything was reported since the last `advance`.
    """

    __slots__ = ("_ends", "_order", "_over", "_taken", "_waits", "changed", "quota", "used")

    def __init__(self, quota: int) -> None:
        """Start without jobs."""
        self.quota = quota
        self.used = 0
        self.changed = True
        self._waits: dict[int, _Waiting] = {}  # jobs whose turn has not come
        self._over = 0  # number of these that have really ended
        self._order: list[tuple[int, int]] = []  # heap of (sequence, job), with stale entries
        self._taken: dict[int, tuple[float, int]] = {}  # (turn, width) until the end alone
        self._ends: list[tuple[float, int]] = []  # heap of known (end alone, job)

    def __contains__(self, job: int) -> bool:
        """Return whether a job waits for its turn, or has had it and has not ended alone."""
        return job in self._waits or job in self._taken

    def waits(self, job: int) -> bool:
        """Return whether a job waits for its turn."""
        return job in self._waits

    def turn(self, job: int) -> float | None:
        """Return when a job had its turn, None if not yet, or if it has ended alone."""
        taken = self._taken.get(job)
        return None if taken is None else taken[0]

    def expected_turn(self, job: int, now: float, run_time: Callable[[int], float]) -> float:
        """Return when a waiting job is expected to have its turn, or infinity.

        `run_time` returns the expected total run time, in seconds, of a job that has not really
        ended. The estimate ignores future submissions. It is infinity for a job behind more than
        `MOST_AHEAD` others. O(n log n) in the jobs ahead of it.
        """
        known = {number: end for end, number in self._ends}
        ends = [
            (known[number] if number in known else max(now, turn + run_time(number)), width)
            for number, (turn, width) in self._taken.items()
        ]
        heapify(ends)
        at, idle = now, self.quota - self.used
        order, before = self._order[:], -1
        for _ in range(min(len(order), MOST_AHEAD)):
            sequence, number = heappop(order)
            first = self._waits.get(number)
            if first is None or first.sequence != sequence or number == before:
                continue  # a job that was stopped is listed twice
            before = number
            if first.width > self.quota:
                if first.ran is None:
                    break
                continue  # the clock will drop it
            while first.width > idle:
                end, width = heappop(ends)
                at, idle = max(at, end), idle + width
            if number == job:
                return at
            idle -= first.width
            ran = run_time(number) if first.ran is None else first.ran
            heappush(ends, (at + ran, first.width))
        return inf

    def submitted(self, job: int, sequence: int, width: int, submit: float) -> None:
        """Queue a job at its place, or move a waiting one to another place. O(log n)."""
        self.changed = True
        self._waits[job] = _Waiting(sequence, width, submit)
        heappush(self._order, (sequence, job))

    def running(self, job: int, turn: float, width: int) -> None:
        """Add a job that had its turn before the clock started. O(1)."""
        self._taken[job] = turn, width
        self.used += width

    def withdrawn(self, job: int) -> None:
        """Remove a job that left without an end. O(1)."""
        self.changed = True
        if self._waits.pop(job, None) is None:
            taken = self._taken.pop(job, None)
            if taken is not None:
                self.used -= taken[1]

    def ended(self, now: float, job: int, ran: float) -> None:
        """Record that a job has really ended, and how many seconds it ran. O(log n)."""
        self.changed = True
        waiting = self._waits.get(job)
        if waiting is not None and self._over >= MOST_OVER:
            del self._waits[job]
            if len(self._order) > 2 * len(self._waits) + SPARE:
                self._order = [(each.sequence, number) for number, each in self._waits.items()]
                heapify(self._order)
        elif waiting is not None:
            waiting.ran = ran
            self._over += 1
        elif job in self._taken:
            turn = self._taken[job][0]
            # A job that started at its turn ends now in this schedule, too; `turn + ran` may
            # differ by rounding. A job that started late, because guests were being stopped,
            # ended in this schedule before now.
            alone = now if now - turn == ran else turn + ran
            heappush(self._ends, (alone, job))

    @property
    def next_end(self) -> float:
        """The next known end in the pool alone, or infinity."""
        return self._ends[0][0] if self._ends else inf

    def advance(self, now: float) -> list[int]:
        """Advance to `now`; return the jobs whose turn has come and that have not ended.

        O(log n) for each turn and end.
        """
        self.changed = False
        came: list[int] = []
        ends, order, waits = self._ends, self._order, self._waits
        while True:
            at = min(now, ends[0][0]) if ends else now
            while ends and ends[0][0] <= at:
                _, width = self._taken.pop(heappop(ends)[1])
                self.used -= width
            while order:
                sequence, job = order[0]
                first = waits.get(job)
                if first is None or first.sequence != sequence:
                    heappop(order)
                    continue
                if first.width > self.quota - self.used:
                    if first.ran is None or first.width <= self.quota:
                        break
                    heappop(order)  # it has ended, and would never have started
                    del waits[job]
                    self._over -= 1
                    continue
                heappop(order)
                del waits[job]
                self.used += first.width
                turn = at if at == now else max(at, first.submit)
                self._taken[job] = turn, first.width
                if first.ran is None:
                    came.append(job)
                else:
                    self._over -= 1
                    heappush(ends, (turn + first.ran, job))
            if at == now and (not ends or ends[0][0] > now):
                return came

    def memory(self) -> TurnClockSnapshot:
        """Return the whole state. O(n log n)."""
        waits = sorted(
            (each.sequence, job, each.width, each.ran, each.submit)
            for job, each in self._waits.items()
        )
        ends = {job: end for end, job in self._ends}
        taken = sorted(
            (job, turn, width, ends.get(job)) for job, (turn, width) in self._taken.items()
        )
        return TurnClockSnapshot(self.quota, waits, taken)

    @classmethod
    def resumed(cls, memory: TurnClockSnapshot) -> Self:
        """Restore a clock. O(n)."""
        clock = cls(memory.quota)
        for sequence, job, width, ran, submit in memory.waits:
            clock._waits[job] = _Waiting(sequence, width, submit, ran)
            clock._order.append((sequence, job))
            clock._over += ran is not None
        for job, turn, width, end in memory.taken:
            clock._taken[job] = turn, width
            clock.used += width
            if end is not None:
                clock._ends.append((end, job))
        heapify(clock._ends)
        return clock

    def check(self) -> None:
        """Assert that the counts and heaps agree. O(n log n)."""
        assert self.used == sum(width for _, width in self._taken.values())
        assert self._over == sum(each.ran is not None for each in self._waits.values())
        queued = set(self._order)
        assert all((each.sequence, job) in queued for job, each in self._waits.items())
        assert not self._waits.keys() & self._taken.keys()
        assert {job for _, job in self._ends} <= self._taken.keys()


class NextEnds:
    """When each pool's clock next has an end, in a heap, so that only clocks that are due advance.

    Attributes:
        next: The earliest of these times, or infinity.
    """

    __slots__ = ("_due", "_foreseen")

    def __init__(self) -> None:
        """Start without pools."""
        self._foreseen: dict[str, float] = {}  # by pool, the end that was put last
        self._due: list[tuple[float, str]] = []  # heap of (end, pool), with outdated entries

    def put(self, pool: str, clock: TurnClock) -> None:
        """Note the next end of a pool's clock, if it has one. O(log n)."""
        end = clock.next_end
        if end < inf and self._foreseen.get(pool) != end:
            self._foreseen[pool] = end
            heappush(self._due, (end, pool))

    def take(self, now: float) -> list[str]:
        """Remove and return the pools whose clock may have an end by now. O(log n) for each."""
        names: dict[str, None] = {}
        while self._due and self._due[0][0] <= now:
            name = heappop(self._due)[1]
            names[name] = None
            self._foreseen.pop(name, None)
        return [*names]

    @property
    def next(self) -> float:
        """Return the earliest time."""
        return self._due[0][0] if self._due else inf

    def foresees(self, pool: str, clock: TurnClock) -> bool:
        """Return whether the next end of a pool's clock is noted, or there is none. O(n)."""
        return clock.next_end == inf or (clock.next_end, pool) in self._due
