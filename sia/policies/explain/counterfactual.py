"""The next pass of SIA if some things were taken away, worked out beside the state.

Nothing of the state changes, and little is copied (`sia_copies`). What a pass is, is
`sia.policies.sia`'s; that both agree start for start is tested.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection
from heapq import heapify, heappop, heappush

from sia.model import Stream
from sia.policies.explain.copies import Copies, Lenders
from sia.policies.explain.pass_inputs import Others, PassInputs, needs
from sia.policies.explain.why_least import Kind, Unit
from sia.state.state import JobState, PoolState


class Sketch:
    """A group without some things. One pass may be made over it.

    Attributes:
        started: Pools whose jobs have started in the pass, in order.
    """

    def __init__(
        self, ground: PassInputs, job: JobState, gone: Collection[Unit], *, light: bool = False
    ) -> None:
        """Take these things away. O(of them), and a little of the pools where loans are limited.

        `job` is the one that is asked about: it is never withdrawn. A `light` sketch knows no
        limits: it is for `hopeless` alone.
        """
        self._ground, self._job = ground, job
        self._windows = range(len(ground.options.windows))
        self._lines: dict[PoolState, list[JobState]] = {}
        self._held: dict[PoolState, list[int]] = {}
        self._unkept: set[PoolState] = set()
        self._others: Others | None = None
        self._silent: frozenset[PoolState] = frozenset()
        self.reserved = list(ground.reserved)
        self.started: list[PoolState] = []
        self._lenders = None if light else ground.lenders(gone)
        self._copies = Copies(ground.group, self._lenders)
        for unit in gone:
            self._take(unit)
        self._copies.settle()
        for pool in self._changed(gone):
            self._reserve(pool)

    @property
    def idle(self) -> int:
        """GPUs."""
        return self._copies.group.idle

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

    def _take(self, unit: Unit) -> None:
        kind, of = unit
        if kind is Kind.END:
            self._copies.end(of)
        elif kind is Kind.TURN:
            mine = self._job.sequence
            self._withdraw(self._job.pool, [j for j in of.waiting() if j.sequence >= mine])
        elif kind is Kind.QUEUE:
            self._withdraw(of, [self._job] if of is self._job.pool else [])
        elif kind is Kind.LOAD:
            self._copies.change(of).load = [0] * len(self._windows)
        elif kind is Kind.KEEP:
            self._unkept.add(of)
        elif kind is Kind.OUT:
            self.reserved = [gpus - self._ground.group.out for gpus in self.reserved]
        elif kind is Kind.OTHERS:
            self._others, self._silent = of, of.pools
            self.reserved = [r - h for r, h in zip(self.reserved, of.held, strict=True)]
        elif kind in (Kind.LEND, Kind.BORROW):
            self._copies.lift(of, lend=kind is Kind.LEND)

    def _withdraw(self, pool: PoolState, left: list[JobState]) -> None:
        if pool in self._lines:  # the turn, and the queue
            left = [job for job in left if job in self._lines[pool]]
        self._lines[pool] = left
        self._copies.change(pool).pending_width = sum(job.gpus for job in left)

    def _reserve(self, pool: PoolState) -> None:
        if pool in self._silent:
            return
        made, ground = self._copies.now(pool), self._ground
        was = self._held.get(pool, ground.held[pool])
        kept: Collection[int] = () if pool in self._unkept else ground.keeps[pool]
        held = needs(made, ground.options, kept)
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
        job, pool = self._job, self._copies.now(self._job.pool)
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
        if self._lenders is None:
            return self.idle
        return self._room(self._job.pool, window, self._loans(window, self._lenders))

    def spared(self, pool: PoolState, window: int) -> int:
        """What a pool may lend besides what is held back for it: see `Sia`."""
        made = self._copies.now(pool)
        return min(made.unused - self.held(pool, window), made.lendable)

    def unlent(self, pool: PoolState, window: int) -> int:
        """What its limit alone keeps a pool from lending."""
        unheld = self._copies.now(pool).unused - self.held(pool, window)
        return max(0, unheld) - max(0, self.spared(pool, window))

    def _loans(self, window: int, lenders: Lenders) -> int:
        """The sum of what is `spared`: of all pools once, then of those that differ."""
        silent, held = self._silent, self._ground.held
        total = lenders.spared(window, held, silent)
        for pool in {*self._copies.made, *self._held}:
            before = 0 if pool in silent else held[pool][window]
            total += self.spared(pool, window) - lenders.spare(pool, before)
        return total

    def _room(self, pool: PoolState, window: int, loans: int) -> int:
        made = self._copies.now(pool)
        own = made.unused - self.held(pool, window)
        spared = min(own, made.lendable)
        others = min(loans - max(0, spared), made.borrow_limit - made.borrows + min(0, own))
        return max(0, own) + max(0, others)

    def run(self, wanted: Stream | None = None) -> Stream | None:
        """Make the pass, until the job starts: in which stream; None if it does not.

        No further than it takes to know whether it starts in the stream that is wanted.
        """
        found = self._start_heads()
        return found if found or wanted is Stream.DEDICATED else self._start_spare()

    def _start_heads(self) -> Stream | None:
        changed, silent = {*self._copies.made, *self._lines}, self._silent
        heads = [
            (*self._ratio(pool), pool, head)
            for pool, head in self._ground.heads
            if head.width <= self.idle and pool not in changed and pool not in silent
        ]
        heads += [line for pool in changed - silent for line in self._line_up(pool)]
        heapify(heads)
        while heads and self.idle >= self._job.width:
            _, _, pool, head = heappop(heads)
            if head.width > self.idle:
                continue
            if head is self._job:
                return Stream.DEDICATED
            self._start(head, Stream.DEDICATED)
            for line in self._line_up(pool):
                heappush(heads, line)
        return None

    def _line_up(self, pool: PoolState) -> list[tuple[float, str, PoolState, JobState]]:
        """Its head, if that is within quota."""
        line = self._lines.get(pool)
        head = pool.head if line is None else next(iter(line), None)
        made = self._copies.now(pool)
        if head is None or made.dedicated + head.width > made.quota:
            return []
        return [(*self._ratio(pool), pool, head)]

    def _ratio(self, pool: PoolState) -> tuple[float, str]:
        return self._copies.now(pool).ratio, pool.name

    def _start(self, job: JobState, stream: Stream) -> None:
        self._copies.start(job, stream)
        if job.pool not in self._lines:
            self._lines[job.pool] = job.pool.waiting()
        self._lines[job.pool].remove(job)
        self._copies.change(job.pool).pending_width -= job.gpus
        self._reserve(job.pool)
        self.started.append(job.pool)

    def _start_spare(self) -> Stream | None:
        """The first pool in order that has a job which is short and narrow enough; and so on."""
        line = self._in_order()
        less = self._ground.options.slack <= 1.0 and self._lenders is None
        for window in self._windows:
            at = 0
            while not self._too_late(window):
                at, job = self._next_spare(line, at, window)
                if job is None:
                    break
                if job is self._job:
                    return Stream.SPARE
                self._start(job, Stream.SPARE)
                del line[at]
                insort(line, (*self._order(job.pool), job.pool))
                if not less:
                    at = 0  # or else what is usable becomes less: who is passed over stays so
        return None

    def _in_order(self) -> list[tuple[int, float, str, PoolState]]:
        """Pools with jobs that may be spare ones."""
        changed, silent = self._copies.made, self._silent
        line = [
            each
            for each in self._ground.in_order
            if each[3] not in changed and each[3] not in silent
        ]
        for pool in changed:
            if pool in self._ground.waiting and pool not in silent:
                insort(line, (*self._order(pool), pool))
        return line

    def _too_late(self, window: int) -> bool:
        """Whether the job starts in no window from this one on, whatever else does."""
        width, slack = self._job.width, self._ground.options.slack
        held = self.reserved[max(window, self._bin(self._job)) :]
        return slack <= 1.0 and all(self.idle - gpus < width for gpus in held)

    def _order(self, pool: PoolState) -> tuple[int, float, str]:
        return self._ground.rank[pool], *self._ratio(pool)

    def _next_spare(
        self, line: list[tuple[int, float, str, PoolState]], at: int, window: int
    ) -> tuple[int, JobState | None]:
        """The first job from this place of the line on, and its place."""
        usable = self.idle - self.reserved[window]
        loans = 0 if self._lenders is None else self._loans(window, self._lenders)
        while usable > 0 and at < len(line):
            pool, gpus = line[at][3], usable
            if self._lenders is not None:
                gpus = min(usable, self._room(pool, window, loans))
            job = self._first(pool, window, gpus) if gpus > 0 else None
            if job is not None:
                return at, job
            at += 1
        return at, None

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
