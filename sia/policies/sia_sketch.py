"""The next pass of SIA if some things were taken away, worked out beside the state.

Nothing of the state changes, and little is copied: pools that differ from what they are, or, where
loans are limited, the pools of the group and the spare jobs on their GPUs. What a pass is, is
`sia.policies.sia`'s; that both agree start for start is tested.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection
from typing import TypeVar

from sia.accounts import Accounts
from sia.limits import UNLIMITED
from sia.model import Stream
from sia.policies.sia_ground import Ground, Kind, Unit, need
from sia.state import GroupState, JobState, PoolState

_T = TypeVar("_T", GroupState, PoolState, JobState)


def _copy(thing: _T) -> _T:
    made = object.__new__(type(thing))
    for name in thing.__slots__:
        setattr(made, name, getattr(thing, name))
    return made


class Sketch:
    """A group without some things. One pass may be made over it.

    Attributes:
        idle: GPUs.
        started: Pools whose jobs have started in the pass, in order.
    """

    def __init__(
        self, ground: Ground, job: JobState, gone: Collection[Unit], *, light: bool = False
    ) -> None:
        """Take these things away. O(of them), and O(pools + loans) where loans are limited.

        `job` is the one that is asked about: it is never withdrawn. A `light` sketch knows no
        limits: it is for `hopeless` alone.
        """
        self._ground, self._job = ground, job
        self._windows = range(len(ground.options.windows))
        self._pools: dict[PoolState, PoolState] = {}
        self._lines: dict[PoolState, list[JobState]] = {}
        self._held: dict[PoolState, list[int]] = {}
        self._unkept: set[PoolState] = set()
        self._silent: frozenset[PoolState] = frozenset()
        self.reserved = list(ground.reserved)
        self.started: list[PoolState] = []
        self._group = ground.group
        self.limited = ground.group.limited and not light
        if self.limited:
            self._copy_all()
        self.idle = ground.group.idle
        for unit in gone:
            self._take(unit)
        if self.limited:
            self._settle()
        for pool in list(self._pools) if not self.limited else self._changed(gone):
            self._reserve(pool)

    def _changed(self, gone: Collection[Unit]) -> list[PoolState]:
        found = {self._job.pool: None}
        for kind, of in gone:
            if kind is Kind.END:
                found[of.pool] = None
            elif isinstance(of, PoolState):
                found[of] = None
        return list(found)

    def ahead(self, stream: Stream | None) -> list[PoolState]:
        """Pools with a head that fits; of these, for a dedicated start, those that go first."""
        heads = [pool for pool, head in self._ground.heads if head.width <= self.idle]
        mine = self._ratio(self._job.pool)
        return [
            pool
            for pool in heads
            if pool is not self._job.pool and (stream is None or self._ratio(pool) < mine)
        ]

    def _copy_all(self) -> None:
        """Where loans are limited: who lends what to whom decides who may start."""
        group = self._group = _copy(self._group)
        self._accounts = Accounts()
        self._jobs: dict[str, JobState] = {}
        group.pools = []
        for pool in self._ground.group.pools:
            made = self._pools[pool] = _copy(pool)
            made.group = group
            group.pools.append(made)
            made.lent_to = pool.lent_to.copy()

    def _copied(self, job: JobState) -> JobState:
        """A spare job whose loans are to be changed; nothing else of the state refers to it."""
        known = self._jobs.get(job.job.id)
        if known is None:
            known = self._jobs[job.job.id] = _copy(job)
            known.pool = self._pools[job.pool]
            known.loans = {self._pools[donor]: gpus for donor, gpus in job.loans.items()}
            for donor in known.loans:
                donor.lent_to[job.job.id] = known
        return known

    def _call_home(self, pool: PoolState) -> None:
        """What a pool has lent may have to move."""
        for job in [*pool.lent_to.values()]:
            self._copied(job)

    def _settle(self) -> None:
        self._group.relimit()
        overdrawn = [pool for pool in self._group.pools if pool.unused < 0]
        for pool in overdrawn:
            self._call_home(pool)
        if overdrawn:
            self._accounts.overdrawn[self._group] = None
            self._accounts.settle([])
        self.limited = self._group.limited
        self.idle = self._group.idle

    def _of(self, pool: PoolState) -> PoolState:
        """A pool, to be changed."""
        made = self._pools.get(pool)
        if made is None:
            made = self._pools[pool] = _copy(pool)
        return made

    def _take(self, unit: Unit) -> None:
        kind, of = unit
        if kind is Kind.END:
            self._end(of)
        elif kind is Kind.TURN:
            mine = self._job.sequence
            self._withdraw(self._job.pool, [j for j in of.waiting() if j.sequence >= mine])
        elif kind is Kind.QUEUE:
            self._withdraw(of, [self._job] if of is self._job.pool else [])
        elif kind is Kind.LOAD:
            self._of(of).load = [0] * len(self._windows)
        elif kind is Kind.KEEP:
            self._of(of)
            self._unkept.add(of)
        elif kind is Kind.OTHERS:
            self._silent = of.pools
            self.reserved = [r - h for r, h in zip(self.reserved, of.held, strict=True)]
        elif kind is Kind.LENDING:
            if self.limited:
                self._group.lending = True
        elif kind is Kind.LEND:
            self._of(of).lend_limit = UNLIMITED
        else:
            self._of(of).borrow_limit = UNLIMITED

    def _withdraw(self, pool: PoolState, left: list[JobState]) -> None:
        if pool in self._lines:  # the turn, and the queue
            left = [job for job in left if job in self._lines[pool]]
        self._lines[pool] = left
        self._of(pool).pending_width = sum(job.gpus for job in left)

    def _end(self, job: JobState) -> None:
        if self.limited:
            if job.stream is Stream.SPARE:
                self._accounts.give_back(self._copied(job))
            else:
                ended = _copy(job)
                ended.pool = self._pools[job.pool]
                self._accounts.give_back(ended)
            return
        pool = self._of(job.pool)
        if job.stream is Stream.SPARE:
            pool.spare -= job.width
            self.idle += job.width
        else:
            over = max(0, pool.dedicated - pool.quota)
            pool.dedicated -= job.width
            self.idle += max(0, job.width - over)

    def _reserve(self, pool: PoolState) -> None:
        if pool in self._silent:
            return
        made, ground = self._pools.get(pool, pool), self._ground
        was = self._held.get(pool, ground.held[pool])
        kept: Collection[int] = () if pool in self._unkept else ground.keeps[pool]
        held = [need(made, i, ground.options, keeps=i in kept) for i in self._windows]
        for i in self._windows:
            self.reserved[i] += held[i] - was[i]
        self._held[pool] = held

    def held(self, pool: PoolState, window: int) -> int:
        """GPUs that are held back for a pool."""
        if pool in self._silent:
            return 0
        return self._held.get(pool, self._ground.held[pool])[window]

    def hopeless(self, ahead: int) -> bool:
        """Whether it is plain that the job does not start. `ahead` GPUs wait before it. O(windows).

        In a pass what is idle only becomes less; what is usable too, unless more is held back for
        a waiting job than it needs.
        """
        job, pool = self._job, self._pools.get(self._job.pool, self._job.pool)
        if job.width > self.idle:
            return True
        if job.pool in self._lines:
            ahead = sum(j.width for j in self._lines[job.pool] if j.sequence < job.sequence)
        turn = ahead + job.width
        if turn <= self.idle and turn + pool.dedicated <= pool.quota:
            return False
        if self._ground.options.slack > 1.0:
            return False
        first = self._bin(job)
        return all(self.idle - held < job.width for held in self.reserved[first:])

    def room(self, window: int) -> int:
        """GPUs that limits on loans let the job have in a window."""
        return (
            self._room(self._job.pool, window, self._loans(window)) if self.limited else self.idle
        )

    def spared(self, pool: PoolState, window: int) -> int:
        """What a pool may lend besides what is held back for it: see `Sia`."""
        made = self._pools.get(pool, pool)
        return min(made.unused - self.held(pool, window), made.lendable)

    def unlent(self, pool: PoolState, window: int) -> int:
        """What its limit alone keeps a pool from lending."""
        made = self._pools.get(pool, pool)
        return max(0, made.unused - self.held(pool, window)) - max(0, self.spared(pool, window))

    def _loans(self, window: int) -> int:
        return sum(self.spared(pool, window) for pool in self._ground.group.pools)

    def _room(self, pool: PoolState, window: int, loans: int) -> int:
        made = self._pools[pool]
        own = made.unused - self.held(pool, window)
        others = min(
            loans - max(0, self.spared(pool, window)),
            made.borrow_limit - made.borrows + min(0, own),
        )
        return max(0, own) + max(0, others)

    def run(self, wanted: Stream | None = None) -> Stream | None:
        """Make the pass, until the job starts: in which stream; None if it does not.

        No further than it takes to know whether it starts in the stream that is wanted.
        """
        found = self._start_heads()
        return found if found or wanted is Stream.DEDICATED else self._start_spare()

    def _start_heads(self) -> Stream | None:
        heads = {pool: head for pool, head in self._ground.heads if head.width <= self.idle}
        for pool in self._silent:
            heads.pop(pool, None)
        for pool in self._pools:
            heads.pop(pool, None)
            if pool not in self._silent:
                self._line_up(pool, heads)
        while heads and self.idle >= self._job.width:
            pool = min(heads, key=self._ratio)
            head = heads.pop(pool)
            if head.width > self.idle:
                continue
            if head is self._job:
                return Stream.DEDICATED
            self._start(head, Stream.DEDICATED)
            self._line_up(pool, heads)
        return None

    def _line_up(self, pool: PoolState, heads: dict[PoolState, JobState]) -> None:
        line = self._lines.get(pool)
        head = pool.head if line is None else next(iter(line), None)
        made = self._pools.get(pool, pool)
        if head is not None and made.dedicated + head.width <= made.quota:
            heads[pool] = head

    def _ratio(self, pool: PoolState) -> tuple[float, str]:
        return self._pools.get(pool, pool).ratio, pool.name

    def _start(self, job: JobState, stream: Stream) -> None:
        pool = self._of(job.pool)
        if self.limited:
            started = _copy(job)
            started.pool, started.loans = pool, {}
            self._jobs[job.job.id] = started
            if stream is Stream.DEDICATED and job.width > pool.unused:
                self._call_home(pool)
            self._accounts.take(started, job.width, stream, [])
            self.idle = self._group.idle
        else:
            self.idle -= job.width
            if stream is Stream.SPARE:
                pool.spare += job.width
            else:
                pool.dedicated += job.width
        if job.pool not in self._lines:
            self._lines[job.pool] = job.pool.waiting()
        self._lines[job.pool].remove(job)
        pool.pending_width -= job.gpus
        self._reserve(job.pool)
        self.started.append(job.pool)

    def _start_spare(self) -> Stream | None:
        waiting = [pool for pool in self._ground.waiting if pool not in self._silent]
        for window in self._windows:
            pools: Collection[PoolState] = waiting
            while not self._too_late(window) and (usable := self.idle - self.reserved[window]) > 0:
                found = self._next_spare(pools, window, usable)
                best = min(found, key=self._order, default=None)
                if best is None:
                    break
                job = found[best]
                if job is self._job:
                    return Stream.SPARE
                self._start(job, Stream.SPARE)
                if self._ground.options.slack <= 1.0 and not self.limited:
                    pools = found  # what is usable becomes less: nobody else will do
        return None

    def _too_late(self, window: int) -> bool:
        """Whether the job starts in no window from this one on, whatever else does."""
        width, slack = self._job.width, self._ground.options.slack
        held = self.reserved[max(window, self._bin(self._job)) :]
        return slack <= 1.0 and all(self.idle - gpus < width for gpus in held)

    def _order(self, pool: PoolState) -> tuple[int, float, str]:
        return self._ground.rank[pool], *self._ratio(pool)

    def _next_spare(
        self, pools: Collection[PoolState], window: int, usable: int
    ) -> dict[PoolState, JobState]:
        """Of each pool the first job that is short and narrow enough."""
        found = {}
        loans = self._loans(window) if self.limited else 0
        for pool in pools:
            gpus = min(usable, self._room(pool, window, loans)) if self.limited else usable
            job = self._first(pool, window, gpus)
            if job is not None:
                found[pool] = job
        return found

    def _first(self, pool: PoolState, window: int, gpus: int) -> JobState | None:
        line = self._lines.get(pool)
        if line is not None:
            fits = (job for job in line if job.width <= gpus and self._bin(job) <= window)
            return next(fits, None)
        best = None
        for queues in self._ground.queues[pool][: window + 1]:
            for width, queue in queues.items():
                if width <= gpus:
                    first = queue.first()
                    if best is None or first < best:
                        best, job = first, queue.jobs[first]
        return None if best is None else job

    def _bin(self, job: JobState) -> int:
        return bisect_left(self._ground.options.windows, job.run_time)
