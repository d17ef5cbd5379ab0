"""EASY backfilling in each pool, without sharing."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf

from sortedcontainers import SortedList

from sia.contract.policy import Changes, Needs, Policy
from sia.contract.proposals import Proposals, Start
from sia.contract.views import ClusterStateView, JobStateView, PoolStateView
from sia.model import Stream
from sia.policies.shared.earliest import Earliest


class Easy(Policy):
    """First come, first served; later jobs may start if they do not delay the head.

    The head's start is the time at which, by the run-time estimates, enough running jobs have
    ended. A later job may start if it ends by then, or if it fits into the GPUs that the head does
    not need then.
    """

    needs = Needs(run_times=True)

    def attach(self, state: ClusterStateView) -> None:
        """Index each pool's pending jobs, and its running jobs by estimated end."""
        self._queues: dict[PoolStateView, dict[tuple[int, int], Earliest]] = {
            pool: {}
            for pool in state.pools.values()  # by width and priority
        }
        self._running: dict[PoolStateView, SortedList[tuple[float, int, int]]] = {
            pool: SortedList() for pool in state.pools.values()
        }
        super().attach(state)
        for job in state.jobs.values():
            if job.stream is not None:
                self._running[job.pool].add(_end(job))

    def submitted(self, job: JobStateView) -> None:
        """Add a job to the pool's queue. O(log n)."""
        queue = self._queues[job.pool].setdefault((job.width, job.job.priority), Earliest())
        queue.add(job.sequence, job.run_time)

    def left(self, job: JobStateView) -> None:
        """Remove a job from the pool's queue. O(log n)."""
        queues, kind = self._queues[job.pool], (job.width, job.job.priority)
        queues[kind].remove(job.sequence)
        if not queues[kind]:
            del queues[kind]
        if job.stream is not None:
            self._running[job.pool].add(_end(job))

    def finished(self, job: JobStateView) -> None:
        """Remove a running job. O(log n)."""
        self._running[job.pool].remove(_end(job))

    def before_progress(self, job: JobStateView) -> None:
        """Remove the estimated end of a running job. O(log n)."""
        self._running[job.pool].remove(_end(job))

    def progressed(self, job: JobStateView) -> None:
        """Add the new estimated end of a running job. O(log n)."""
        self._running[job.pool].add(_end(job))

    def propose(self, now: float, changes: Changes) -> Proposals:
        """Start heads, then the first jobs that do not delay the next head."""
        for pool in changes.pools:
            while (head := pool.head) is not None:
                free = pool.quota - pool.dedicated
                if head.width <= free:
                    yield Start(head, Stream.DEDICATED, "head of its pool, within quota")
                    continue
                job = self._backfill(pool, head, free, now)
                if job is None:
                    break
                yield Start(
                    job, Stream.DEDICATED, "backfilled, does not delay the head of its pool"
                )

    def _backfill(
        self, pool: PoolStateView, head: JobStateView, free: int, now: float
    ) -> JobStateView | None:
        """Return the first job that may start before the head, or None.

        O(different widths and priorities · log n + head's width).
        """
        queues = self._queues[pool].items()
        fitting = [(width, queue) for (width, _), queue in queues if width <= free]
        if not fitting:
            return None
        promised, extra = self._promise(self._running[pool], head, free, now)
        first: int | None = None
        for width, queue in fitting:
            sequence = queue.first(inf if width <= extra else promised - now)
            if sequence is not None and (first is None or sequence < first):
                first = sequence
        return None if first is None else pool.waits(first)

    @staticmethod
    def _promise(
        running: Iterable[tuple[float, int, int]], head: JobStateView, free: int, now: float
    ) -> tuple[float, int]:
        """Return the head's estimated start, and the number of GPUs that it leaves free then."""
        promised = inf  # a head that can never start blocks no job
        for end, _, width in running:
            if end > promised:
                break
            free += width
            if free >= head.width and promised == inf:
                promised = max(end, now)
        return promised, free - head.width

    def check(self) -> None:
        """Assert that queues and estimated ends match the state."""
        for pool, queues in self._queues.items():
            assert sum(map(len, queues.values())) == len(pool.waiting()), pool.name
            for queue in queues.values():
                queue.check()
        running = sum(map(len, self._running.values()))
        assert running == len(self.state.jobs) - self.state.waiting


def _end(job: JobStateView) -> tuple[float, int, int]:
    return job.end(job.run_time), job.sequence, job.width
