"""The baseline order of each pool in a cluster with cells (the virtual start of §5.1).

In cells, first come, first served is not monotone. If a job leaves a queue early, later jobs start
earlier and in other places, cells split differently, and a job further back may start later. So a
job that started in spare cells keeps its place in the queue. When it reaches the head, cells of its
pool are reserved for it, and stay empty, for as long as it ran. All other jobs of the pool then
start when and where they would without sharing.

This holds as long as no spare job has cells that a pool needs. Once one does, all jobs of the queue
are later than without sharing, and would remain so until the queue is empty. Such a pool may catch
up: until its queue is empty it reserves no cells for jobs that started elsewhere.

A job that was stopped in spare cells and continues in its own cells ends earlier than without
sharing, because it has already done some work. Its cells also stay reserved until it would have
ended.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from heapq import heappop, heappush
from math import inf
from typing import cast

from msgspec import Struct
from msgspec.structs import astuple

from sia.contract.views import ClusterStateView, JobStateView, PoolStateView
from sia.model import Job, Stream
from sia.state.state import JobState, PoolState


class StartedElsewhere(Struct):
    """A job that started in spare cells, now or in an earlier segment.

    `since` is when cells were reserved for it. `ran` is its run time in seconds after its end. Only
    then is `job` set, because the state no longer contains the job.
    """

    job_id: str
    since: float | None = None
    ran: float | None = None
    job: Job | None = None


class VirtualQueueSnapshot(Struct):
    """Queues by pool as (job, sequence), and the jobs that started in spare cells.

    The queues may contain withdrawn jobs.
    """

    queues: dict[str, list[tuple[str, int]]]
    away: list[StartedElsewhere]


class VirtualQueue:
    """The baseline queues of all pools. Jobs that started in spare cells stay in them.

    A job is *away* from its start in spare cells until it is stopped, or its reservation in its own
    pool ends. Its *turn* is when it reaches the head and its cells are available: its start in the
    baseline.
    """

    def __init__(self) -> None:
        """Start without jobs."""
        self._queues: dict[PoolStateView, deque[str]] = {}
        self._queued: dict[str, int] = {}  # sequence
        self._away: dict[str, JobStateView] = {}
        self._ran: dict[str, float] = {}  # run times in seconds of away jobs that ended
        self._since: dict[str, tuple[float, JobStateView]] = {}  # starts of reservations
        self._ends: list[tuple[float, str]] = []  # heap of known ends of reservations
        self._ahead: dict[PoolStateView, int] = {}

    def memory(self) -> VirtualQueueSnapshot:
        """Return the whole state. O(jobs)."""
        queued = self._queued
        queues = {p.name: [(i, queued[i]) for i in queue] for p, queue in self._queues.items()}
        others = [job for job_id, (_, job) in self._since.items() if job_id not in self._away]
        away = [self._remember(job) for job in (*self._away.values(), *others)]
        return VirtualQueueSnapshot(queues, away)

    def _remember(self, job: JobStateView) -> StartedElsewhere:
        job_id = job.job.id
        since, ran = self._since.get(job_id), self._ran.get(job_id)
        return StartedElsewhere(job_id, since and since[0], ran, None if ran is None else job.job)

    def resume(self, memory: VirtualQueueSnapshot, state: ClusterStateView) -> None:
        """Restore the state into a new object. Raises ValueError. O(jobs · log n)."""
        queues = zip(state.pools_of(memory.queues), memory.queues.values(), strict=True)
        self._queues = {pool: deque(job_id for job_id, _ in queue) for pool, queue in queues}
        self._queued = dict(place for queue in memory.queues.values() for place in queue)
        for away in memory.away:
            job_id, since, ran, _ = astuple(away)
            job = _found(away, state)
            if ran is not None:
                self._ran[job_id] = ran
            if ran is not None or job.stream is Stream.SPARE:
                self._away[job_id] = job
            if since is not None:
                self._since[job_id] = since, job
            self._foresee(job_id)
        for pool, queue in self._queues.items():
            gone = (self._away[job_id].gpus for job_id in queue if job_id in self._away)
            self._ahead[pool] = sum(gone)

    def ahead(self, pool: PoolStateView) -> int:
        """Return the GPUs of a pool's queued jobs that started in spare cells. O(1)."""
        return self._ahead.get(pool, 0)

    def submitted(self, job: JobStateView) -> None:
        """Queue a job; one that was preempted in spare cells keeps its place.

        If its turn has come, it is the head, and its cells stay reserved.

        O(1), and O(its queue) for a job out of order. Raises ValueError, with nothing changed, for
        the id of a queued job that has already ended in spare cells.
        """
        job_id = job.job.id
        if job_id in self._ran:
            raise ValueError(
                f"job {job_id}: a job with this id ended early and is still in the virtual queue"
            )
        away = self._away.pop(job_id, None)
        queue = self._queues.setdefault(job.pool, deque())
        before = self._queued.get(job_id)
        if before is not None:
            if away is not None:
                self._ahead[job.pool] -= job.gpus
            if before == job.sequence:
                return
            queue.remove(job_id)  # its priority changed
        self._queued[job_id] = job.sequence
        queue.insert(0 if job_id in self._since else self._place(job, queue), job_id)

    def _place(self, job: JobStateView, queue: deque[str]) -> int:
        """Return the index of a job in the queue."""
        queued = self._queued
        place = len(queue)
        while place and queued[queue[place - 1]] > job.sequence:
            place -= 1
        return place

    def started(self, job: JobStateView) -> None:
        """Record that a job started in spare cells. O(1)."""
        self._away[job.job.id] = job
        if job.job.id in self._queued:
            self._ahead[job.pool] = self._ahead.get(job.pool, 0) + job.gpus

    def finished(self, job: JobStateView, now: float) -> None:
        """Record that a running job ended. O(log n)."""
        job_id = job.job.id
        if job_id in self._away or job_id in self._since:
            self._away[job_id] = job
            self._ran[job_id] = job.work(now)
            self._foresee(job_id)

    def withdrawn(self, job: JobStateView, now: float) -> None:
        """Forget a pending job that left the cluster; its reservation ends. O(its queue)."""
        job_id = job.job.id
        if job_id in self._since:
            if self._queued.pop(job_id, None) is not None:
                self._queues[job.pool].remove(job_id)
            self._away[job_id] = job
            self._ran[job_id] = now - self._since[job_id][0]
            self._foresee(job_id)

    def first(self, pool: PoolStateView, jobs: Mapping[str, JobStateView]) -> JobStateView | None:
        """Return the head of the pool's queue, away or pending, or None. O(1) amortised."""
        queue = self._queues.get(pool)
        while queue:
            job = self._away.get(queue[0]) or jobs.get(queue[0])
            if job is not None:
                return job
            del self._queued[queue.popleft()]  # it was withdrawn
        return None

    def is_away(self, job: JobStateView) -> bool:
        """Return whether a job started in spare cells and its reservation has not ended. O(1)."""
        return job.job.id in self._away

    def turn_of(self, job: JobStateView) -> float | None:
        """Return when the turn of a job with reserved cells came, or None. O(1)."""
        since = self._since.get(job.job.id)
        return None if since is None else since[0]

    def taken(self, job: JobStateView, now: float, *, reserved: bool) -> None:
        """Remove the head of a pool's queue: it was started, or cells were reserved for it.

        O(log n).
        """
        job_id = self._queues[job.pool].popleft()
        del self._queued[job_id]
        if job_id in self._away:
            self._ahead[job.pool] -= job.gpus
        if reserved and job_id not in self._since:
            self._since[job_id] = now, job
            self._foresee(job_id)

    def forget(self, job: JobStateView) -> None:
        """Remove a job that started in spare cells from the head of its pool's queue. O(1)."""
        job_id = self._queues[job.pool].popleft()
        del self._queued[job_id], self._away[job_id]
        self._ran.pop(job_id, None)
        self._ahead[job.pool] -= job.gpus

    def over(self, now: float) -> JobStateView | None:
        """Return a job whose reservation has ended, each once, or None. O(log n)."""
        if not self._ends or self._ends[0][0] > now:
            return None
        _, job_id = heappop(self._ends)
        del self._away[job_id], self._ran[job_id]
        return self._since.pop(job_id)[1]

    def ended(self) -> list[JobStateView]:
        """Return the jobs that have ended and have reserved cells, the last to lose them first."""
        return [self._since[job_id][1] for _, job_id in sorted(self._ends, reverse=True)]

    @property
    def next_end(self) -> float:
        """The next known end of a reservation, or infinity."""
        return self._ends[0][0] if self._ends else inf

    def _foresee(self, job_id: str) -> None:
        if job_id in self._since and job_id in self._ran:
            heappush(self._ends, (self._since[job_id][0] + self._ran[job_id], job_id))

    def check(self, waiting: Iterable[JobStateView], kept: Iterable[str]) -> None:
        """Assert that pending jobs are queued once and the right jobs have reservations.

        O(jobs).
        """
        queued = [job_id for queue in self._queues.values() for job_id in queue]
        assert len(queued) == len(self._queued)
        assert set(queued) == self._queued.keys()
        assert self._queued.keys() >= {job.job.id for job in waiting}
        assert set(kept) == self._since.keys()
        assert self._ran.keys() <= self._away.keys()


def _found(away: StartedElsewhere, state: ClusterStateView) -> JobStateView:
    """Return the state of a job in the cluster, or one rebuilt from memory. Raises ValueError."""
    if away.job is None:
        job = state.jobs.get(away.job_id)
        present = job is not None and (job.stream is Stream.SPARE or away.since is not None)
        if job is None or not present or away.ran is not None:
            raise ValueError(f"job {away.job_id} is away but does not run in spare cells")
        return job
    if away.ran is None or away.job.id != away.job_id or away.job_id in state.jobs:
        raise ValueError(f"job {away.job_id} ran in spare cells but has not ended")
    (pool,) = state.pools_of([away.job.pool])
    job = JobState(away.job, cast("PoolState", pool), 0.0, 0)
    if state.places is not None:
        job.gpus = state.places.gpus(pool.name, job.width)
    return job
