"""Preemptive scheduling by rank, the common part of SRTF, SRSF and LAS.

The GPUs of a group are treated as one pool (§4.1, gSSF). At every instant the running and pending
jobs of a group are visited by rank, and each job that fits in the remaining GPUs runs. A full
recomputation would be linear in all jobs. This module starts from the running jobs and relies on
one property: between two changes no running job falls behind a pending one. Then a pending job can
start only if it fits in the idle GPUs plus those of running jobs behind it, and among pending jobs
of one width only the first can start.

Priorities come before ranks. A job that must never be stopped keeps its GPUs. Jobs that limits on
loans keep from starting are skipped; no job is stopped for them.
"""

from __future__ import annotations

from heapq import heappop, heappush
from math import inf
from typing import Any

from msgspec import convert
from sortedcontainers import SortedList

from sia.contract.policy import Changes, Needs, Policy, is_barred, next_multiple, stream_of
from sia.contract.proposals import Preempt, Proposals, Start, Wake
from sia.contract.views import ClusterStateView, GroupStateView, JobStateView, PoolStateView
from sia.model import NEVER_STOPPED, Stream

Rank = tuple[int, Any, int]
"""(minus priority, the policy's own measure, order of arrival); the lowest comes first."""


_Entry = tuple[int, Any, int, str, int]
"""An entry of a list: the job's rank, its ID, and the width of the list (a pending job's own width,
a running job's present width). A plain tuple for speed, because each start makes two."""


class _Group:
    """The jobs of a sharing group by width, each list in order of rank."""

    def __init__(self) -> None:
        self.waiting: dict[int, SortedList[_Entry]] = {}
        self.running: dict[int, SortedList[_Entry]] = {}
        self.pinned: dict[int, SortedList[_Entry]] = {}  # running, must not be stopped


class Ranked(Policy):
    """Decides which jobs run, stop and start. Subclasses define the rank."""

    needs = Needs(run_times=True, preemption=True)
    shares = True
    on_nodes = True

    def rank(self, job: JobStateView) -> Any:
        """Return priority, then the measure of a pending job."""
        return -job.job.priority, self.waiting_rank(job), job.sequence

    def waiting_rank(self, job: JobStateView) -> Any:
        """Return the measure of a pending job. It must not change while the job is pending."""
        raise NotImplementedError

    def running_key(self, job: JobStateView) -> Any:
        """Return a key that orders running jobs of one width and does not change while they run."""
        raise NotImplementedError

    def running_rank(self, key: Any, width: int, now: float) -> Any:
        """Return the current measure of a running job with this key and width."""
        raise NotImplementedError

    def attach(self, state: ClusterStateView) -> None:
        """Index pending and running jobs."""
        self._groups = {group: _Group() for group in state.groups}
        self._reranked: dict[GroupStateView, None] = {}
        self._entries: dict[str, _Entry] = {}  # the entry of each job, pending or running
        super().attach(state)
        for job in state.jobs.values():
            if job.stream is not None:
                self._put(self._running(job), job, self.running_key(job))

    def memory(self) -> Any:
        """Return the groups in which a job did not find enough GPUs."""
        return [group.first for group in self._reranked]

    def resume(self, state: ClusterStateView, memory: Any) -> None:
        """Consider the remembered groups again."""
        self.attach(state)
        self._reranked = dict.fromkeys(state.groups_of(convert(memory, list[str])))

    def submitted(self, job: JobStateView) -> None:
        """Queue a job; a preempted one first leaves the running jobs. O(log n)."""
        group = self._groups[job.pool.group]
        if job.job.id in self._entries:
            self._take(self._running(job), job)
        self._put(group.waiting, job, self.waiting_rank(job))

    def left(self, job: JobStateView) -> None:
        """Remove a job from its queue; a started one joins the running jobs. O(log n)."""
        self._take(self._groups[job.pool.group].waiting, job)
        if job.stream is not None:
            self._put(self._running(job), job, self.running_key(job))

    def finished(self, job: JobStateView) -> None:
        """Remove a running job. O(log n)."""
        self._take(self._running(job), job)

    def progressed(self, job: JobStateView) -> None:
        """Move a running job to the place that its new progress gives it. O(log n)."""
        self.rerank(job)

    def is_pinned(self, job: JobStateView) -> bool:
        """Return whether a running job must not be stopped; constant during an attempt."""
        return job.job.preemptible == NEVER_STOPPED

    def _running(self, job: JobStateView) -> dict[int, SortedList[_Entry]]:
        """Return the lists in which a running job is."""
        group = self._groups[job.pool.group]
        return group.pinned if self.is_pinned(job) else group.running

    def rerank(self, job: JobStateView) -> None:
        """Move a job to its new place after its key or rank changed. O(log n)."""
        group = self._groups[job.pool.group]
        if job.stream is None:
            self._take(group.waiting, job)
            self._put(group.waiting, job, self.waiting_rank(job))
        else:
            self._take(self._running(job), job)
            self._put(self._running(job), job, self.running_key(job))
        self._reranked[job.pool.group] = None

    def propose(self, now: float, changes: Changes) -> Proposals:
        """Stop jobs and start jobs of a higher rank, in the groups that changed."""
        groups = changes.groups
        if self._reranked:
            groups = [*dict.fromkeys([*self._reranked, *groups])]
            self._reranked.clear()
        for group in groups:
            starts, stops = self._decide(group, now)
            for job in stops:
                yield Preempt(job, "jobs of a higher rank need its GPUs")
            for job in starts:
                if job.width <= job.pool.idle:
                    yield Start(job, stream_of(job.pool, job.width), "highest rank of its group")
                if job.stream is None:
                    # The pool's quota shrank and absorbed the freed GPUs, or other pools took what
                    # this one could borrow. Try again at the next tick.
                    self._reranked[group] = None
        if (wake := self.wake(now)) < inf:
            yield Wake(wake)

    def wake(self, now: float) -> float:
        """Return when to be called again even without an event, later than `now`, or infinity."""
        return next_multiple(now, self.state.options.tick) if self._reranked else inf

    def _decide(
        self, group: GroupStateView, now: float
    ) -> tuple[list[JobStateView], list[JobStateView]]:
        """Return the jobs to start and the jobs to stop for them, each in order of rank."""
        own, jobs = self._groups[group], self.state.jobs
        starts: list[JobStateView] = []
        stops: list[JobStateView] = []
        if not own.waiting:
            return starts, stops
        if self.state.waiting == 1 and not group.limited:  # one new job, as at most instants
            (((*_, job_id, width),),) = own.waiting.values()
            if width <= group.idle:
                return [jobs[job_id]], stops
        passed = {
            job_id
            for entries in (own.waiting.values() if group.limited else ())
            for *_, job_id, _ in entries
            if is_barred(jobs[job_id])
        }
        queues = {width: _Queue(entries, passed) for width, entries in own.waiting.items()}
        firsts = {width: queue for width, queue in queues.items() if queue.advance()}
        tail = _Tail(self, own.running, now)
        free = group.idle
        aside: list[
            tuple[Rank, int, str]
        ] = []  # heap of jobs taken from the tail that may still continue
        while True:
            width, first = _best(firsts, tail, free)
            if aside and (first is None or aside[0][0] < first.rank):
                _, gpus, job_id = heappop(aside)
                if gpus <= free:
                    free -= gpus
                else:
                    stops.append(jobs[job_id])
                continue
            if first is None:
                return starts, stops
            while free < width:
                last = tail.pop()
                heappush(aside, last)
                free += last[1]
            free -= width
            starts.append(jobs[first.job_id])
            if not first.advance():
                del firsts[width]

    def _put(self, lists: dict[int, SortedList[_Entry]], job: JobStateView, key: Any) -> None:
        entry = (-job.job.priority, key, job.sequence, job.job.id, job.width)
        self._entries[job.job.id] = entry
        queue = lists.get(job.width)
        if queue is None:
            queue = lists[job.width] = SortedList()
        queue.add(entry)

    def _take(self, lists: dict[int, SortedList[_Entry]], job: JobStateView) -> None:
        entry = self._entries.pop(job.job.id)
        width = entry[-1]
        queue = lists[width]
        queue.remove(entry)
        if not queue:
            del lists[width]

    def check(self) -> None:
        """Assert that every job is indexed once."""
        expected: dict[tuple[GroupStateView, bool], list[int]] = {}
        for job in self.state.jobs.values():
            place = job.pool.group, job.stream is not None
            expected.setdefault(place, []).append(job.sequence)
        for group, own in self._groups.items():
            running = [*own.running.values(), *own.pinned.values()]
            for lists, runs in (([*own.waiting.values()], False), (running, True)):
                found = sorted(entry[2] for queue in lists for entry in queue)
                assert found == sorted(expected.get((group, runs), [])), group.name
            for by_width in (own.waiting, own.running, own.pinned):
                for width, queue in by_width.items():
                    for *_, job_id, own_width in queue:
                        assert own_width == width == self.state.jobs[job_id].width


class _Queue:
    """Pending jobs of one width, and the position up to which a pass has handled them."""

    __slots__ = ("_entries", "_passed", "_place", "job_id", "rank")

    def __init__(self, entries: SortedList[_Entry], passed: set[str]) -> None:
        self._entries, self._passed, self._place = entries, passed, -1

    def advance(self) -> bool:
        """Move to the next job. Returns False if there is none."""
        while (place := self._place + 1) < len(self._entries):
            self._place = place
            minus, key, sequence, self.job_id, _ = self._entries[place]
            if self.job_id not in self._passed:
                self.rank: Rank = (minus, key, sequence)
                return True
        return False


def _best(queues: dict[int, _Queue], tail: _Tail, free: int) -> tuple[int, _Queue | None]:
    """Return width and queue of the first job by rank that has room.

    O(different widths · width).
    """
    best, found = None, 0
    for width, queue in queues.items():
        better = best is None or queue.rank < best.rank
        if better and tail.frees(width - free, queue.rank):
            best, found = queue, width
    return found, best


class _Tail:
    """The running jobs of a group from the last rank up, computed as far as a pass needs."""

    def __init__(self, policy: Ranked, running: dict[int, SortedList[_Entry]], now: float) -> None:
        self._policy, self._running, self._now = policy, running, now
        self._last: dict[int, tuple[Rank, int]] | None = (
            None  # by width: the last rank and its position
        )
        self._order: list[tuple[Rank, int, str]] = []  # rank, GPUs freed, job
        self._over: dict[PoolStateView, int] = {}  # GPUs that pools with a reduced quota absorb
        self._popped = 0

    def frees(self, gpus: int, rank: Rank) -> bool:
        """Return whether jobs behind `rank` use at least this many GPUs. O(gpus)."""
        place = self._popped
        while gpus > 0:
            if place == len(self._order) and not self._extend():
                return False
            behind, freed, _ = self._order[place]
            if behind < rank:
                return False
            gpus -= freed
            place += 1
        return True

    def pop(self) -> tuple[Rank, int, str]:
        """Return the last remaining job by rank. `frees` must have visited it."""
        self._popped += 1
        return self._order[self._popped - 1]

    def _extend(self) -> bool:
        if self._last is None:
            self._last = {w: self._rank_at(w, len(q) - 1) for w, q in self._running.items()}
        if not self._last:
            return False
        width = max(self._last, key=self._last.__getitem__)
        rank, place = self._last[width]
        job = self._policy.state.jobs[self._running[width][place][3]]
        self._order.append((rank, self._frees(job), job.job.id))
        if place:
            self._last[width] = self._rank_at(width, place - 1)
        else:
            del self._last[width]
        return True

    def _frees(self, job: JobStateView) -> int:
        """Return the GPUs that become idle when this job stops after those popped before it."""
        pool = job.pool
        if pool.dedicated <= pool.quota or job.stream is not Stream.DEDICATED:
            return job.width
        over = self._over.get(pool, pool.dedicated - pool.quota)
        kept = min(over, job.width)
        self._over[pool] = over - kept
        return job.width - kept

    def _rank_at(self, width: int, place: int) -> tuple[Rank, int]:
        minus, key, sequence, *_ = self._running[width][place]
        return (minus, self._policy.running_rank(key, width, self._now), sequence), place
