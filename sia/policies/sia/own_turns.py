"""Turns under `sia`: when a job would have started in its pool alone.

With the option `turns` a guest counts within its own pool's quota from its turn on, and the loan
ends. Without this rule a pool whose guests run much longer than expected keeps other pools' GPUs
while it uses its whole quota for the jobs behind them. With it a loan ends at the guest's turn at
the latest, so that a wrong run time costs the lender less. Nobody of the guest's pool is later for
it, because the guest would use the same GPUs of the quota in the pool alone.

Priorities need turns, too. If jobs ahead of the head of a pool run as guests, the head fits in the
quota before its turn. If it started then, a job of higher priority that is submitted before its
turn could find the quota in use, and would be later than in the pool alone. So the head waits for
its turn, unless no job of its pool had a higher priority in the four weeks before the pool's latest
submission.

Each pool has a clock (`sia.virtual.turns`); without the option only pools with priorities have one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import Struct

from sia.contract.views import ClusterStateView, JobStateView, PoolStateView
from sia.model import RESTART, Stream
from sia.virtual.turns import NextEnds, TurnClock, TurnClockSnapshot

REMEMBERED = 28 * 86400.0
"""Seconds for which the priority of a job counts. Jobs of lower priority wait for their turns as
long as the pool's users may be expected to ask for this priority again."""


class OwnTurnsSnapshot(Struct):
    """The memory of `OwnTurns`."""

    clocks: dict[str, TurnClockSnapshot]
    """By name of pool."""
    claims: list[int]
    """Guests whose turn has come, in order of their turns, by number of arrival."""
    highest: dict[str, list[tuple[float, int]]] = {}
    """By name of pool, times and priorities of recent jobs: times ascend, priorities fall."""


class HighestPriorities:
    """The highest priority of each pool's recent jobs; 0, the usual one, for other pools."""

    def __init__(self, state: ClusterStateView) -> None:
        """Start with the priorities of the jobs that are there."""
        self._state = state
        # By pool (time, priority): times ascend, priorities fall.
        self._recent: dict[PoolStateView, list[tuple[float, int]]] = {}
        for job in state.jobs.values():
            self.note(job)

    def note(self, job: JobStateView) -> None:
        """Take the priority of a submitted job, and forget old ones. O(priorities of the pool)."""
        recent, priority = self._recent.get(job.pool, []), job.job.priority
        if not recent and priority <= 0:
            return
        if priority > 0:
            while recent and recent[-1][1] <= priority:
                recent.pop()
            recent.append((self._state.now, priority))
        while recent and recent[0][0] < self._state.now - REMEMBERED:
            recent.pop(0)
        self._recent[job.pool] = recent
        if not recent:
            del self._recent[job.pool]

    def of(self, pool: PoolStateView) -> int:
        """Return the highest priority that a pool's jobs had until the latest submission. O(1).

        It changes only when a job of the pool is submitted. The policy then looks at the pool
        again, and so does not miss that a head no longer waits.
        """
        recent = self._recent.get(pool)
        return recent[0][1] if recent else 0

    def memory(self) -> dict[str, list[tuple[float, int]]]:
        """Return times and priorities by name of pool. O(n log n)."""
        return dict(sorted((pool.name, [*recent]) for pool, recent in self._recent.items()))

    def resume(
        self, memory: Mapping[str, list[tuple[float, int]]], state: ClusterStateView
    ) -> None:
        """Restore the priorities. Raises ValueError for an unknown pool."""
        self._recent = dict(zip(state.pools_of(memory), map(list, memory.values()), strict=True))


class OwnTurns:
    """The clocks of pools, and with the option `turns` the guests whose turn has come.

    Attributes:
        used: Whether any pool has a clock.
    """

    def __init__(self, state: ClusterStateView, *, option: bool) -> None:
        """Start with the running jobs. Dedicated ones have had their turn.

        With the `option` each pool has a clock.
        """
        self._state, self._option = state, option
        self._highest = HighestPriorities(state)
        self._claims: dict[PoolStateView, dict[int, JobStateView]] = {}
        self._claimed = dict.fromkeys(state.pools.values(), 0)  # GPUs of these
        self._guests: dict[int, JobStateView] = {}  # running spare jobs before their turn
        self._ends = NextEnds()
        pools = [job.pool for job in state.jobs.values() if job.job.priority]
        if option:
            pools = [*state.pools.values()]
        self._clocks = {pool: TurnClock(pool.quota) for pool in pools}
        self.used = bool(self._clocks)
        self._take_over(state.jobs.values())

    def _take_over(self, jobs: Iterable[JobStateView]) -> None:
        for job in jobs:
            clock = self._clocks.get(job.pool)
            if clock is None:
                continue
            if job.stream is not None and job.arrival not in clock:
                if job.stream is Stream.DEDICATED:
                    clock.running(job.arrival, job.start, job.width)
                else:
                    clock.submitted(job.arrival, job.sequence, job.width, job.job.submit)
            if self._option and job.stream is Stream.SPARE and clock.waits(job.arrival):
                self._guests[job.arrival] = job

    def submitted(self, job: JobStateView) -> None:
        """Add a pending job, or one that was stopped or moved in its queue. O(log n).

        O(jobs) for the first job of its pool with a priority.
        """
        clock = self._clocks.get(job.pool)
        if clock is None:
            if not job.job.priority:
                return
            clock = self._begin(job.pool)
        self._highest.note(job)
        self._drop(job)
        if job.arrival not in clock or clock.waits(job.arrival):
            clock.submitted(job.arrival, job.sequence, job.width, job.job.submit)

    def _begin(self, pool: PoolStateView) -> TurnClock:
        """Give a pool its clock; jobs that have started early and ended are not known to it."""
        clock = self._clocks[pool] = TurnClock(pool.quota)
        self.used = True
        self._take_over(job for job in self._state.jobs.values() if job.pool is pool)
        self._queue(pool, clock)
        return clock

    def _queue(self, pool: PoolStateView, clock: TurnClock) -> None:
        """Queue the pending jobs of a pool that its clock does not know."""
        for job in pool.waiting():
            if job.arrival not in clock:
                clock.submitted(job.arrival, job.sequence, job.width, job.job.submit)

    def left(self, job: JobStateView, *, gone: bool) -> None:
        """Note a job that starts, or is `gone` because it was cancelled while pending. O(1)."""
        clock = self._clocks.get(job.pool)
        if clock is None:
            return
        if self._option and job.stream is Stream.SPARE:
            if clock.waits(job.arrival):
                self._guests[job.arrival] = job
            else:
                self._claim(job)
        elif job.stream is None and gone:
            clock.withdrawn(job.arrival)

    def finished(self, job: JobStateView, now: float) -> None:
        """Remove a running job. Its pool's clock counts the time that the whole job took."""
        clock = self._clocks.get(job.pool)
        if clock is not None:
            whole = job.runs > 1 and job.job.preemptible != RESTART
            ran = job.work(now) if whole else now - job.start
            clock.ended(now, job.arrival, ran)
            self._drop(job)

    def is_early(self, head: JobStateView) -> bool:
        """Return whether a head must wait for its turn, because jobs may come before it. O(1)."""
        if not self.used or head.job.priority >= self._highest.of(head.pool):
            return False
        clock = self._clocks.get(head.pool)
        return clock is not None and clock.waits(head.arrival)

    def highest(self, pool: PoolStateView) -> int:
        """Return the highest priority of a pool's recent jobs. O(1)."""
        return self._highest.of(pool)

    def _claim(self, job: JobStateView) -> None:
        self._claims.setdefault(job.pool, {})[job.arrival] = job
        self._claimed[job.pool] += job.width

    def _drop(self, job: JobStateView) -> None:
        self._guests.pop(job.arrival, None)
        own = self._claims.get(job.pool)
        if own is not None and own.pop(job.arrival, None) is not None:
            self._claimed[job.pool] -= job.width
            if not own:
                del self._claims[job.pool]

    def due_pools(self, now: float) -> list[str]:
        """Return the names of pools whose clock is to advance, although nothing was reported."""
        return self._ends.take(now)

    @property
    def next_due(self) -> float:
        """When a clock is next to advance, or infinity."""
        return self._ends.next

    def advance(self, pool: PoolStateView, now: float) -> None:
        """Find the guests of a pool whose turn has come. O(log n) for each turn and end."""
        clock = self._clocks.get(pool)
        if clock is None:
            return
        if clock.changed or clock.quota != pool.quota or clock.next_end <= now:
            clock.quota = pool.quota
            for number in clock.advance(now):
                guest = self._guests.pop(number, None)
                if guest is not None:
                    self._claim(guest)
        self._ends.put(pool.name, clock)

    def claims(self, pool: PoolStateView) -> list[JobStateView]:
        """Return the guests of a pool whose turn has come, in order of their turns."""
        return [*self._claims.get(pool, {}).values()]

    def claimed(self, pool: PoolStateView) -> int:
        """Return the GPUs of these guests. O(1)."""
        return self._claimed[pool]

    def settle(self, job: JobStateView) -> None:
        """Note that a guest counts within its pool's quota now."""
        self._drop(job)

    def memory(self) -> OwnTurnsSnapshot:
        """Return the whole state. O(n log n)."""
        pools = sorted(self._clocks, key=lambda pool: pool.name)
        clocks = {pool.name: self._clocks[pool].memory() for pool in pools}
        claims = [n for own in self._claims.values() for n in own]
        return OwnTurnsSnapshot(clocks, claims, self._highest.memory())

    @classmethod
    def resumed(
        cls, memory: OwnTurnsSnapshot, state: ClusterStateView, *, option: bool
    ) -> OwnTurns:
        """Restore the state. Raises ValueError for an unknown pool or job."""
        turns = cls(state, option=option)
        turns._highest.resume(memory.highest, state)
        turns._guests.clear()
        pools = state.pools_of(memory.clocks)
        for pool, kept in zip(pools, memory.clocks.values(), strict=True):
            turns._clocks[pool] = TurnClock.resumed(kept)
        turns.used = bool(turns._clocks)
        for pool, clock in turns._clocks.items():
            turns._ends.put(pool.name, clock)
            turns._queue(pool, clock)  # the jobs of another policy, after a change
        jobs = {job.arrival: job for job in state.jobs.values()}
        for number in memory.claims:
            if number not in jobs:
                raise ValueError(f"no job with number {number} is in the cluster")
            turns._claim(jobs[number])
        turns._take_over(state.jobs.values())
        return turns

    def check(self, jobs: Iterable[JobStateView]) -> None:
        """Assert that clocks, guests and claims agree with the running jobs. O(n log n)."""
        spare = {job.arrival: job for job in jobs if job.stream is Stream.SPARE}
        claims = {number: job for own in self._claims.values() for number, job in own.items()}
        assert {**claims, **self._guests} == (spare if self._option else {})
        for pool, claimed in self._claimed.items():
            assert claimed == sum(job.width for job in self.claims(pool)), pool.name
        for pool, clock in self._clocks.items():
            clock.check()
            assert all(job.arrival in clock for job in pool.waiting()), pool.name
