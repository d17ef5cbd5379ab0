"""SIA with partial preemption (§5.5): preemptible spare jobs are stopped when an owner needs GPUs.

A job that loses c seconds by a stop counts as ended within every window of which c is at most the
fraction `recall`. So it may start as if it were that short. While it runs as a spare job, the
policy reserves fewer GPUs for these windows, by its width. If heads find their quota in use, the
policy stops as many such jobs as the heads need, the cheapest first. They keep their work except
for c.

For a job that loses all its work, c grows while it runs, so that it counts in fewer and fewer
windows.

A job that can be stopped keeps its place in its pool's queue, because it may return to it at any
moment. Until its turn the jobs behind it get no dedicated start. Its *turn* is when it is first in
the queue and fits in the quota. From then on it is not stopped, and its pool keeps its width of the
quota unused. So a job that was stopped continues at its virtual start at the latest, and the work
that it did before is at least the cost of its stops.

In a cluster with cells reservations are not reduced, because recalled GPUs would not lie together.
There a job must not be stopped if it would then end later than without sharing, because other jobs
of its pool would then be later too. Before its turn (see `cell_turns`) it can always be stopped.
After its turn it can be stopped only if it had done enough work at its turn and its own cells are
empty: it then continues in these at once. If this does not hold at its turn, it stays only if exact
forecasts say that it will end before any pool needs its cells; otherwise it is stopped at its turn.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import ChainMap
from collections.abc import Iterable, Sequence
from heapq import heappop, heappush
from math import inf
from typing import Annotated, Any, ClassVar

from msgspec import Meta, Struct, convert, to_builtins

from cells.placement.placing import Price
from sia.contract.policy import Changes, Needs
from sia.contract.proposals import Preempt, Proposals, ReserveCells, Start
from sia.contract.views import ClusterStateView, GroupStateView, JobStateView, PoolStateView
from sia.limits import MAX_GROUP, RECALL
from sia.model import NEVER_STOPPED, RESTART, Stream
from sia.policies.shared.fifo import FifoQueue
from sia.policies.sia.policy import Sia
from sia.policies.sia.reservations import ROUNDING


class _Stoppable:
    """The preemptible spare jobs of a group, and their GPUs."""

    def __init__(self, windows: int) -> None:
        self.jobs: dict[str, JobStateView] = {}
        self.first: dict[str, int] = {}  # the first window within which each job can be recalled
        self.gpus = 0
        self.within = [0] * windows  # GPUs that can be recalled within each window
        self.locked = [0] * windows  # GPUs reserved for pools that must not lend


class _Guests:
    """The preemptible spare jobs of a pool, without cells."""

    def __init__(self) -> None:
        self.queue = FifoQueue()  # those whose turn is still to come
        self.ahead = 0  # their GPUs
        self.kept = 0  # GPUs of the others, whose turn has come

    def first(self) -> JobStateView | None:
        """Return the job whose turn comes first. O(log n) amortised."""
        return self.queue.jobs[self.queue.first()] if self.queue.jobs else None


class _RecallMemory(Struct):
    """Jobs whose turn has come while they run on spare GPUs."""

    taken: list[str] = []


class RecallParams(Struct, frozen=True):
    """Options of `sia-recall`."""

    recall: Annotated[float, Meta(ge=0, le=1)] = RECALL
    """Largest cost of a stop, as a fraction of a window, with which a job counts as recallable
    within the window."""


class SiaRecall(Sia):
    """SIA that recalls GPUs from jobs with a known cost of preemption.

    Without such jobs it is SIA.
    """

    Params: ClassVar[type[Struct]] = RecallParams
    heeds = frozenset({"preemptible"})
    needs = Needs(run_times=True, updates=True, loads=True, preemption=True)
    exclude_bound = True  # recallable jobs may run beyond the window of their start
    keeps_clear = False  # guests are stopped, and a stopped one needs its place in its pool

    def attach(self, state: ClusterStateView) -> None:
        """Index running and pending jobs."""
        windows = len(state.options.windows)
        self._stoppable = {group: _Stoppable(windows) for group in state.groups}
        self._locked = {pool: [0] * windows for pool in state.pools.values()}
        # Heap of when a job's growing cost exceeds its window: time, sequence, job, attempt.
        self._growing: list[tuple[float, int, str, int]] = []
        self._own = {pool: _Guests() for pool in state.pools.values()}
        self._taken: dict[str, JobStateView] = {}  # jobs whose turn has come
        super().attach(state)
        for job in state.jobs.values():
            self._note(job)

    def memory(self) -> Any:
        """Return the memory of SIA, and the jobs whose turn has come."""
        return super().memory() | to_builtins(_RecallMemory([*self._taken]))

    def _restore(self, memory: Any) -> None:
        for job_id in convert(memory, _RecallMemory).taken:
            job = self.state.jobs.get(job_id)
            if job is None or job.stream is not Stream.SPARE or not _is_preemptible(job):
                raise ValueError(f"job {job_id}: its turn has come, but it does not run as a guest")
            self._take(job)
        for pool in self.state.pools.values():
            self._reserve_unturned(pool)  # turns that have come are for the next pass

    def bin(self, job: JobStateView) -> int:
        """Return the first window within which the job would end or could be stopped."""
        left = job.run_time
        if job.done:
            left = max(0.0, left - job.done) + (job.job.stop_seconds or 0.0)
        return min(bisect_left(self.state.options.windows, left), self._stops_within(job))

    def _stops_within(self, job: JobStateView) -> int:
        """Return the first window within which a job can be recalled, or the number of windows."""
        windows, recall = self.state.options.windows, self.params.recall
        if not recall or not _is_preemptible(job):
            return len(windows)
        cost = job.job.stop_seconds
        if cost is not None:
            return bisect_left(windows, cost / recall * (1.0 - ROUNDING))
        if job.stream is None:
            return 0  # it has no work to lose
        now = self.state.now
        return bisect_left(range(len(windows)), now, key=lambda i: self._grown(job, windows[i]))

    def _grown(self, job: JobStateView, window: float) -> float:
        """Return when the work of a running job exceeds the allowed loss for a window."""
        return job.end(self.params.recall * window * (1.0 + ROUNDING))

    def submitted(self, job: JobStateView) -> None:
        """Queue a job, which may have been stopped. O(windows)."""
        self._gone(job)
        super().submitted(job)

    def left(self, job: JobStateView) -> None:
        """Remove a job from its queue. O(windows)."""
        super().left(job)
        self._note(job)

    def finished(self, job: JobStateView) -> None:
        """Remove a job. O(windows), plus O(log n) in a cluster with cells."""
        super().finished(job)
        self._gone(job)

    def before_progress(self, job: JobStateView) -> None:
        """Remove a running job from the index. O(windows)."""
        super().before_progress(job)
        self._forget(job)

    def progressed(self, job: JobStateView) -> None:
        """Index a running job again. O(windows + log n)."""
        super().progressed(job)
        self._note(job)

    def propose(self, now: float, changes: Changes) -> Proposals:
        """Propose as SIA does, with the costs of this moment."""
        while self._growing and self._growing[0][0] < now:
            _, _, job_id, attempt = heappop(self._growing)
            job = self.state.jobs.get(job_id)
            if job is not None and job.attempt == attempt and job.stream is Stream.SPARE:
                self._forget(job)
                self._note(job)
        yield from super().propose(now, changes)

    def _note(self, job: JobStateView) -> None:
        """Index a running job if it may be stopped. O(windows); O(log n) if its cost grows."""
        if job.stream is Stream.SPARE and _is_preemptible(job) and job.job.id not in self._taken:
            first, windows = self._stops_within(job), self.state.options.windows
            own = self._stoppable[job.pool.group]
            own.jobs[job.job.id] = job
            self._count(own, job, first, job.job.width)
            if self._turns is None:
                guests = self._own[job.pool]
                guests.queue.add(job)
                guests.ahead += job.job.width
            if job.job.preemptible == RESTART and first < len(windows):
                when = self._grown(job, windows[first])
                heappush(self._growing, (when, job.sequence, job.job.id, job.attempt))

    def _forget(self, job: JobStateView) -> None:
        own = self._stoppable[job.pool.group]
        if own.jobs.pop(job.job.id, None) is not None:
            self._count(own, job, own.first.pop(job.job.id), -job.job.width)
            if self._turns is None:
                guests = self._own[job.pool]
                del guests.queue.jobs[job.sequence]
                guests.ahead -= job.job.width

    def _take(self, job: JobStateView) -> None:
        """Keep quota for a job whose turn has come. O(windows)."""
        self._forget(job)
        self._taken[job.job.id] = job
        self._own[job.pool].kept += job.job.width

    def _gone(self, job: JobStateView) -> None:
        """Remove a job that was stopped or has ended. O(windows)."""
        self._forget(job)
        if self._taken.pop(job.job.id, None) is not None:
            self._own[job.pool].kept -= job.job.width

    def _count(self, own: _Stoppable, job: JobStateView, first: int, gpus: int) -> None:
        """Add GPUs to those that can be recalled within the windows from the first one on."""
        if gpus > 0:
            own.first[job.job.id] = first
        own.gpus += gpus
        for window in range(first, len(own.within)):
            own.within[window] += gpus

    def _reserve(self, pool: PoolStateView) -> None:
        """Reserve as SIA does, and also for stoppable jobs, which keep their place in the queue.

        Reservations of pools that must not lend cannot be covered by recall.
        """
        guests, head = self._own[pool], pool.head
        while (
            (first := guests.first()) is not None
            and (head is None or first.sequence < head.sequence)
            and first.job.width <= self._unused_quota(pool)
        ):
            self._take(first)
        self._reserve_unturned(pool)

    def _reserve_unturned(self, pool: PoolStateView) -> None:
        """Reserve without a check for turns that have come. O(windows)."""
        super()._reserve(pool)
        locked, sums = self._locked[pool], self._stoppable[pool.group].locked
        for window, held in enumerate(self.plan[pool.group].held[pool]):
            shut = (
                window in self._keeps[pool] or pool.load[window] >= MAX_GROUP
            )  # the guard stops lending
            gpus = held if shut else 0
            sums[window] += gpus - locked[window]
            locked[window] = gpus

    def _unused_quota(self, pool: PoolStateView) -> int:
        """Return the quota that neither dedicated jobs use nor guests whose turn has come."""
        return super()._unused_quota(pool) - self._own[pool].kept

    def _may_begin(self, head: JobStateView) -> bool:
        """Return whether the head may start, and no guest of its pool comes before it."""
        first = self._own[head.pool].first()
        return super()._may_begin(head) and (first is None or head.sequence < first.sequence)

    def guests_before(self, job: JobStateView) -> Sequence[JobStateView]:
        """Return its pool's guests that keep a place before it, in order. O(n log n) in guests."""
        queued = self._own[job.pool].queue.jobs
        return [queued[number] for number in sorted(queued) if number < job.sequence]

    def _demand(self, pool: PoolStateView) -> int:
        """Return the demand as in SIA, plus the GPUs of guests whose turn has not come."""
        return super()._demand(pool) + self._own[pool].ahead

    def _usable(self, group: GroupStateView, window: int) -> int:
        """Return the idle GPUs minus the reserved ones that could not be recalled in time."""
        usable = super()._usable(group, window)
        if self._turns is not None:
            return usable
        own = self._stoppable[group]
        return min(group.idle - group.out - own.locked[window], usable + own.within[window])

    def _start_heads(self, group: GroupStateView) -> Proposals:
        """Start heads as SIA does, then those for which other jobs must be stopped."""
        yield from super()._start_heads(group)
        if self._turns is not None:
            return
        while heads := self._heads_to_help(group):
            missing = sum(head.width for head in heads) - group.idle
            jobs = self._stopped_for(group, heads)
            yield from self._stop(self._cheapest(jobs, missing), heads)
            for head in heads:
                if head.width > group.idle:
                    return  # a limit on stops kept some of the jobs
                yield Start(head, Stream.DEDICATED, "head of its pool, within quota")
                self._reserve(head.pool)

    def _heads_to_help(self, group: GroupStateView) -> list[JobStateView]:
        """Return heads, in order of allocation, that all fit after stopping other jobs."""
        lineup, most = self._groups[group].lineup, self._stoppable[group].gpus
        heads: list[JobStateView] = []
        seen: set[PoolStateView] = set()
        while (pool := lineup.first(besides=seen, more=most)) is not None:
            head = pool.head
            assert head is not None, "a pool without a head is not lined up"
            seen.add(pool)
            tried = [*heads, head]
            there = group.idle + sum(job.width for job in self._stopped_for(group, tried))
            if sum(job.width for job in tried) <= there:
                heads = tried
        return heads

    def _stopped_for(
        self, group: GroupStateView, heads: Iterable[JobStateView]
    ) -> list[JobStateView]:
        """Return the jobs that may be stopped for heads: none ahead of its own pool's head."""
        since = {head.pool: head.sequence for head in heads}
        jobs = self._stoppable[group].jobs.values()
        return [job for job in jobs if since.get(job.pool, job.sequence) <= job.sequence]

    def _stop(self, jobs: Iterable[JobStateView], heads: list[JobStateView]) -> Proposals:
        names = ", ".join(head.pool.name for head in heads)
        for job in jobs:
            yield Preempt(job, f"needed by {names}")
            self._reserve(job.pool)
            self._uncovered[job.pool.group] = None

    def _cheapest(self, jobs: Iterable[JobStateView], missing: int) -> list[JobStateView]:
        """Return the jobs with the lowest cost of preemption that have the missing GPUs."""
        chosen: list[JobStateView] = []
        now = self.state.now
        for job in sorted(jobs, key=lambda job: _price_of(job, now)):
            if missing <= 0:
                break
            chosen.append(job)
            missing -= job.width
        for job in chosen[:]:  # a wide job may make narrow ones before it unnecessary
            if missing + job.width <= 0:
                chosen.remove(job)
                missing += job.width
        return chosen

    def _clear_turn(self, job: JobStateView) -> Proposals:
        """In a cluster with cells, stop the cheapest jobs that block a pool's head.

        Only if all blocking jobs may be stopped. They may be of other sharing groups, whose jobs
        use the same chain. A head that runs as a guest in just the cells that its pool would bind
        for it keeps them.
        """
        places, runs = self.state.places, job.stream is Stream.SPARE
        assert places is not None, "the virtual queue exists only with cells"
        if runs and job.job.id in self.state.jobs and not places.is_reserved(job.job.id):
            yield ReserveCells(job, around=True)
        if not places.is_home(job.job.id):
            for stopped in self._blocking(job):
                yield from self._stop_in_cells(stopped, job)

    def _blocking(self, head: JobStateView) -> list[JobStateView]:
        """Return the jobs to stop so that a head within quota gets cells; [] if no stop helps.

        The head is one of them if it runs as a guest in a part of the cell that its pool has to
        bind. If it stayed there, it and the next jobs of its pool would get other parts of that
        cell than alone.
        """
        guests, places, pool = self._guests(), self.state.places, head.pool
        assert places is not None, "the virtual queue exists only with cells"
        if not any(guests.maps) or pool.dedicated + head.job.width > pool.quota:
            return []
        price = self._price_for(head)
        reserved = places.is_reserved(head.job.id)
        for whole in (True, False):
            names: Iterable[str] = (
                places.in_reserved(head.job.id)
                if reserved
                else places.blocking_spare_jobs(pool.name, head.job.width, price, whole=whole)
            )
            if all(price(job_id) < inf for job_id in names):
                stops = [guests[name] for name in names if whole or name != head.job.id]
                return stops + self._too_many(head, stops)
        return []

    def _too_many(self, head: JobStateView, stops: list[JobStateView]) -> list[JobStateView]:
        """Return the jobs to stop in addition, because the group has too few idle GPUs."""
        if head.stream is not None or self._turns is None or head.job.id not in self.state.jobs:
            return []  # it runs, or ended in spare cells: only its cells are reserved
        turn_of, own = self._turns.turn_of, self._stoppable[head.pool.group].jobs
        freed = sum(job.width for job in stops if turn_of(job) is None and job.job.id in own)
        missing = head.job.width - head.pool.idle - freed
        able = [job for job in own.values() if turn_of(job) is None and job not in stops]
        return self._cheapest(able, missing) if sum(j.width for j in able) >= missing else []

    def _guests(self) -> ChainMap[str, JobStateView]:
        """Return the preemptible spare jobs of all groups."""
        return ChainMap(*(own.jobs for own in self._stoppable.values()))

    def _price_for(self, head: JobStateView) -> Price:
        """Return the price of a GPU in a head's cells: the work that a stop of its job loses."""
        guests, now = self._guests(), self.state.now

        def price(job_id: str) -> float:
            job = guests.get(job_id)
            if job is head:
                return 0.0
            if job is None or not self._may_stop(job):
                return inf
            return 1.0 + _lost(job, now)  # 1.0, so that fewer GPUs win at cost 0

        return price

    def _may_stop(self, job: JobStateView) -> bool:
        """Return whether a job that is stopped now can still end as early as without sharing."""
        if self._turns is None or (turn := self._turns.turn_of(job)) is None:
            return True
        assert self.state.places is not None, "the virtual queue exists only with cells"
        now = self.state.now
        kept = 0.0 if job.job.preemptible == RESTART else job.work(now) - _lost(job, now)
        return now - kept <= turn and not self.state.places.in_reserved(job.job.id)

    def _may_stay(self, job: JobStateView) -> bool:
        """Return whether a running job will end within a window before any pool needs its cells.

        Only exact forecasts can say so. A job that stayed by a wrong estimate could not be stopped
        any more, and the pool that needs its cells would wait for its end.
        """
        if not self.state.options.exact:
            return False
        window = bisect_left(self._windows, job.end(job.run_time) - self.state.now)
        holds = self._groups[job.pool.group].holds
        return window < len(holds) and holds[window].satisfied()

    def _stop_in_cells(self, job: JobStateView, head: JobStateView) -> Proposals:
        """Stop a job; if its turn has come it continues in its own cells."""
        assert self._turns is not None, "the virtual queue exists only with cells"
        yield from self._stop([job], [head])
        if self._turns.turn_of(job) is not None and job.stream is None:
            yield from self._go_on(job, head)
            if job.stream is not None:
                self._turns.taken(job, self.state.now, reserved=True)
                self._reserve(job.pool)

    def _go_on(self, job: JobStateView, head: JobStateView) -> Proposals:
        """Start a job that was stopped in its own cells, at its turn or for a later head."""
        reason = "goes on in its pool's cells"
        if job is head:
            yield from self._start_in_turn(job, reason)
        else:
            yield Start(job, Stream.DEDICATED, reason)

    def _settle_turn(self, job: JobStateView) -> Proposals:
        """Move a job to its own cells at its turn if it could not be stopped later."""
        assert self.state.places is not None, "the virtual queue exists only with cells"
        stoppable = job.job.id in self._stoppable[job.pool.group].jobs
        if self.state.places.is_home(job.job.id):
            if stoppable:
                self._take(job)  # its cells are its pool's, and in use
                self._reserve(job.pool)
            return
        relies = stoppable and not self._may_stay(job)
        if not relies or self.state.places.in_reserved(job.job.id):
            return
        now, cost = self.state.now, job.job.stop_seconds
        work = job.work(now)
        loading = job.end(work) - now  # seconds until it works, if it has just resumed
        if cost is None or work - max(0.0, loading) < cost:
            yield from self._stop_in_cells(job, job)

    def check(self) -> None:
        """Assert that the counts of preemptible jobs and fixed reservations are right."""
        super().check()
        jobs: dict[GroupStateView, list[JobStateView]] = {group: [] for group in self._stoppable}
        for job in self.state.jobs.values():
            taken = job.job.id in self._taken
            if job.stream is Stream.SPARE and _is_preemptible(job) and not taken:
                jobs[job.pool.group].append(job)
        for group, own in self._stoppable.items():
            mine = jobs[group]
            assert own.jobs == {job.job.id: job for job in mine}, group.name
            behind = self._growing and self._growing[0][0] < self.state.now  # until the next pass
            first = {job.job.id: self._stops_within(job) for job in mine}
            assert behind or own.first == first, group.name
            assert own.gpus == sum(job.width for job in mine), group.name
            for window, gpus in enumerate(own.within):
                counted = sum(job.width for job in mine if own.first[job.job.id] <= window)
                assert gpus == counted, (group.name, window)
                locked = sum(self._locked[pool][window] for pool in group.pools)
                assert own.locked[window] == locked, (group.name, window)


def _is_preemptible(job: JobStateView) -> bool:
    return job.job.preemptible not in (None, NEVER_STOPPED)


def _lost(job: JobStateView, now: float) -> float:
    """Return the seconds of work that a stop costs at this moment."""
    work, cost = job.work(now), job.job.stop_seconds
    return work if cost is None else min(cost, work)


def _price_of(job: JobStateView, now: float) -> tuple[float, int, int]:
    """Return the order of preemption: work lost, then width, then latest first."""
    return _lost(job, now) * job.width, job.width, -job.sequence
