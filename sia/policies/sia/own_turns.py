"""Turns of guests under `sia`: when a guest would have started in its pool alone.

From its turn on a guest counts within its own pool's quota, and the loan ends. Without this rule a
pool whose guests run much longer than expected keeps other pools' GPUs while it uses its whole
quota for the jobs behind them. With it a loan ends at the guest's turn at the latest, so that a
wrong run time costs the lender less. Nobody of the guest's pool is later for it, because the guest
would use the same GPUs of the quota in the pool alone.

Each pool has a clock (`sia.virtual.turns`).
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from sia.contract.views import ClusterStateView, JobStateView, PoolStateView
from sia.model import RESTART, Stream
from sia.virtual.turns import NextEnds, TurnClock, TurnClockSnapshot


class OwnTurnsSnapshot(Struct):
    """The memory of `OwnTurns`."""

    clocks: dict[str, TurnClockSnapshot]
    """By name of pool."""
    claims: list[int]
    """Guests whose turn has come, in order of their turns, by number of arrival."""


class OwnTurns:
    """The clocks of all pools, and the guests whose turn has come."""

    def __init__(self, state: ClusterStateView) -> None:
        """Start with the running jobs. Dedicated ones have had their turn."""
        self._clocks = {pool: TurnClock(pool.quota) for pool in state.pools.values()}
        self._claims: dict[PoolStateView, dict[int, JobStateView]] = {}
        self._claimed = dict.fromkeys(self._clocks, 0)  # GPUs of these
        self._guests: dict[int, JobStateView] = {}  # running spare jobs before their turn
        self._ends = NextEnds()
        self._take_over(state.jobs.values())

    def _take_over(self, jobs: Iterable[JobStateView]) -> None:
        for job in jobs:
            clock = self._clocks[job.pool]
            if job.stream is not None and job.arrival not in clock:
                if job.stream is Stream.DEDICATED:
                    clock.running(job.arrival, job.start, job.width)
                else:
                    clock.submitted(job.arrival, job.sequence, job.width, job.job.submit)
            if job.stream is Stream.SPARE and clock.waits(job.arrival):
                self._guests[job.arrival] = job

    def submitted(self, job: JobStateView) -> None:
        """Add a pending job, or one that was stopped or moved in its queue. O(log n)."""
        clock = self._clocks[job.pool]
        self._drop(job)
        if job.arrival not in clock or clock.waits(job.arrival):
            clock.submitted(job.arrival, job.sequence, job.width, job.job.submit)

    def left(self, job: JobStateView, *, gone: bool) -> None:
        """Note a job that starts, or is `gone` because it was cancelled while pending. O(1)."""
        clock = self._clocks[job.pool]
        if job.stream is Stream.SPARE:
            if clock.waits(job.arrival):
                self._guests[job.arrival] = job
            else:
                self._claim(job)
        elif job.stream is None and gone:
            clock.withdrawn(job.arrival)

    def finished(self, job: JobStateView, now: float) -> None:
        """Remove a running job. Its pool's clock counts the time that the whole job took."""
        whole = job.runs > 1 and job.job.preemptible != RESTART
        ran = job.work(now) if whole else now - job.start
        self._clocks[job.pool].ended(now, job.arrival, ran)
        self._drop(job)

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
        clock = self._clocks[pool]
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
        clocks = {pool.name: clock.memory() for pool, clock in self._clocks.items()}
        return OwnTurnsSnapshot(clocks, [n for own in self._claims.values() for n in own])

    @classmethod
    def resumed(cls, memory: OwnTurnsSnapshot, state: ClusterStateView) -> OwnTurns:
        """Restore the state. Raises ValueError for an unknown pool or job."""
        turns = cls(state)
        turns._guests.clear()
        pools = state.pools_of(memory.clocks)
        for pool, clock in zip(pools, memory.clocks.values(), strict=True):
            turns._clocks[pool] = TurnClock.resumed(clock)
        for pool in state.pools.values():
            turns._ends.put(pool.name, turns._clocks[pool])
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
        assert {**claims, **self._guests} == spare
        for pool, claimed in self._claimed.items():
            assert claimed == sum(job.width for job in self.claims(pool)), pool.name
        for clock in self._clocks.values():
            clock.check()
