"""SIA with coarse forecasts (§5.3, Figs. 7 and 8).

Figure 8 clears and rebuilds all reservations before each spare start. All of them begin now and
last for the window, so MaxReservation(now, window) is their sum. This module maintains the sum for
each group and window, and updates only pools that changed.

In a cluster with cells, the same numbers, with widths rounded up to cells, are also reserved as
cells (`cells.placement.reservations`), as §5.5 describes. Spare starts fail while a reservation is
not satisfied. Dedicated starts follow the baseline order (`sia.policies.sia.cell_turns`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Generator, Sequence
from heapq import heapify, heappop, heappush
from math import ceil, inf
from typing import Annotated, Any, ClassVar, NamedTuple

from msgspec import Meta, Struct, convert, to_builtins

from cells.placement.placing import Price, equal_price
from cells.placement.reservations import ReservedGpus
from sia.contract.policy import Awaited, Changes, Needs, Policy, Turn, next_multiple
from sia.contract.proposals import (
    Dedicate,
    Proposal,
    ProposalResult,
    Proposals,
    ReleaseCells,
    ReserveCells,
    Start,
    Wake,
)
from sia.contract.views import ClusterStateView, GroupStateView, JobStateView, PoolStateView
from sia.model import Stream
from sia.policies.shared.fifo import FifoQueue
from sia.policies.shared.lineup import Lineup
from sia.policies.sia.cell_turns import VirtualQueue, VirtualQueueSnapshot
from sia.policies.sia.ends import EndsSnapshot, GuestEnds
from sia.policies.sia.late_turns import (
    LATE_TURNS,
    MOST_NAMED,
    LateTurns,
    LateTurnsSnapshot,
)
from sia.policies.sia.own_turns import OwnTurns, OwnTurnsSnapshot
from sia.policies.sia.reservations import ROUNDING, no_lending_windows
from sia.policies.sia.risk import LendingRisk, RiskSnapshot
from sia.state.places import Places

CLEAN = 0.5
"""Fraction of the free quota cells that spare jobs leave empty in a cluster with cells, if
forecasts are not exact. Cells that a forecast reserves or that are bound to a pool do not count. If
a forecast was too low, the pool needs whole cells, and a cell with a spare job in it does not help.
docs/results/cells.md compares other rules: under random forecasts 23.9 % of the jobs of three
Philly pieces were later than alone with 0, 5.2 % with 0.5 alone, and 2.5 % with what
`ReservedGpus` leaves for one pool in addition."""


class _Group:
    """A sharing group's pending jobs by run-time bin and width; `plan` has the reservations."""

    def __init__(self, group: GroupStateView, windows: int) -> None:
        self.lineup = Lineup(group)  # pools whose head fits in quota
        self.widths: list[dict[int, int]] = [{} for _ in range(windows)]  # width: pending jobs
        self.queues: dict[PoolStateView, list[dict[int, FifoQueue]]] = {
            pool: [{} for _ in range(windows)] for pool in group.pools
        }  # by bin and width
        self.waiting: dict[PoolStateView, int] = {}  # number of jobs in these queues, if any
        self.holds: list[ReservedGpus] = []  # by window, in a cluster with cells


class _Borrower(NamedTuple):
    """A pool with pending jobs, in the order in which pools borrow: the least one is next."""

    rank: int
    ratio: float
    name: str
    pool: PoolStateView


class SiaParams(Struct, frozen=True, omit_defaults=True):
    """Options of SIA."""

    risk: Annotated[float, Meta(gt=0, le=1)] | None = None
    """Limit on the GPUs that guests of a sharing group may keep beyond their windows, as a fraction
    of the GPUs on which no dedicated job runs; None for no limit (`sia.policies.sia.risk`)."""
    turns: bool = False
    """Whether a guest counts within its own pool's quota from its turn on
    (`sia.policies.sia.own_turns`). Without effect in a cluster with cells, which has turns."""
    chance: Annotated[float, Meta(gt=0, le=1)] | None = None
    """Limit on the chance that guests still hold GPUs which new jobs need after the window of a
    loan; None for no limit (`sia.policies.sia.ends`)."""


class _Memory(Struct):
    """Groups to consider in the next pass; in a cluster with cells, the baseline order."""

    uncovered: list[str]
    turns: VirtualQueueSnapshot | None = None


class _WholeMemory(_Memory):
    """The memory with fields that are omitted if they are empty."""

    risks: dict[str, RiskSnapshot] = {}
    """With the option `risk`: the guests of each group, and measurements of earlier guests."""
    ends: dict[str, EndsSnapshot] = {}
    """With the option `chance`: the running jobs of each group, and measurements of earlier
    jobs."""
    own_turns: OwnTurnsSnapshot | None = None
    """With the option `turns` the pools alone, and guests whose turn has come; without it pools
    with priorities alone."""
    short: list[str] = []
    """In a cluster with cells: pools whose head waits for GPUs of other pools' jobs."""
    behind: list[str] = []
    """In a cluster with cells: pools whose queue is later than alone because spare jobs had their
    cells."""
    late_turns: LateTurnsSnapshot = LateTurnsSnapshot()
    """In a cluster with cells: turns that were blocked by spare jobs."""


class Sia(Policy):
    """Dedicated starts in order within quota, then spare starts on GPUs that no pool needs."""

    Params: ClassVar[type[Struct]] = SiaParams
    needs = Needs(run_times=True, updates=True, loads=True)
    shares = True
    places = True
    exclude_bound = False
    """In a cluster with cells: whether spare jobs use no cells bound to a pool. If forecasts are
    not exact they never do."""
    held_up_by = "in the way"
    """What a late start says of the guests that it names."""
    keeps_clear = True
    """In a cluster with cells, if forecasts are not exact: whether spare jobs leave whole cells
    free for unexpected jobs, and whether pools that are later than alone catch up."""

    def attach(self, state: ClusterStateView) -> None:
        """Index pending jobs by group, pool, run-time bin and width."""
        options = state.options
        self._windows = options.windows
        self._labels = [
            f"ends within {w:g} s, in which no pool needs the GPUs" for w in options.windows
        ]
        self._groups = {group: _Group(group, len(options.windows)) for group in state.groups}
        if state.places is not None:
            bound = self.exclude_bound or not options.exact
            clean = 0.0 if options.exact or not self.keeps_clear else CLEAN
            for group, own in self._groups.items():
                first = group.pools[0].name
                made = (
                    state.places.reservations(first, exclude_bound=bound, clean=clean)
                    for _ in options.windows
                )
                own.holds = [holds for holds in made if holds is not None]
        self._keeps = {pool: no_lending_windows(pool, options) for pool in state.pools.values()}
        # Groups in which a spare start may have made a fitting job the head. Fig. 7 has ended for
        # this pass, so the next pass must consider them.
        self._uncovered: dict[GroupStateView, None] = {}
        self._turns = None if state.places is None else VirtualQueue()
        self._late_turns = LateTurns()
        if state.places is not None:
            self.tables = (LATE_TURNS,)
        self._most: float | None = getattr(self.params, "risk", None)
        measured = () if self._most is None else state.groups
        self._risks = {group: LendingRisk(options.windows) for group in measured}
        self._chance: float | None = getattr(self.params, "chance", None)
        measured = () if self._chance is None else state.groups
        self._guest_ends = {group: GuestEnds(options.windows) for group in measured}
        running = [job for job in state.jobs.values() if self._guest_ends and job.stream]
        for job in sorted(running, key=lambda job: (job.start, job.arrival)):
            self._record_start(job, self.bin(job), job.start)
        self._own_turns = self._turns_of(state)
        # Pools whose head waits for GPUs that jobs of other pools have, in a cluster with cells.
        self._short: dict[PoolStateView, None] = {}
        # Pools with jobs that are later than without sharing, because spare jobs blocked them.
        self._behind: dict[PoolStateView, None] = {}
        self._rank = {p: -options.spare_priority.get(p.name, 0) for p in state.pools.values()}
        super().attach(state)

    def _turns_of(self, state: ClusterStateView) -> OwnTurns | None:
        """Return the clocks of pools; None with cells, where there is the baseline order."""
        option = getattr(self.params, "turns", False)
        return OwnTurns(state, option=option) if state.places is None else None

    def memory(self) -> Any:
        """Return the groups left for the next pass, and the baseline order."""
        turns = None if self._turns is None else self._turns.memory()
        uncovered = [group.first for group in self._uncovered]
        memory = to_builtins(_Memory(uncovered, turns))
        if self._risks:
            risks = {group.first: risk.memory() for group, risk in self._risks.items()}
            memory["risks"] = to_builtins(risks)
        if self._guest_ends:
            ends = {group.first: each.memory() for group, each in self._guest_ends.items()}
            memory["ends"] = to_builtins(ends)
        if self._own_turns is not None and self._own_turns.used:
            memory["own_turns"] = to_builtins(self._own_turns.memory())
        if self._short:
            memory["short"] = [pool.name for pool in self._short]
        if self._behind:
            memory["behind"] = [pool.name for pool in self._behind]
        if late := to_builtins(self._late_turns.memory()):
            memory["late_turns"] = late
        return memory

    def resume(self, state: ClusterStateView, memory: Any) -> None:
        """Restore all reservations. O(pools · windows) in addition to `attach`."""
        self.attach(state)
        kept = convert(memory, _WholeMemory)
        self._uncovered = dict.fromkeys(state.groups_of(kept.uncovered))
        self._short = dict.fromkeys(state.pools_of(kept.short))
        self._behind = dict.fromkeys(state.pools_of(kept.behind))
        self._late_turns.resume(kept.late_turns, state)
        if (self._turns is None) is not (kept.turns is None):
            raise ValueError("the memory has a virtual queue if and only if the cluster has cells")
        if kept.turns is not None:
            self._turns = VirtualQueue()
            self._turns.resume(kept.turns, state)
        known = kept.risks or kept.ends
        jobs = {job.arrival: job for job in state.jobs.values()} if known else {}
        for group, risk in zip(state.groups_of(kept.risks), kept.risks.values(), strict=True):
            if group in self._risks:
                self._risks[group].resume(risk, jobs)
        for group, ends in zip(state.groups_of(kept.ends), kept.ends.values(), strict=True):
            if group in self._guest_ends:
                self._guest_ends[group].resume(ends, jobs)
        if self._own_turns is not None and kept.own_turns is not None:
            option = getattr(self.params, "turns", False)
            self._own_turns = OwnTurns.resumed(kept.own_turns, state, option=option)
        self._restore(memory)

    def _restore(self, memory: Any) -> None:
        """Restore all reservations."""
        for pool in self.state.pools.values():
            self._reserve(pool)

    def bin(self, job: JobStateView) -> int:
        """Return the first window within which a job would end, or the number of windows."""
        return bisect_left(self._windows, job.run_time)

    def submitted(self, job: JobStateView) -> None:
        """Queue a job. O(1). Jobs longer than every window get only dedicated starts."""
        if self._own_turns is not None:
            self._own_turns.submitted(job)
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

    def left(self, job: JobStateView) -> None:
        """Remove a job from its queue. O(1)."""
        if self._own_turns is not None:
            self._own_turns.left(job, gone=job.job.id not in self.state.jobs)
        if self._turns is not None:
            if job.stream is Stream.SPARE:
                self._turns.started(job)
            elif job.stream is None and job.job.id not in self.state.jobs:
                self._turns.withdrawn(job, self.state.now)
                self._late_turns.gone(job, self.state.now)
        window = self.bin(job)
        if job.stream is not None:
            self._record_start(job, window, self.state.now)
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

    def _record_start(self, job: JobStateView, window: int, now: float) -> None:
        """Update the risk of loans."""
        group, guest = job.pool.group, job.stream is Stream.SPARE
        if self._risks and guest:
            self._risks[group].add(job, window, now)
        if self._guest_ends:
            self._guest_ends[group].started(job, window, now, guest=guest)

    def finished(self, job: JobStateView) -> None:
        """Update the baseline order and the risk of loans. O(log n)."""
        if self._own_turns is not None:
            self._own_turns.finished(job, self.state.now)
        if self._turns is not None:
            self._turns.finished(job, self.state.now)
            self._late_turns.gone(job, self.state.now)
        if self._risks:
            self._risks[job.pool.group].drop(job, self.state.now)
        if self._guest_ends:
            self._guest_ends[job.pool.group].ended(job, self.state.now)

    def turn(self, job: JobStateView) -> Turn | None:
        """Return when a job's turn came, in a cluster with cells. O(1)."""
        if self._turns is None:
            return None
        came = self._late_turns.turn_of(job)
        if came is None:
            came = self._turns.turn_of(job)
        if came is None and job.stream is Stream.DEDICATED:
            came = job.start
        return None if came is None else Turn(came, came=True)

    def guests_before(self, job: JobStateView) -> Sequence[JobStateView]:
        """Return guests of its pool whose turn has come, if the quota has no room beside them."""
        if self._own_turns is None or job.width <= self._unused_quota(job.pool):
            return ()
        return self._own_turns.claims(job.pool)

    def due(self) -> float:
        """Return when a reservation of cells ends, or a pool's clock is to advance."""
        if self._own_turns is not None:
            return self._own_turns.next_due
        return inf if self._turns is None else self._turns.next_end

    def propose(self, now: float, changes: Changes) -> Proposals:
        """AllocateDedicatedResources and AllocateSpareResources in the groups that changed."""
        state = self.state
        while self._turns is not None and (over := self._turns.over(now)) is not None:
            yield from self._release(over)
        groups, self._uncovered = self._uncovered, {}
        pools = dict.fromkeys(changes.pools)
        turns = self._own_turns if self._own_turns is not None and self._own_turns.used else None
        if turns is not None:
            pools.update(dict.fromkeys(state.pools_of(turns.due_pools(now))))
            for pool in pools:
                turns.advance(pool, now)
        for pool in pools:
            self._reserve(pool)
            groups[pool.group] = None
        if turns is not None:
            for pool in pools:
                yield from self._settle_guests(pool, turns)
        for group in groups:
            if self._risks:
                self._risks[group].advance(now)
            yield from self._start_heads(group)
            yield from self._start_spare(group)
        next_tick = next_multiple(now, state.options.tick) if state.waiting else inf
        due = self.due()
        wake = min(next_tick, due) if due > now else next_tick  # a job ran for 0 seconds
        if wake < inf:
            yield Wake(wake)

    def _settle_guests(self, pool: PoolStateView, turns: OwnTurns) -> Proposals:
        """Count guests whose turn has come within their pool's quota, as far as it has room."""
        for job in turns.claims(pool):
            if pool.dedicated + job.width <= pool.quota and pool.idle >= 0:
                yield Dedicate(job, "its turn has come")
                turns.settle(job)
                if self._risks:
                    self._risks[pool.group].returned(job, self.state.now)
                if self._guest_ends:
                    self._guest_ends[pool.group].returned(job)
                self._reserve(pool)

    def _release(self, job: JobStateView) -> Proposals:
        """Release the cells that were reserved for a job, which has ended."""
        yield ReleaseCells(job)

    def _start_heads(self, group: GroupStateView) -> Proposals:
        """AllocateDedicatedResources; in a cluster with cells, in the baseline order."""
        if self._turns is not None:
            for pool in group.pools:
                if pool in self.state.dirty or pool in self._short:
                    yield from self._take_turns(pool, self._turns, self.state.places)
            return
        own = self._groups[group]
        while (first := own.lineup.first()) is not None:
            head = first.head
            assert head is not None, "a pool without a head is not lined up"
            yield Start(head, Stream.DEDICATED, "head of its pool, within quota")
            self._reserve(first)

    def _take_turns(
        self, pool: PoolStateView, turns: VirtualQueue, places: Places | None
    ) -> Proposals:
        """Start the heads of a pool, or reserve cells for heads that started in spare cells."""
        assert places is not None, "the virtual queue exists only with cells"
        self._short.pop(pool, None)
        while (job := turns.first(pool, self.state.jobs)) is not None:
            yield from self._clear_turn(job)
            if turns.first(pool, self.state.jobs) is not job:
                return  # a job that was stopped comes first, and could not continue
            away = turns.is_away(job)
            if away and pool in self._behind and not places.is_reserved(job.job.id):
                turns.forget(job)
                self._late_turns.passed(job, self.state.now)
                self._reserve(pool)
                continue
            if not (yield from self._give_turn(job, places, away=away)):
                self._miss_turn(job, places)
                return
            self._late_turns.passed(job, self.state.now)
            turns.taken(job, self.state.now, reserved=places.is_reserved(job.job.id))
            self._reserve(pool)
            if away:
                yield from self._settle_turn(job)
        self._behind.pop(pool, None)

    def _give_turn(
        self, job: JobStateView, places: Places, *, away: bool
    ) -> Generator[Proposal, ProposalResult, bool]:
        """Start the head of a pool, or reserve cells for one that is away; return success."""
        pool, reserved = job.pool, places.is_reserved(job.job.id)
        if away:
            if not reserved:
                yield ReserveCells(job, self._price_for(job))
            return places.is_reserved(job.job.id)
        width = job.job.width
        within = reserved or pool.dedicated + width <= pool.quota
        if within and not reserved and width > pool.idle:
            self._short[pool] = None  # look again when any job of the group ends
        elif within:
            yield from self._start_in_turn(job, "next in its pool's order")
        if job.stream is None:
            if self.keeps_clear and places.in_quota(pool.name, width):
                self._behind[pool] = None  # spare jobs block its turn
            return False
        if job.done and not reserved:
            yield ReserveCells(job)  # it will end earlier than in the baseline
        return True

    def _start_in_turn(self, job: JobStateView, reason: str) -> Proposals:
        """Start a job whose turn has come. If that was earlier, name the jobs that blocked it."""
        now = self.state.now
        late = self._late_turns.of(job, now)
        words = reason if late is None else late.reason(now, self.held_up_by)
        yield Start(job, Stream.DEDICATED, words)
        if job.stream is not None:
            self._late_turns.started(job, now, late)
            if late is not None:
                yield late.row(job, now)

    def _miss_turn(self, head: JobStateView, places: Places) -> None:
        """Note that a head's turn has come while guests have its cells, and which."""
        pool, width = head.pool, head.job.width
        within = pool.dedicated + head.width <= pool.quota
        if not within or not places.in_quota(pool.name, width):
            return
        if not self._late_turns.is_missed(head):
            names = places.blocking_spare_jobs(pool.name, width, equal_price)
            guests = [self.state.jobs[name] for name in names if name != head.job.id]
            if not guests:
                return
            held = [job.job.id for job in guests if self._is_waited_for(job)]
            self._late_turns.miss(head, self.state.now, held[:MOST_NAMED])
        self._short[pool] = None  # look again when any job of the group ends

    def _is_waited_for(self, guest: JobStateView) -> bool:
        """Return whether jobs whose turn has come wait until a guest has ended."""
        return True

    def _clear_turn(self, job: JobStateView) -> Proposals:
        """Stop jobs that have the cells of a pool's head, if the policy may stop jobs."""
        yield from ()

    def _price_for(self, job: JobStateView) -> Price:
        """Return the price of cells with spare jobs, for reservations of a pool's head."""
        return equal_price

    def _settle_turn(self, job: JobStateView) -> Proposals:
        """Continue after cells were reserved for a job that runs, or ran, in spare cells."""
        yield from ()

    def _start_spare(self, group: GroupStateView) -> Proposals:
        """AllocateSpareResources, within the limits on loans."""
        own = self._groups[group]
        narrowest = 0  # least width of all jobs that would end within the window
        for window, widths in enumerate(own.widths):
            if widths:
                narrowest = min(narrowest, *widths) if narrowest else min(widths)
            room = group.idle  # jobs wider than this find no spare cells
            order: list[_Borrower] | None = None
            while 0 < narrowest <= (usable := min(self._usable(group, window), room)):
                if order is None:
                    order = [self._borrower(pool) for pool in own.waiting]
                    heapify(order)
                job = self._next_spare(group, window, usable, order)
                if job is None:
                    break  # limits on loans allow none of them
                holds = self._window_holds(group, window)
                yield Start(job, Stream.SPARE, self._why_spare(job, window), holds=holds)
                if job.pool in own.waiting:
                    heappush(order, self._borrower(job.pool))
                if job.stream is None:
                    assert self.state.places is not None, "without cells, what is usable will do"
                    room = self.state.places.narrower(job.pool.name, job.width)
                    continue
                self._uncovered[group] = None
                self._reserve(job.pool)
                narrowest = min((min(w) for w in own.widths[: window + 1] if w), default=0)

    def _why_spare(self, job: JobStateView, window: int) -> str:
        """Return why a job starts on spare GPUs in a window."""
        return self._labels[window]

    def _usable(self, group: GroupStateView, window: int) -> int:
        """Return the idle GPUs that are not reserved within a window."""
        return group.idle - group.out - self.plan[group].reserved[window]

    def _window_holds(self, group: GroupStateView, window: int) -> ReservedGpus | None:
        """Return the reservations that a spare start must respect, in a cluster with cells."""
        holds = self._groups[group].holds
        return holds[window] if holds else None

    def _reserve(self, pool: PoolStateView) -> None:
        """ReserveResourcesForFuture for every window; also update whether the head may start."""
        self._line_up(pool)
        own = self._groups[pool.group]
        unused_quota = max(0, self._unused_quota(pool))
        plan = self.plan[pool.group]
        held, reserved = plan.held[pool], plan.reserved
        waiting = self._demand(pool)
        slack, keeps = self.state.options.slack, self._keeps[pool]
        crowded = waiting >= unused_quota and slack >= 1.0  # it needs all of its quota
        if crowded and held.count(unused_quota) == len(held):
            return
        for window, load in enumerate(pool.load):
            if crowded:
                need = unused_quota
            else:
                need = waiting + load
                if slack != 1.0:
                    need = ceil(need * slack - ROUNDING)
                if need > unused_quota or window in keeps:
                    need = unused_quota
            if need != held[window]:
                reserved[window] += need - held[window]
                held[window] = need
                if own.holds:
                    self._hold(own.holds[window], pool, window)

    def _line_up(self, pool: PoolStateView) -> None:
        """Update whether the head of a pool may start. O(1)."""
        lineup, head = self._groups[pool.group].lineup, pool.head
        if head is not None and self._may_begin(head):
            lineup.put(pool, head.width)
        else:
            lineup.drop(pool)

    def _may_begin(self, head: JobStateView) -> bool:
        """Return whether the head of a pool may start in its pool's quota, once GPUs are idle."""
        if self._own_turns is not None and self._own_turns.is_early(head):
            return False
        return head.width <= self._unused_quota(head.pool)

    def overtaken_by(self, job: JobStateView) -> int | None:
        """Return the priority of jobs that may need the quota before a job's turn, or None."""
        turns = self._own_turns
        return None if turns is None or not turns.is_early(job) else turns.highest(job.pool)

    def _unused_quota(self, pool: PoolStateView) -> int:
        """Return the GPUs of a pool's quota that none of its jobs uses; negative after a cut.

        Guests whose turn has come count as such jobs, if they are known.
        """
        if self._own_turns is not None:
            return pool.quota - pool.dedicated - self._own_turns.claimed(pool)
        return pool.quota - pool.dedicated

    def _demand(self, pool: PoolStateView) -> int:
        """Return the GPUs of a pool's unused quota that its submitted jobs will need."""
        if self._turns is None:
            return pool.pending_width
        return pool.pending_width + self._turns.ahead(pool)  # cells will be reserved for these jobs

    def _hold(self, holds: ReservedGpus, pool: PoolStateView, window: int) -> None:
        """Reserve the same number for a pool as cells."""
        holds.set(pool.name, self.plan[pool.group].held[pool][window])

    def _next_spare(
        self, group: GroupStateView, window: int, gpus: int, order: list[_Borrower]
    ) -> JobStateView | None:
        """Return the first job, short and narrow enough, of the pool that comes first.

        `order` is a heap of all pools with such jobs; that of the job is taken out. O(pools passed
        over + log pools), and O(pools) for each call if loans are limited.
        """
        best: JobStateView | None = None
        passed: list[_Borrower] = []
        loans = 0  # 0 if lending is off; skipped for speed
        if group.limited and group.lending:
            loans = sum(self._spared(pool, window) for pool in group.pools)
        while best is None and order:
            first = heappop(order)
            usable = min(gpus, self._room(first.pool, window, loans)) if group.limited else gpus
            best = self._first_within(first.pool, window, usable)
            if best is None:
                passed.append(first)
        for each in passed:
            heappush(order, each)  # the next loan may change what these may borrow
        assert best is not None or group.limited or self._risks or self._guest_ends, (
            "a width is counted that no job has"
        )
        return best

    def _first_within(self, pool: PoolStateView, window: int, usable: int) -> JobStateView | None:
        """Return the first job of a pool that is short enough for a window, and narrow enough."""
        first, job = None, None
        for queues in self._groups[pool.group].queues[pool][: window + 1]:
            for width, queue in queues.items():
                if width <= usable:
                    head = queue.first()
                    if (first is None or head < first) and self._is_bearable(queue.jobs[head]):
                        first, job = head, queue.jobs[head]
        return job

    def _borrower(self, pool: PoolStateView) -> _Borrower:
        return _Borrower(self._rank[pool], pool.ratio, pool.name, pool)

    def _is_bearable(self, job: JobStateView) -> bool:
        """Return whether a loan to this job is within the options `chance` and `risk`."""
        if self._chance is not None and self._chance_of(job) > self._chance:
            return False
        return self._most is None or self._gpus_at_risk(job) <= self._most * self._lent_from(job)

    def awaits(self, job: JobStateView) -> Awaited | None:
        """Return the limit of the options `chance` and `risk` that a loan to a job would exceed.

        O(guests + batches · GPUs that guests hold).
        """
        if self.bin(job) >= len(self._windows) or self._is_bearable(job):
            return None
        if self._chance is not None and (chance := self._chance_of(job)) > self._chance:
            what = "a smaller chance that guests keep GPUs which new jobs need after its window: "
            numbers = f"{100 * chance:.1f} % with it, at most {100 * self._chance:g} %"
            return Awaited(what + numbers, None)
        assert self._most is not None, "else each loan is bearable"
        most, gpus = self._most * self._lent_from(job), self._gpus_at_risk(job)
        what = f"guests to end: with it {gpus:.1f} GPUs would be at risk, at most {most:.1f}"
        return Awaited(what, None)

    def _gpus_at_risk(self, job: JobStateView) -> float:
        return self._risks[job.pool.group].gpus(job, self.bin(job))

    def _lent_from(self, job: JobStateView) -> int:
        """Return the GPUs of the job's sharing group on which no dedicated job runs."""
        group = job.pool.group
        return group.idle - group.out + sum(pool.spare for pool in group.pools)

    def _chance_of(self, job: JobStateView) -> float:
        """Return the chance that guests hold too many GPUs after the window of a loan to a job."""
        group, window = job.pool.group, self.bin(job)
        reserved = self.plan[group].reserved
        if window + 1 == len(reserved):
            return 0.0  # there is no forecast of what comes after
        room = group.idle - group.out - reserved[window + 1]
        for pool in group.pools:
            room += pool.spare - (self._own_turns.claimed(pool) if self._own_turns else 0)
        return self._guest_ends[group].chance(job, window, self.state.now, room)

    def _spared(self, pool: PoolStateView, window: int) -> int:
        """Return how many GPUs a pool may lend beyond its own reservation.

        A negative value means that it uses or has lent reserved GPUs; other pools must lend that
        many more.
        """
        return min(pool.unused - self.plan[pool.group].held[pool][window], pool.lendable)

    def _room(self, pool: PoolStateView, window: int, loans: int) -> int:
        """Return the GPUs for a spare job of a pool: its own, and what it may borrow of `loans`."""
        spared = self._spared(pool, window)
        own = pool.unused - self.plan[pool.group].held[pool][window]
        others = min(loans - max(0, spared), pool.borrow_limit - pool.borrows + min(0, own))
        return max(0, own) + max(0, others)

    def check(self) -> None:
        """Assert that queues, counts and sums agree with the state."""
        if self._turns is not None and self.state.places is not None:
            waiting = [job for pool in self.state.pools.values() for job in pool.waiting()]
            self._turns.check(waiting, self.state.places.reserved_jobs())
        self._check_loans()
        if self._own_turns is not None:
            self._own_turns.check(self.state.jobs.values())
        for group, own in self._groups.items():
            if not any(pool in self.state.dirty for pool in group.pools):
                heads = [head for p in group.pools if (head := p.head) and self._may_begin(head)]
                own.lineup.check({head.pool: head.width for head in heads})
            self.plan[group].check()
            for window in range(len(self._windows)):
                widths: dict[int, int] = {}
                for queues in own.queues.values():
                    for width, queue in queues[window].items():
                        widths[width] = widths.get(width, 0) + len(queue.jobs)
                assert widths == own.widths[window], (group.name, window)
            for pool, queues in own.queues.items():
                jobs_of = sum(len(q.jobs) for by_width in queues for q in by_width.values())
                assert jobs_of == own.waiting.get(pool, 0), pool.name

    def _check_loans(self) -> None:
        for risk in self._risks.values():
            risk.check()
        for group, ends in self._guest_ends.items():
            running = [job for job in self.state.jobs.values() if job.pool.group is group]
            ends.check([job for job in running if job.stream is Stream.SPARE])
