"""SIA with coarse forecasts (§5.3, Figs. 7 and 8).

Figure 8 clears and re-makes all reservations before each spare start. All of them begin now and
last as long as the window, so MaxReservation(now, window) is their sum: it is kept up to date for
each group and window, and only pools that changed are looked at again.

Where there are cells, the same numbers, of widths rounded up to cells, are also held back as cells
(`cells.holds`): allocating dedicated cells to no job, as §5.5 has it. Spare starts fail while
something that is held back is not there. In their own cells jobs start in turn (`sia.turns`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from math import ceil, inf
from typing import Any

from msgspec import Struct, convert, to_builtins

from cells.placement.reservations import ReservedGpus
from sia.model import Stream
from sia.policies import Needs, Policy, Proposal, ReleaseCells, ReserveCells, StartProposal
from sia.policies.shared.fifo import FifoQueue
from sia.policies.shared.lineup import Lineup
from sia.policies.sia.cell_turns import VirtualQueue, VirtualQueueSnapshot
from sia.policies.sia.reservations import ROUNDING, no_lending_windows
from sia.state.places import Places
from sia.state.state import ClusterState, GroupState, JobState, PoolState


class _Group:
    """What is reserved in a sharing group for each window, and which widths wait in each bin."""

    def __init__(self, group: GroupState, windows: int) -> None:
        self.lineup = Lineup(group)  # pools whose head is within quota
        self.reserved = [0] * windows
        self.widths: list[dict[int, int]] = [{} for _ in range(windows)]  # width: jobs waiting
        self.queues: dict[PoolState, list[dict[int, FifoQueue]]] = {
            pool: [{} for _ in range(windows)] for pool in group.pools
        }  # by bin and width
        self.waiting: dict[PoolState, int] = {}  # jobs in these queues, of pools that have some
        self.holds: list[ReservedGpus] = []  # of each window, where there are cells


class _Memory(Struct):
    """Groups that the next pass looks at; in cells, whose turn it is."""

    uncovered: list[str]
    turns: VirtualQueueSnapshot | None = None


class Sia(Policy):
    """Dedicated starts in order within quota, then spare starts on what nobody will need."""

    needs = Needs(run_times=True, updates=True, loads=True)
    shares = True
    places = True
    exclude_bound = False
    """In cells, that spare jobs keep out of all cells with jobs of a pool's own."""

    def attach(self, state: ClusterState) -> None:
        """Index waiting jobs by group, pool, duration bin and width."""
        options = state.options
        self._windows = options.windows
        self._labels = [f"fits the {w:g} s for which nobody needs them" for w in options.windows]
        self._groups = {group: _Group(group, len(options.windows)) for group in state.groups}
        if state.places is not None:
            for group, own in self._groups.items():
                first = group.pools[0].name
                made = (
                    state.places.reservations(first, exclude_bound=self.exclude_bound)
                    for _ in options.windows
                )
                own.holds = [holds for holds in made if holds is not None]
        self._held: dict[PoolState, list[int]] = {
            pool: [0] * len(options.windows) for pool in state.pools.values()
        }
        self._keeps = {pool: no_lending_windows(pool, options) for pool in state.pools.values()}
        # Where a spare start may have made a job the head that fits in quota: Fig. 7 is over for
        # this pass, the next one has to look.
        self._uncovered: dict[GroupState, None] = {}
        self._turns = None if state.places is None else VirtualQueue()
        self._rank = {p: -options.spare_priority.get(p.name, 0) for p in state.pools.values()}
        super().attach(state)

    def memory(self) -> Any:
        """What a pass left for the next one, and whose turn it is."""
        turns = None if self._turns is None else self._turns.memory()
        return to_builtins(_Memory([group.first for group in self._uncovered], turns))

    def resume(self, state: ClusterState, memory: Any) -> None:
        """Reserve again what was; O(pools · windows) besides what attaching costs."""
        self.attach(state)
        kept = convert(memory, _Memory)
        self._uncovered = state.groups_of(kept.uncovered)
        if (self._turns is None) is not (kept.turns is None):
            raise ValueError("turns are of cells: one is there without the other")
        if kept.turns is not None:
            self._turns = VirtualQueue()
            self._turns.resume(kept.turns, state)
        for pool in state.pools.values():
            self._reserve(pool)

    def bin(self, job: JobState) -> int:
        """The first window within which a job would be gone; their number if it is none."""
        return bisect_left(self._windows, job.run_time)

    def submitted(self, job: JobState) -> None:
        """O(1). Jobs of the last bin, longer than every window, only start in order."""
        if self._turns is not None:
            self._turns.submitted(job)
        window = self.bin(job)
        if window < len(self._windows):
            group = self._groups[job.pool.group]
            queues = group.queues[job.pool][window]
            queue = queues.get(job.width)
            if queue is None:
                queue = queues[job.width] = FifoQueue()
            queue.add(job)
            group.waiting[job.pool] = group.waiting.get(job.pool, 0) + 1
            group.widths[window][job.width] = group.widths[window].get(job.width, 0) + 1

    def left(self, job: JobState) -> None:
        """O(1)."""
        if self._turns is not None and job.stream is Stream.SPARE:
            self._turns.started(job)
        window = self.bin(job)
        if window < len(self._windows):
            group = self._groups[job.pool.group]
            queues = group.queues[job.pool][window]
            jobs = queues[job.width].jobs
            del jobs[job.sequence]
            if not jobs:
                del queues[job.width]
            group.waiting[job.pool] -= 1
            if not group.waiting[job.pool]:
                del group.waiting[job.pool]
            group.widths[window][job.width] -= 1
            if not group.widths[window][job.width]:
                del group.widths[window][job.width]

    def finished(self, job: JobState) -> None:
        """O(log n) in cells."""
        if self._turns is not None:
            self._turns.finished(job, self.state.now)

    def due(self) -> float:
        """When cells are next kept no longer."""
        return inf if self._turns is None else self._turns.next_end

    def propose(self, now: float) -> Iterator[Proposal]:
        """AllocateDedicatedResources and AllocateSpareResources, in the groups that changed."""
        state = self.state
        while self._turns is not None and (over := self._turns.over(now)) is not None:
            yield ReleaseCells(over)
            state.dirty[over.pool] = None
        for pool in state.dirty:
            self._reserve(pool)
        groups = dict.fromkeys([*self._uncovered, *state.dirty_groups()])
        self._uncovered.clear()
        for group in groups:
            yield from self._start_heads(group)
            yield from self._start_spare(group)
        tick = state.options.tick
        next_tick = (now // tick + 1.0) * tick if state.waiting else inf
        if (wake := min(next_tick, self.due())) < inf:
            yield wake

    def _start_heads(self, group: GroupState) -> Iterator[Proposal]:
        """AllocateDedicatedResources; in cells, whose turn it is."""
        if self._turns is not None:
            for pool in group.pools:
                if pool in self.state.dirty:
                    yield from self._take_turns(pool, self._turns, self.state.places)
            return
        own = self._groups[group]
        while (first := own.lineup.first()) is not None:
            head = first.head
            assert head is not None, "a pool without a head is not lined up"
            yield StartProposal(head, Stream.DEDICATED, "head of its pool, within quota")
            self._reserve(first)

    def _take_turns(
        self, pool: PoolState, turns: VirtualQueue, places: Places | None
    ) -> Iterator[Proposal]:
        """Start the first of a pool, or keep cells for it where it started elsewhere; and so on."""
        assert places is not None, "turns are of cells"
        while (job := turns.first(pool, self.state.jobs)) is not None:
            width, done = job.job.width, False
            if turns.is_away(job):
                yield ReserveCells(job)
                done = places.is_reserved(job.job.id)
            elif pool.dedicated + width <= pool.quota and width <= pool.idle:
                yield StartProposal(job, Stream.DEDICATED, "its turn in its pool")
                done = job.stream is not None
            if not done:
                return
            turns.taken(job, self.state.now)
            self._reserve(pool)

    def _start_spare(self, group: GroupState) -> Iterator[Proposal]:
        """AllocateSpareResources, within the limits on loans."""
        own = self._groups[group]
        narrowest = 0  # of all jobs that would be gone within the window
        for window, widths in enumerate(own.widths):
            if widths:
                narrowest = min(narrowest, *widths) if narrowest else min(widths)
            room = group.idle  # wider jobs find no spare cells
            while 0 < narrowest <= (usable := min(self._usable(group, window), room)):
                job = self._next_spare(group, window, usable)
                if job is None:
                    break  # limits on loans keep all of them back
                holds = self._window_holds(group, window)
                yield StartProposal(job, Stream.SPARE, self._labels[window], holds=holds)
                if job.stream is None:
                    assert self.state.places is not None, "without cells, what is usable will do"
                    room = self.state.places.narrower(job.pool.name, job.width)
                    continue
                self._uncovered[group] = None
                self._reserve(job.pool)
                narrowest = min((min(w) for w in own.widths[: window + 1] if w), default=0)

    def _usable(self, group: GroupState, window: int) -> int:
        """GPUs that are idle and nobody will need within a window."""
        return group.idle - group.out - self._groups[group].reserved[window]

    def _window_holds(self, group: GroupState, window: int) -> ReservedGpus | None:
        """What a spare start must leave, where there are cells."""
        holds = self._groups[group].holds
        return holds[window] if holds else None

    def _reserve(self, pool: PoolState) -> None:
        """ReserveResourcesForFuture, for every window, and whether the head may start."""
        own = self._groups[pool.group]
        unused_quota = pool.quota - pool.dedicated
        head = pool.head
        if head is not None and head.width <= unused_quota:
            own.lineup.put(pool, head.width)
        else:
            own.lineup.drop(pool)
        unused_quota = max(0, unused_quota)
        held, reserved = self._held[pool], own.reserved
        waiting = pool.pending_width
        if self._turns is not None:
            waiting += self._turns.ahead(pool)  # for whom cells will be kept
        slack = self.state.options.slack
        for window, load in enumerate(pool.load):
            need = waiting + load
            if slack != 1.0:
                need = ceil(need * slack - ROUNDING)
            if need > unused_quota or window in self._keeps[pool]:
                need = unused_quota
            if need != held[window]:
                reserved[window] += need - held[window]
                held[window] = need
                if own.holds:
                    self._hold(own.holds[window], pool, window)

    def _hold(self, holds: ReservedGpus, pool: PoolState, window: int) -> None:
        """Hold back as cells what is reserved for a pool."""
        holds.set(pool.name, self._held[pool][window])

    def _next_spare(self, group: GroupState, window: int, gpus: int) -> JobState | None:
        """The next pool's first job in its order that is short and narrow enough."""
        own = self._groups[group]
        best: JobState | None = None
        order: tuple[int, float, str] | None = None
        loans = 0  # nor is anything, where lending is off: not looked at each time
        if group.limited and group.lending:
            loans = sum(self._spared(pool, window) for pool in group.pools)
        for pool in own.waiting:
            usable = min(gpus, self._room(pool, window, loans)) if group.limited else gpus
            first = None
            for queues in own.queues[pool][: window + 1]:
                for width, queue in queues.items():
                    if width <= usable:
                        head = queue.first()
                        if first is None or head < first:
                            first, job = head, queue.jobs[head]
            if first is not None:
                rank = (self._rank[pool], pool.ratio, pool.name)
                if order is None or rank < order:
                    order, best = rank, job
        assert best is not None or group.limited, "a width is counted that no job has"
        return best

    def _spared(self, pool: PoolState, window: int) -> int:
        """What a pool may lend besides what is held back for it.

        Below 0 it uses what is held back, or has lent it: others will have to lend as much.
        """
        return min(pool.unused - self._held[pool][window], pool.lendable)

    def _room(self, pool: PoolState, window: int, loans: int) -> int:
        """GPUs for a spare job of a pool: its own, and what limits let it have of all `loans`."""
        spared = self._spared(pool, window)
        own = pool.unused - self._held[pool][window]
        others = min(loans - max(0, spared), pool.borrow_limit - pool.borrows + min(0, own))
        return max(0, own) + max(0, others)

    def check(self) -> None:
        """Queues, counts and sums agree with the state."""
        if self._turns is not None and self.state.places is not None:
            waiting = [job for pool in self.state.pools.values() for job in pool.waiting()]
            self._turns.check(waiting, self.state.places.reserved_jobs())
        for group, own in self._groups.items():
            if not any(pool in self.state.dirty for pool in group.pools):
                heads = {p: head.width for p in group.pools if (head := p.head)}
                unused = {p: p.quota - p.dedicated for p in group.pools}
                own.lineup.check({p: w for p, w in heads.items() if w <= unused[p]})
            for window in range(len(self._windows)):
                held = sum(self._held[pool][window] for pool in group.pools)
                assert held == own.reserved[window], (group.name, window)
                widths: dict[int, int] = {}
                for queues in own.queues.values():
                    for width, queue in queues[window].items():
                        widths[width] = widths.get(width, 0) + len(queue.jobs)
                assert widths == own.widths[window], (group.name, window)
            for pool, queues in own.queues.items():
                jobs_of = sum(len(q.jobs) for by_width in queues for q in by_width.values())
                assert jobs_of == own.waiting.get(pool, 0), pool.name
