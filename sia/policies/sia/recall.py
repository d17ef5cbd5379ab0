"""SIA with partial preemption (§5.5): preemptible spare jobs are stopped when an owner needs GPUs.

A job that loses c seconds when it is stopped counts as gone within every window of which c is at
most the part `recall`. So it may start as if it were that short. While it runs as a spare
job, correspondingly fewer GPUs are reserved for these windows. If heads find their quota in use, as
many such jobs are stopped as the heads need, the cheapest first. Their work is kept except for c.

In a cluster with cells, reservations are not reduced, because recalled GPUs would not lie together.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import ChainMap
from collections.abc import Iterable
from math import inf
from typing import Annotated

from msgspec import Meta, Struct

from sia.contract.policy import Needs
from sia.contract.proposals import Preempt, Proposals, Start
from sia.contract.views import ClusterStateView, GroupStateView, JobStateView, PoolStateView
from sia.limits import MAX_GROUP, RECALL
from sia.model import Stream
from sia.policies.sia.cell_turns import VirtualQueue
from sia.policies.sia.policy import Sia
from sia.policies.sia.reservations import ROUNDING
from sia.state.places import Places


class _Stoppable:
    """The preemptible spare jobs of a group, and their GPUs."""

    def __init__(self, windows: int) -> None:
        self.jobs: dict[str, JobStateView] = {}
        self.gpus = 0
        self.within = [0] * windows  # GPUs that can be recalled within each window
        self.locked = [0] * windows  # GPUs reserved for pools that must not lend


class RecallParams(Struct, frozen=True):
    """Options of `sia-recall`."""

    recall: Annotated[float, Meta(ge=0, le=1)] = RECALL
    """It counts on recalling a job for a window if the stop costs at most this part of it."""


class SiaRecall(Sia):
    """SIA that recalls GPUs from jobs with a known cost of preemption.

    Without such jobs it is SIA.
    """

    Params = RecallParams
    heeds = frozenset({"preemptible"})
    needs = Needs(run_times=True, updates=True, loads=True, preemption=True)
    exclude_bound = True  # recallable jobs may run beyond the window of their start

    def attach(self, state: ClusterStateView) -> None:
        """Index running and pending jobs."""
        windows = len(state.options.windows)
        self._stoppable = {group: _Stoppable(windows) for group in state.groups}
        self._locked = {pool: [0] * windows for pool in state.pools.values()}
        super().attach(state)
        for job in state.jobs.values():
            self._note(job)

    def bin(self, job: JobStateView) -> int:
        """Return the first window within which the job would end or could be stopped."""
        left = job.run_time
        if job.done:
            left = max(0.0, left - job.done) + (job.job.stop_seconds or 0.0)
        return min(bisect_left(self.state.options.windows, left), self._stops_within(job))

    def _stops_within(self, job: JobStateView) -> int:
        cost, recall = job.job.stop_seconds, self.params.recall
        if cost is None or not recall:
            return len(self.state.options.windows)
        return bisect_left(self.state.options.windows, cost / recall * (1.0 - ROUNDING))

    def submitted(self, job: JobStateView) -> None:
        """Queue a job, which may have been stopped. O(windows)."""
        self._forget(job)
        super().submitted(job)

    def left(self, job: JobStateView) -> None:
        """Remove a job from its queue. O(windows)."""
        super().left(job)
        self._note(job)

    def finished(self, job: JobStateView) -> None:
        """Remove a job. O(windows), plus O(log n) in a cluster with cells."""
        super().finished(job)
        self._forget(job)

    def _note(self, job: JobStateView) -> None:
        if job.stream is Stream.SPARE and job.job.stop_seconds is not None:
            self._stoppable[job.pool.group].jobs[job.job.id] = job
            self._count(job, job.job.width)

    def _forget(self, job: JobStateView) -> None:
        if self._stoppable[job.pool.group].jobs.pop(job.job.id, None) is not None:
            self._count(job, -job.job.width)

    def _count(self, job: JobStateView, gpus: int) -> None:
        own = self._stoppable[job.pool.group]
        own.gpus += gpus
        for window in range(self._stops_within(job), len(own.within)):
            own.within[window] += gpus

    def _reserve(self, pool: PoolStateView) -> None:
        """Reserve as SIA does.

        Reservations of pools that must not lend cannot be covered by recall.
        """
        super()._reserve(pool)
        locked, sums = self._locked[pool], self._stoppable[pool.group].locked
        for window, held in enumerate(self.plan[pool.group].held[pool]):
            shut = (
                window in self._keeps[pool] or pool.load[window] >= MAX_GROUP
            )  # the guard stops lending
            gpus = held if shut else 0
            sums[window] += gpus - locked[window]
            locked[window] = gpus

    def _usable(self, group: GroupStateView, window: int) -> int:
        """Return the idle GPUs, less reserved ones that could not be recalled in time."""
        usable = super()._usable(group, window)
        if self._turns is not None:
            return usable
        own = self._stoppable[group]
        return min(group.idle - group.out - own.locked[window], usable + own.within[window])

    def _start_heads(self, group: GroupStateView) -> Proposals:
        """Start heads as SIA does, then those for which other jobs must be stopped."""
        yield from super()._start_heads(group)
        if self._turns is not None:
            yield from self._recall_in_turn(group, self._turns, self.state.places)
            return
        while heads := self._heads_to_help(group):
            missing = sum(head.width for head in heads) - group.idle
            jobs = self._stopped_for(group, heads)
            yield from self._stop(self._cheapest(jobs, missing), heads)
            for head in heads:
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
        """Return jobs that may be stopped for some heads: none that came before its pool's head."""
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
        for job in sorted(jobs, key=_price_of):
            if missing <= 0:
                break
            chosen.append(job)
            missing -= job.width
        for job in chosen[:]:  # a wide job may make narrow ones before it unnecessary
            if missing + job.width <= 0:
                chosen.remove(job)
                missing += job.width
        return chosen

    def _recall_in_turn(
        self, group: GroupStateView, turns: VirtualQueue, places: Places | None
    ) -> Proposals:
        """In a cluster with cells, stop the cheapest jobs that block a pool's head.

        Only if all blocking jobs are preemptible. They may be of other sharing groups, whose jobs
        use the same chain.
        """
        assert places is not None, "the virtual queue exists only with cells"
        stoppable = ChainMap(*(own.jobs for own in self._stoppable.values()))

        def price(job_id: str) -> float:
            cost = stoppable[job_id].job.stop_seconds if job_id in stoppable else None
            return inf if cost is None else 1.0 + cost  # 1.0, so that fewer GPUs win at cost 0

        for pool in group.pools if stoppable else ():
            job = turns.first(pool, self.state.jobs) if self._waits_in_vain(pool) else None
            if job is None or turns.is_away(job):
                continue
            jobs = places.blocking_spare_jobs(pool.name, job.width, price)
            stops: list[JobStateView] = []
            if jobs and all(job_id in stoppable for job_id in jobs):
                stops = [stoppable[job_id] for job_id in jobs]
            elif not jobs and job.width > group.idle:  # the blocking jobs are in unowned cells
                stops = self._cheapest(self._stopped_for(group, [job]), job.width - group.idle)
            yield from self._stop(stops, [job])
            for changed in dict.fromkeys([pool, *(stopped.pool for stopped in stops)]):
                yield from self._take_turns(changed, turns, places)

    def _waits_in_vain(self, pool: PoolStateView) -> bool:
        """Return whether the head fits in its pool's quota but something else blocks it."""
        head = pool.head
        return head is not None and pool.dedicated + head.width <= pool.quota

    def check(self) -> None:
        """Assert that the counts of preemptible jobs and fixed reservations are right."""
        super().check()
        jobs: dict[GroupStateView, list[JobStateView]] = {group: [] for group in self._stoppable}
        for job in self.state.jobs.values():
            if job.stream is Stream.SPARE and job.job.stop_seconds is not None:
                jobs[job.pool.group].append(job)
        for group, own in self._stoppable.items():
            mine = jobs[group]
            assert own.jobs == {job.job.id: job for job in mine}, group.name
            assert own.gpus == sum(job.width for job in mine), group.name
            for window, gpus in enumerate(own.within):
                counted = sum(job.width for job in mine if self._stops_within(job) <= window)
                assert gpus == counted, (group.name, window)
                locked = sum(self._locked[pool][window] for pool in group.pools)
                assert own.locked[window] == locked, (group.name, window)


def _price_of(job: JobStateView) -> tuple[bool, float, int, int]:
    """Return the order of preemption: cost, then width, then latest first.

    Jobs that their own pool would restart at once come last.
    """
    pool, head = job.pool, job.pool.head
    returns = pool.dedicated + job.width <= pool.quota
    returns = returns and (head is None or head.sequence > job.sequence)
    return returns, (job.job.stop_seconds or 0.0) * job.width, job.width, -job.sequence
