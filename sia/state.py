"""What the core knows: pools, sharing groups and jobs.

Policies read all of it and write none of it; `sia.commit` is the only writer. Each class asserts
its own invariants in `check()`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from sortedcontainers import SortedDict

from cells.cells import Cells
from sia.limits import MAX_GROUP, MAX_QUOTA
from sia.model import Job, Options, Pool, Stream
from sia.places import Places


class JobState:
    """A job that waits (`stream` is None) or runs.

    Work is counted in seconds of a run at the job's own width.
    """

    __slots__ = (
        "attempt",
        "done",
        "gpus",
        "job",
        "loans",
        "overhead",
        "pool",
        "run_time",
        "sequence",
        "speed",
        "start",
        "stream",
        "width",
    )

    def __init__(self, job: Job, pool: PoolState, run_time: float, sequence: int) -> None:
        """Take `run_time` as an estimate in seconds; `sequence` is the order of arrival."""
        self.job = job
        self.pool = pool
        self.width = job.width  # GPUs that it runs on; its own number while it waits
        self.gpus = job.width  # its own number, rounded up to cells where there are some
        self.run_time = run_time
        self.sequence = sequence
        self.stream: Stream | None = None
        self.start = 0.0  # of the segment that runs, or ran last
        self.loans: dict[PoolState, int] = {}
        self.attempt = 0  # segments so far
        self.done = 0.0  # work of the segments before the one that runs
        self.overhead = 0.0  # seconds at the start of this segment in which no work is done
        self.speed = 1.0  # work a second

    def work(self, now: float) -> float:
        """Work done until now, in seconds at its own width."""
        if self.stream is None:
            return self.done
        return self.done + max(0.0, now - self.start - self.overhead) * self.speed

    @property
    def frees(self) -> int:
        """GPUs that are idle once it stops: not all of its own where its pool has shrunk."""
        if self.stream is None:
            return 0
        if self.stream is Stream.SPARE:
            return self.width
        return max(0, self.width - max(0, self.pool.dedicated - self.pool.quota))

    def end(self, run_time: float) -> float:
        """When its segment ends, if it has so much work in all and nothing comes between."""
        return self.start + (self.overhead + max(0.0, run_time - self.done) / self.speed)


class PoolState:
    """A pool: its queue, what runs of it, what it lends. All counts are GPUs.

    Jobs that were preempted wait beside those that never ran: a queue that only grows at its end
    costs half as much.
    """

    __slots__ = (
        "dedicated",
        "group",
        "lent",
        "lent_to",
        "load",
        "name",
        "pending",
        "pending_width",
        "quota",
        "spare",
        "stopped",
        "unused",
    )

    def __init__(self, pool: Pool, group: GroupState, windows: int) -> None:
        """Start with all of `pool.quota` unused and no load foreseen in any window."""
        self.name = pool.name
        self.group = group
        self.quota = pool.quota
        self.dedicated = 0  # GPUs of its running dedicated jobs
        self.spare = 0  # GPUs of its running spare jobs, wherever they are
        self.lent = 0  # GPUs of its quota that spare jobs use, its own ones included
        self.lent_to: dict[str, JobState] = {}
        self.unused = pool.quota
        self.pending: OrderedDict[int, JobState] = OrderedDict()  # by order of arrival
        self.stopped: SortedDict[int, JobState] = SortedDict()  # preempted, by order of arrival
        self.pending_width = 0  # of both; widths are rounded up to cells, where there are some
        self.load = [0] * windows  # TotalNewLoad of each window

    @property
    def head(self) -> JobState | None:
        """Of the jobs that wait, the one that came first."""
        first = next(iter(self.pending.values()), None)
        if self.stopped:
            stopped: JobState = self.stopped.peekitem(0)[1]
            if first is None or stopped.sequence < first.sequence:
                return stopped
        return first

    def waits(self, sequence: int) -> JobState:
        """The waiting job of that sequence number. O(1)."""
        job = self.pending.get(sequence)
        return self.stopped[sequence] if job is None else job

    def waiting(self) -> list[JobState]:
        """All that wait, in order of arrival. O(n)."""
        both = [*self.pending.values(), *self.stopped.values()]
        return sorted(both, key=lambda job: job.sequence) if self.stopped else both

    @property
    def ratio(self) -> float:
        """CurrentAllocation / Quota: who is visited first (§5.3). Exact: `limits.MAX_QUOTA`."""
        return (self.dedicated + self.spare) / self.quota if self.quota else float("inf")

    @property
    def idle(self) -> int:
        """GPUs that a job of this pool could start on now, its own unused ones and others'."""
        return self.group.idle

    def check(self) -> None:
        """Assert that queue, allocations and loans fit together."""
        assert 0 <= self.quota <= MAX_QUOTA, self.name
        assert min(self.dedicated, self.spare, self.lent) >= 0, self.name
        waiting = self.waiting()
        assert self.pending_width == sum(w.gpus for w in waiting), self.name
        assert all(w.stream is None and w.pool is self for w in waiting), self.name
        assert all(w.width == w.job.width for w in waiting), self.name
        assert list(self.pending) == sorted(self.pending), self.name
        assert all(self.pending[i].sequence == i for i in self.pending), self.name
        assert all(self.stopped[i].sequence == i for i in self.stopped), self.name
        assert all(w.attempt for w in self.stopped.values()), self.name
        assert self.unused == max(0, self.quota - self.dedicated) - self.lent, self.name
        assert self.lent == sum(j.loans.get(self, 0) for j in self.lent_to.values()), self.name


class GroupState:
    """Pools that may lend to each other: GPUs of one kind in one place (§2)."""

    __slots__ = ("idle", "name", "pools", "quota")

    def __init__(self, name: str) -> None:
        """Start without pools."""
        self.name = name
        self.pools: list[PoolState] = []
        self.idle = 0  # sum of what the pools do not use
        self.quota = 0  # sum of the quotas

    @property
    def first(self) -> str:
        """Its first pool's name, by which snapshots know it: two groups may have one name."""
        return self.pools[0].name

    def check(self) -> None:
        """Assert that the sums are those of the pools."""
        assert self.idle == sum(p.unused for p in self.pools), self.name
        assert self.quota == sum(p.quota for p in self.pools) <= MAX_GROUP, self.name
        quota = sum(max(p.quota, p.dedicated) for p in self.pools)
        overdrawn = any(p.unused < 0 for p in self.pools)
        running = sum(p.dedicated + p.spare for p in self.pools)
        assert overdrawn or running <= quota, f"{self.name}: {running} GPUs run, {quota} are there"
        assert sum(p.lent for p in self.pools) == sum(p.spare for p in self.pools), self.name


class State:
    """All pools, groups and jobs of a cluster at one moment."""

    def __init__(self, pools: Iterable[Pool], options: Options, cells: Cells | None = None) -> None:
        """Build an empty cluster.

        Raises ValueError on pools of one name, sizes over limits, or cells that contradict them.
        """
        self.options = options
        self.now = float("-inf")
        self.groups: list[GroupState] = []
        self.pools: dict[str, PoolState] = {}
        self.jobs: dict[str, JobState] = {}
        self.waiting = 0
        self.arrivals = 0
        self.dirty: dict[PoolState, None] = {}  # pools that changed since the last pass
        self.placeless: dict[PoolState, None] = {}  # with jobs for which others' cells were missing
        shared: dict[str, GroupState] = {}
        for pool in sorted(pools, key=lambda p: p.name):  # ties between pools go by name
            if pool.name in self.pools:
                raise ValueError(f"pool {pool.name!r} stands twice")
            if not 0 <= pool.quota <= MAX_QUOTA:
                raise ValueError(f"pool {pool.name!r}: a quota is 0 to {MAX_QUOTA}")
            group = shared.get(pool.group) if pool.share else GroupState(f"{pool.name} alone")
            if group is None:
                group = shared[pool.group] = GroupState(pool.group)
            if not group.pools:
                self.groups.append(group)
            state = self.pools[pool.name] = PoolState(pool, group, len(options.windows))
            group.pools.append(state)
            group.idle += state.unused
            group.quota += state.quota
        if any(group.quota > MAX_GROUP for group in self.groups):
            raise ValueError(f"a sharing group owns at most {MAX_GROUP} GPUs")
        quotas = [{pool.name: pool.quota for pool in group.pools} for group in self.groups]
        self.places = None if cells is None else Places(cells, quotas)

    def pools_of(self, names: Iterable[str]) -> dict[PoolState, None]:
        """The pools of these names, in their order. Raises ValueError for one that is not there."""
        found: dict[PoolState, None] = {}
        for name in names:
            if name not in self.pools:
                raise ValueError(f"there is no pool {name!r}")
            found[self.pools[name]] = None
        return found

    def groups_of(self, names: Iterable[str]) -> dict[GroupState, None]:
        """The groups of the pools of these names, in their order. Raises as `pools_of`."""
        return dict.fromkeys(pool.group for pool in self.pools_of(names))

    def dirty_groups(self) -> list[GroupState]:
        """Groups of the pools that changed since the last pass, in the order of the changes."""
        return list(dict.fromkeys(pool.group for pool in self.dirty))

    def check(self) -> None:
        """Assert every invariant of the cluster; O(jobs + pools)."""
        for pool in self.pools.values():
            pool.check()
        for group in self.groups:
            group.check()
        waiting = [w for p in self.pools.values() for w in p.waiting()]
        assert len(waiting) == self.waiting, "waiting jobs"
        assert all(self.jobs.get(w.job.id) is w for w in waiting), "a waiting job is not known"
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
                    else state.pool.stopped
                )
                assert queue.get(state.sequence) is state, state.job.id
        if self.places is not None:
            self.places.check({i: (j.stream, j.width) for i, j in self.jobs.items() if j.stream})
        for pool in self.pools.values():
            assert pool.dedicated == dedicated[pool], pool.name
            assert pool.spare == spare[pool], pool.name
