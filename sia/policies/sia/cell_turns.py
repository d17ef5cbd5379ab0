"""Whose turn it is in each pool, as if the pool were alone (§5.1's virtual start, in cells).

First come, first served in cells is not monotone: where a job is gone from a queue, the next ones
start sooner and in other places, cells fall into other pieces, and a job further back may start
later. So a job that started elsewhere keeps its turn. When that comes, cells of its pool are kept
for it, empty, for as long as it ran: all else in the pool happens when and where it would alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from heapq import heappop, heappush
from math import inf

from msgspec import Struct
from msgspec.structs import astuple

from sia.limits import STRIDE
from sia.model import Job, Stream
from sia.state.state import ClusterState, JobState, PoolState


class StartedElsewhere(Struct):
    """A job that started elsewhere.

    `since` is when cells began to be kept for it, `ran` are the seconds that it ran if it has
    ended; then nobody else knows the `job` any more.
    """

    job_id: str
    since: float | None = None
    ran: float | None = None
    job: Job | None = None


class VirtualQueueSnapshot(Struct):
    """The queues by pool, with who was withdrawn, as (job, its sequence); and who is away."""

    queues: dict[str, list[tuple[str, int]]]
    away: list[StartedElsewhere]


class VirtualQueue:
    """The queues of all pools; jobs that started elsewhere stay in them until their turn.

    A job is away from its start in spare cells until its turn is over.
    """

    def __init__(self) -> None:
        """Start with no job."""
        self._queues: dict[PoolState, deque[str]] = {}
        self._queued: dict[str, int] = {}  # sequence
        self._away: dict[str, JobState] = {}
        self._ran: dict[str, float] = {}  # seconds, of those away that ended
        self._since: dict[str, tuple[float, JobState]] = {}  # when cells began to be kept for whom
        self._ends: list[tuple[float, str]] = []  # when they are no longer, if that is known
        self._ahead: dict[PoolState, int] = {}

    def memory(self) -> VirtualQueueSnapshot:
        """All of it. O(jobs)."""
        queued = self._queued
        queues = {p.name: [(i, queued[i]) for i in queue] for p, queue in self._queues.items()}
        return VirtualQueueSnapshot(queues, [self._remember(job) for job in self._away.values()])

    def _remember(self, job: JobState) -> StartedElsewhere:
        job_id = job.job.id
        since, ran = self._since.get(job_id), self._ran.get(job_id)
        return StartedElsewhere(job_id, since and since[0], ran, None if ran is None else job.job)

    def resume(self, memory: VirtualQueueSnapshot, state: ClusterState) -> None:
        """Take in what was remembered, while new. Raises ValueError. O(jobs · log n)."""
        queues = zip(state.pools_of(memory.queues), memory.queues.values(), strict=True)
        self._queues = {pool: deque(job_id for job_id, _ in queue) for pool, queue in queues}
        self._queued = dict(place for queue in memory.queues.values() for place in queue)
        for away in memory.away:
            self._away[away.job_id] = _found(away, state)
        for pool, queue in self._queues.items():
            gone = (self._away[job_id].gpus for job_id in queue if job_id in self._away)
            self._ahead[pool] = sum(gone)
        for job_id, since, ran, _ in map(astuple, memory.away):
            if ran is not None:
                self._ran[job_id] = ran
            if since is not None:
                self._since[job_id] = since, self._away[job_id]
            self._foresee(job_id)

    def ahead(self, pool: PoolState) -> int:
        """GPUs of a pool's jobs that started elsewhere and whose turn is still to come. O(1)."""
        return self._ahead.get(pool, 0)

    def submitted(self, job: JobState) -> None:
        """A job joined its queue; one that was stopped elsewhere has its old place.

        O(1), and O(its queue) if it is out of turn.

        Raises ValueError, with nothing changed, for the id of one that ended before its turn.
        """
        job_id = job.job.id
        if job_id in self._ran:
            raise ValueError(
                f"job {job_id}: one of this id ended before its turn, which is to come"
            )
        away = self._away.pop(job_id, None)
        self._since.pop(job_id, None)
        queue = self._queues.setdefault(job.pool, deque())
        before = self._queued.get(job_id)
        if before is not None:
            if away is not None:
                self._ahead[job.pool] -= job.gpus
            if before == job.sequence:
                return
            queue.remove(job_id)  # it has another priority now
        self._queued[job_id] = job.sequence
        queue.insert(self._place(job, queue, taken=before is None and job.attempt > 0), job_id)

    def _place(self, job: JobState, queue: deque[str], *, taken: bool) -> int:
        """Where a job belongs; one whose turn had come, before all others of its priority."""
        queued = self._queued
        if taken:
            first = -job.job.priority * STRIDE  # before it are those of a higher one
            return next((i for i, each in enumerate(queue) if queued[each] > first), len(queue))
        place = len(queue)
        while place and queued[queue[place - 1]] > job.sequence:
            place -= 1
        return place

    def started(self, job: JobState) -> None:
        """A job runs in spare cells from now on. O(1)."""
        self._away[job.job.id] = job
        if job.job.id in self._queued:
            self._ahead[job.pool] = self._ahead.get(job.pool, 0) + job.gpus

    def finished(self, job: JobState, now: float) -> None:
        """A job ended. O(log n)."""
        if job.stream is Stream.SPARE and job.job.id in self._away:
            self._ran[job.job.id] = job.work(now)
            self._foresee(job.job.id)

    def first(self, pool: PoolState, jobs: Mapping[str, JobState]) -> JobState | None:
        """The job whose turn it is, away or among those that wait. O(1) amortised."""
        queue = self._queues.get(pool)
        while queue:
            job = self._away.get(queue[0]) or jobs.get(queue[0])
            if job is not None:
                return job
            del self._queued[queue.popleft()]  # it was withdrawn
        return None

    def is_away(self, job: JobState) -> bool:
        """It started elsewhere. O(1)."""
        return job.job.id in self._away

    def taken(self, job: JobState, now: float) -> None:
        """The first of its pool has had its turn: it runs, or cells are kept for it. O(log n)."""
        job_id = self._queues[job.pool].popleft()
        del self._queued[job_id]
        if job_id in self._away:
            self._ahead[job.pool] -= job.gpus
            self._since[job_id] = now, job
            self._foresee(job_id)

    def over(self, now: float) -> JobState | None:
        """One for which cells need no longer be kept; each is said once. O(log n)."""
        if not self._ends or self._ends[0][0] > now:
            return None
        _, job_id = heappop(self._ends)
        del self._away[job_id], self._ran[job_id]
        return self._since.pop(job_id)[1]

    @property
    def next_end(self) -> float:
        """When there will be one; infinite as long as nobody knows."""
        return self._ends[0][0] if self._ends else inf

    def _foresee(self, job_id: str) -> None:
        if job_id in self._since and job_id in self._ran:
            heappush(self._ends, (self._since[job_id][0] + self._ran[job_id], job_id))

    def check(self, waiting: Iterable[JobState], kept: Iterable[str]) -> None:
        """Assert that all that wait are queued once, and that cells are kept for whom they should.

        O(jobs).
        """
        queued = [job_id for queue in self._queues.values() for job_id in queue]
        assert len(queued) == len(self._queued)
        assert set(queued) == self._queued.keys()
        assert self._queued.keys() >= {job.job.id for job in waiting}
        assert set(kept) == self._since.keys()
        assert self._ran.keys() <= self._away.keys()


def _found(away: StartedElsewhere, state: ClusterState) -> JobState:
    """A job that runs elsewhere, or what is still asked of one that has. Raises ValueError."""
    if away.job is None:
        job = state.jobs.get(away.job_id)
        if job is None or job.stream is not Stream.SPARE or away.ran is not None:
            raise ValueError(f"job {away.job_id} is away, but does not run elsewhere")
        return job
    if away.ran is None or away.job.id != away.job_id or away.job_id in state.jobs:
        raise ValueError(f"job {away.job_id} has run elsewhere, but is not over")
    (pool,) = state.pools_of([away.job.pool])
    job = JobState(away.job, pool, 0.0, 0)
    if state.places is not None:
        job.gpus = state.places.gpus(pool.name, job.width)
    return job
