"""The state of the core: pools, sharing groups and jobs.

Policies read the state; only `sia.core.commit` writes it. Each class asserts its own invariants in
`check()`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from heapq import heappop, heappush

from msgspec.structs import replace

from cells.cells import Cells
from sia.limits import MAX_GROUP, MAX_QUOTA, STRIDE, UNLIMITED
from sia.model import GpuNode, Job, Options, Pool, Stream
from sia.state.bounds import check_sharing
from sia.state.nodes import NodeTable
from sia.state.places import Places
from sia.state.speeds import SpeedRow


class JobState:
    """A pending (`stream` is None) or running job.

    Work is measured in seconds of a run at the job's own width.
    """

    __slots__ = (
        "arrival",
        "attempt",
        "begun",
        "done",
        "gpus",
        "job",
        "lease",
        "loans",
        "overhead",
        "pace",
        "pool",
        "regime",
        "run_time",
        "sequence",
        "since",
        "slowdown",
        "speed",
        "start",
        "stream",
        "taken_back",
        "trial",
        "width",
    )

    def __init__(self, job: Job, pool: PoolState, run_time: float, arrival: int) -> None:
        """Create a pending job.

        Args:
            job: The job.
            pool: Its pool.
            run_time: The estimate of its run time in seconds.
            arrival: The number of jobs that had arrived, this one included.
        """
        self.job = job
        self.pool = pool
        self.width = job.width  # GPUs that it runs on; its own width while pending
        self.gpus = job.width  # its own width, rounded up to cells if there are cells
        self.run_time = run_time
        self.arrival = arrival  # number in the order of arrival, from 1
        self.sequence = arrival  # order in the queue, lowest first
        if job.priority:
            self.sequence -= job.priority * STRIDE
        self.stream: Stream | None = None
        self.start = 0.0  # of the current or latest segment
        self.since = 0.0  # when `done` was known: at `start`, or at the latest progress report
        self.loans: dict[PoolState, int] = {}
        self.attempt = 0  # number of segments so far
        self.taken_back = 0  # number of starts that were taken back before the job ran
        self.done = 0.0  # work until `since`
        self.overhead = 0.0  # seconds after `since` without work
        self.speed = 1.0  # work per second
        self.pace = 1.0  # its reported speed / the speed that its width should give
        self.regime: int | None = None  # of its latest report
        self.begun: tuple[float, ...] = ()  # work at which each regime except the first began
        self.lease: float | None = None  # when its lease ends
        self.trial = False  # whether it runs as a trial, which keeps no work at a stop
        self.slowdown = 1.0  # factor on its run time on its present nodes

    def rank(self, priority: int) -> None:
        """Change the priority of a job that is in no queue."""
        self.job = replace(self.job, priority=priority)
        self.sequence = self.arrival - priority * STRIDE

    def work(self, now: float) -> float:
        """Return the work done until `now`, in seconds at its own width."""
        if self.stream is None:
            return self.done
        return self.done + max(0.0, now - self.since - self.overhead) * self.speed

    @property
    def runs(self) -> int:
        """Number of segments so far, without starts that were taken back."""
        return self.attempt - self.taken_back

    def pause(self, resume_cost: float) -> float:
        """Return the seconds without progress if the job started now.

        A job without work done has nothing to load. A stop costs at most the work done.
        """
        if not self.done:
            return 0.0
        own = self.job.stop_seconds
        return resume_cost if own is None else min(own, self.done)

    @property
    def frees(self) -> int:
        """GPUs that become idle when it stops.

        This is less than its width if its pool's quota has shrunk below what its jobs use.
        """
        if self.stream is None:
            return 0
        if self.stream is Stream.SPARE:
            return self.width
        return max(0, self.width - max(0, self.pool.dedicated - self.pool.quota))

    def end(self, run_time: float) -> float:
        """Return when its segment ends, given its total work and no interruption."""
        left = run_time - self.done
        if left < 0.0:  # noqa: PLR1730  three times as fast as max()
            left = 0.0
        return self.since + (self.overhead + left / self.speed)


class OutOfOrderJobs(dict[int, JobState]):
    """Jobs that joined a queue out of order, by sequence number.

    A heap finds the first of them. Numbers of jobs that left stay in the heap until they reach its
    top or outnumber the jobs of the queue. So a job joins and leaves in O(log n) amortised.
    """

    __slots__ = ("_order",)

    def __init__(self) -> None:
        """Start empty."""
        super().__init__()
        self._order: list[int] = []

    def __setitem__(self, sequence: int, job: JobState) -> None:
        """Add a job."""
        super().__setitem__(sequence, job)
        heappush(self._order, sequence)
        if len(self._order) > 2 * len(self) + 16:  # too many that left
            self._order = sorted(self)

    def first(self) -> JobState:
        """Return the first job. The queue must not be empty."""
        order = self._order
        while order[0] not in self:
            heappop(order)
        return self[order[0]]


class PoolState:
    """A pool: its queue, its running jobs and its loans. All counts are GPUs.

    Jobs with a priority, and jobs that were preempted, have a queue of their own. A queue that
    grows only at its end costs half as much.
    """

    __slots__ = (
        "borrow_limit",
        "dedicated",
        "entitled",
        "group",
        "lend_limit",
        "lendable",
        "lent",
        "lent_own",
        "lent_to",
        "load",
        "name",
        "out_of_order",
        "pending",
        "pending_width",
        "quota",
        "spare",
        "unused",
        "weight",
    )

    def __init__(self, pool: Pool, group: GroupState, windows: int) -> None:
        """Start with the whole quota unused and a forecast load of 0 in each window."""
        self.name = pool.name
        self.group = group
        self.quota = pool.quota
        self.dedicated = 0  # GPUs of its running dedicated jobs
        self.spare = 0  # GPUs of its running spare jobs, on any pool's quota
        self.lent = 0  # GPUs of its quota that spare jobs use, its own spare jobs included
        self.lent_own = 0  # the part of `lent` that its own spare jobs use
        self.lent_to: dict[str, JobState] = {}
        self.unused = pool.quota
        self.lendable = 0  # `could_lend` if its group is limited, else 0
        self.lend_limit = UNLIMITED if pool.lend_limit is None else pool.lend_limit
        self.borrow_limit = UNLIMITED if pool.borrow_limit is None else pool.borrow_limit
        self.weight = pool.weight
        self.entitled = pool.quota * pool.weight
        self.pending: OrderedDict[int, JobState] = OrderedDict()  # by sequence
        self.out_of_order = OutOfOrderJobs()
        self.pending_width = 0  # of both queues, rounded up to cells if there are cells
        self.load = [0] * windows  # TotalNewLoad of each window

    @property
    def head(self) -> JobState | None:
        """The first pending job: the earliest of the highest priority, or None."""
        pending = self.pending
        first = pending[next(iter(pending))] if pending else None
        if self.out_of_order:
            aside = self.out_of_order.first()
            if first is None or aside.sequence < first.sequence:
                return aside
        return first

    def waits(self, sequence: int) -> JobState:
        """Return the pending job with a sequence number. O(1)."""
        job = self.pending.get(sequence)
        return self.out_of_order[sequence] if job is None else job

    def waiting(self) -> list[JobState]:
        """Return all pending jobs in order. O(n), O(n · log n) with out-of-order jobs."""
        both = [*self.pending.values(), *self.out_of_order.values()]
        return sorted(both, key=lambda job: job.sequence) if self.out_of_order else both

    @property
    def length(self) -> int:
        """The number of pending jobs. O(1)."""
        return len(self.pending) + len(self.out_of_order)

    @property
    def ratio(self) -> float:
        """CurrentAllocation / Quota (§5.3), weighted. Exact; see `limits.MAX_QUOTA`."""
        return (self.dedicated + self.spare) / self.entitled if self.quota else float("inf")

    @property
    def idle(self) -> int:
        """Idle GPUs of the sharing group, which a job of this pool could use."""
        return self.group.idle

    @property
    def lends(self) -> int:
        """GPUs of its quota that other pools' jobs use."""
        return self.lent - self.lent_own

    @property
    def borrows(self) -> int:
        """GPUs of other pools' quotas that its jobs use."""
        return self.spare - self.lent_own

    @property
    def could_lend(self) -> int:
        """GPUs that it may lend to other pools now within its lend limit."""
        return max(0, min(self.unused, self.lend_limit - self.lends)) if self.group.lending else 0

    @property
    def available(self) -> int:
        """GPUs that it may lend now: `could_lend` in a limited group, else `unused`.

        In a group without limits the value may be negative.
        """
        return self.lendable if self.group.limited else self.unused

    @property
    def room(self) -> int:
        """The width of the widest spare job of this pool that idle GPUs and limits allow. O(1)."""
        group = self.group
        if not group.limited:
            return group.idle
        own = max(0, self.unused)
        others = min(group.lendable - self.lendable, self.borrow_limit - self.borrows)
        return min(max(0, group.idle - group.out), own + max(0, others))

    @property
    def over(self) -> bool:
        """Whether it lends or borrows more than its limit.

        A limit is exceeded when it was lowered, or when a loan had to move to a pool at its limit.
        """
        return self.lends > self.lend_limit or self.borrows > self.borrow_limit

    def check(self) -> None:
        """Assert that queues, allocations and loans are consistent."""
        assert 0 <= self.quota <= MAX_QUOTA, self.name
        assert min(self.dedicated, self.spare, self.lent) >= 0, self.name
        # loops instead of generators: most pools have few jobs, and tests check them at every step
        width = last = 0
        for sequence, waits in self.pending.items():
            assert last <= sequence == waits.sequence, self.name
            assert not waits.attempt, self.name
            assert not waits.job.priority, self.name
            last = sequence
        for sequence, waits in self.out_of_order.items():
            assert waits.sequence == sequence, self.name
        waiting = self.waiting()
        assert self.head is (waiting[0] if waiting else None), self.name
        for waits in waiting:
            assert waits.stream is None, self.name
            assert waits.pool is self, self.name
            assert waits.width == waits.job.width, self.name
            width += waits.gpus
        assert self.pending_width == width, self.name
        assert self.unused == max(0, self.quota - self.dedicated) - self.lent, self.name
        lent = own = 0
        for borrower in self.lent_to.values():
            lent += borrower.loans.get(self, 0)
            own += borrower.loans[self] if borrower.pool is self else 0
        assert (self.lent, self.lent_own) == (lent, own), self.name
        assert self.entitled == self.quota * self.weight, self.name


class GroupState:
    """A sharing group: pools that may lend to each other (§2). One GPU type, one location."""

    __slots__ = ("idle", "lendable", "lending", "limited", "name", "out", "pools", "quota")

    def __init__(self, name: str) -> None:
        """Start without pools."""
        self.name = name
        self.pools: list[PoolState] = []
        self.idle = 0  # sum of the pools' unused GPUs
        self.quota = 0  # sum of the quotas
        self.out = 0  # GPUs on nodes that are out: spare starts leave this many idle
        self.lending = True  # whether loans are made
        self.limited = False  # whether a pool has a limit, lending is off, or GPUs are out
        self.lendable = 0  # sum of the pools' `lendable`

    @property
    def first(self) -> str:
        """The name of its first pool, which identifies it in snapshots.

        Group names need not be unique.
        """
        return self.pools[0].name

    def is_limited(self) -> bool:
        """Return whether `limited` should be set. O(pools)."""
        limits = (min(pool.lend_limit, pool.borrow_limit) for pool in self.pools)
        return self.out > 0 or not self.lending or min(limits) < UNLIMITED

    def relimit(self) -> None:
        """Recompute the sums after a change of limits. O(pools)."""
        self.limited = self.is_limited()
        for pool in self.pools:
            pool.lendable = pool.could_lend if self.limited else 0
        self.lendable = sum(pool.lendable for pool in self.pools)

    def check(self) -> None:
        """Assert that the sums match the pools."""
        idle = quota = owned = running = lent = spare = lendable = 0
        overdrawn = False
        for pool in self.pools:
            idle += pool.unused
            quota += pool.quota
            owned += max(pool.quota, pool.dedicated)
            running += pool.dedicated + pool.spare
            lent += pool.lent
            spare += pool.spare
            lendable += pool.lendable
            overdrawn = overdrawn or pool.unused < 0
            assert not self.limited or pool.lendable == pool.could_lend, self.name
        assert (self.idle, self.quota) == (idle, quota), self.name
        assert quota <= MAX_GROUP, self.name
        assert self.out >= 0, self.name
        assert self.limited is self.is_limited(), self.name
        assert not self.limited or self.lendable == lendable, self.name
        assert overdrawn or running <= owned, f"{self.name}: {running} of {owned} GPUs in use"
        assert lent == spare, self.name


class ClusterState:
    """All pools, groups and jobs of a cluster at one moment."""

    def __init__(
        self,
        pools: Iterable[Pool],
        options: Options,
        cells: Cells | None = None,
        nodes: Iterable[GpuNode] = (),
        speeds: Iterable[SpeedRow] = (),
    ) -> None:
        """Build a cluster without jobs; with `nodes`, a cluster whose nodes differ.

        `speeds` has the speeds of models by number of nodes.

        Raises ValueError for duplicate pool names, values beyond their limits, or cells or nodes
        that contradict the pools.
        """
        self.options = options
        self.now = float("-inf")
        self.groups: list[GroupState] = []
        self.pools: dict[str, PoolState] = {}
        self.jobs: dict[str, JobState] = {}
        self.waiting = 0
        self.arrivals = 0
        self.dirty: dict[PoolState, None] = {}  # pools that changed since the last pass
        # Pools with jobs that wait for cells which jobs of other pools may free.
        self.awaiting_cells: dict[PoolState, None] = {}
        shared: dict[str, GroupState] = {}
        for pool in sorted(pools, key=lambda p: p.name):  # pools tie by name
            if pool.name in self.pools:
                raise ValueError(f"duplicate pool {pool.name!r}")
            if not 0 <= pool.quota <= MAX_QUOTA:
                raise ValueError(f"pool {pool.name!r}: quota must be 0 to {MAX_QUOTA}")
            check_sharing(pool.name, pool.lend_limit or 0, pool.borrow_limit or 0, pool.weight)
            group = shared.get(pool.group) if pool.share else GroupState(f"{pool.name} alone")
            if group is None:
                group = shared[pool.group] = GroupState(pool.group)
            if not group.pools:
                self.groups.append(group)
            state = self.pools[pool.name] = PoolState(pool, group, len(options.windows))
            group.pools.append(state)
            group.idle += state.unused
            group.quota += state.quota
        for group in self.groups:
            group.relimit()
        if any(group.quota > MAX_GROUP for group in self.groups):
            raise ValueError(f"a sharing group may own at most {MAX_GROUP} GPUs")
        quotas = [{pool.name: pool.quota for pool in group.pools} for group in self.groups]
        self.places = None if cells is None else Places(cells, quotas)
        table = NodeTable(nodes, speeds)
        self.nodes = table if table.nodes else None

    def pools_of(self, names: Iterable[str]) -> list[PoolState]:
        """Return the pools with these names, in order. Raises ValueError for an unknown name."""
        found = []
        for name in names:
            if name not in self.pools:
                raise ValueError(f"no pool {name!r}")
            found.append(self.pools[name])
        return found

    def groups_of(self, names: Iterable[str]) -> list[GroupState]:
        """Return the groups of the pools with these names, each once, in order.

        Raises ValueError as `pools_of`.
        """
        return list(dict.fromkeys(pool.group for pool in self.pools_of(names)))

    def check(self) -> None:
        """Assert every invariant of the cluster. O(jobs + pools)."""
        for pool in self.pools.values():
            pool.check()
        for group in self.groups:
            group.check()
        waiting = [w for p in self.pools.values() for w in p.waiting()]
        assert len(waiting) == self.waiting, "number of pending jobs"
        assert all(self.jobs.get(w.job.id) is w for w in waiting), "a pending job is unknown"
        dedicated = dict.fromkeys(self.pools.values(), 0)
        spare = dict.fromkeys(self.pools.values(), 0)
        for state in self.jobs.values():
            assert state.done >= 0.0 < state.speed, state.job.id
            if state.stream is Stream.DEDICATED:
                dedicated[state.pool] += state.width
                assert not state.loans, state.job.id
            elif state.stream is Stream.SPARE:
                spare[state.pool] += state.width
                assert sum(state.loans.values()) == state.width, state.job.id
                assert all(p.group is state.pool.group for p in state.loans), state.job.id
                assert all(state.job.id in p.lent_to for p in state.loans), state.job.id
            else:
                queue = (
                    state.pool.pending
                    if state.sequence in state.pool.pending
                    else state.pool.out_of_order
                )
                assert queue.get(state.sequence) is state, state.job.id
        if self.places is not None:
            self.places.check({i: (j.stream, j.width) for i, j in self.jobs.items() if j.stream})
        if self.nodes is not None:
            self.nodes.check({i: j.width for i, j in self.jobs.items() if j.stream})
        for pool in self.pools.values():
            assert pool.dedicated == dedicated[pool], pool.name
            assert pool.spare == spare[pool], pool.name
