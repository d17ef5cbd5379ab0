"""Kueue's cohorts: pools borrow idle GPUs, and owners reclaim them at once.

A pool's usage is the sum of the widths of its running jobs, wherever they run. If a pending job
keeps its pool's usage within the quota, it may stop jobs of pools whose usage exceeds their quota,
newest first. Any other job starts only on idle GPUs. With `StrictFIFO` the first job of a pool
blocks the jobs behind it; with `BestEffortFIFO` jobs that fit pass it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sia.contract.policy import Changes, Needs, Policy
from sia.contract.proposals import Preempt, Proposals, Start
from sia.contract.views import ClusterStateView, GroupStateView, JobStateView, PoolStateView
from sia.model import NEVER_STOPPED, Stream
from sia.policies.shared.fifo import FifoQueue


class KueueStrict(Policy):
    """Borrow and reclaim, with `StrictFIFO` queues."""

    needs = Needs(preemption=True)
    heeds = frozenset({"preemptible"})
    shares = True
    strict = True

    def attach(self, state: ClusterStateView) -> None:
        """Index pending jobs by pool and width, and running ones in order of their starts."""
        self._queues: dict[PoolStateView, dict[int, FifoQueue]] = {
            pool: {} for pool in state.pools.values()
        }
        self._running: dict[GroupStateView, dict[int, JobStateView]] = {
            group: {} for group in state.groups
        }
        super().attach(state)
        self._index({})

    def _index(self, order: dict[int, int]) -> None:
        jobs = [job for job in self.state.jobs.values() if job.stream is not None]
        for job in sorted(jobs, key=lambda job: order.get(job.arrival, len(order))):
            self._running[job.pool.group][job.arrival] = job

    def memory(self) -> Any:
        """Return the running jobs in order of their starts, by number of arrival."""
        return [number for running in self._running.values() for number in running]

    def resume(self, state: ClusterStateView, memory: Any) -> None:
        """Restore the order of starts. O(n log n)."""
        self.attach(state)
        for running in self._running.values():
            running.clear()
        self._index({number: place for place, number in enumerate(memory)})

    def submitted(self, job: JobStateView) -> None:
        """Queue a job, which may have been stopped. O(log n)."""
        self._running[job.pool.group].pop(job.arrival, None)
        queues = self._queues[job.pool]
        queue = queues.get(job.width)
        if queue is None:
            queue = queues[job.width] = FifoQueue()
        queue.add(job)

    def left(self, job: JobStateView) -> None:
        """Remove a job from its queue. O(1)."""
        queues = self._queues[job.pool]
        jobs = queues[job.width].jobs
        del jobs[job.sequence]
        if not jobs:
            del queues[job.width]
        if job.stream is not None:
            self._running[job.pool.group][job.arrival] = job

    def finished(self, job: JobStateView) -> None:
        """Remove a running job. O(1)."""
        del self._running[job.pool.group][job.arrival]

    def propose(self, _now: float, changes: Changes) -> Proposals:
        """Start one job after another: first those within quota, then borrowers. O(running) each.

        In both groups jobs come in the order of submission.
        """
        for group in dict.fromkeys(pool.group for pool in changes.pools):
            skipped: set[int] = set()
            while (job := self._next(group, skipped)) is not None:
                if _within(job.pool, job.width):
                    for victim in self._victims(job):
                        yield Preempt(victim, f"{job.pool.name} reclaims its quota")
                pool = job.pool
                own = _within(pool, job.width) and pool.dedicated + job.width <= pool.quota
                why = "within its pool's quota" if own else "borrows idle GPUs"
                yield Start(job, Stream.DEDICATED if own else Stream.SPARE, why)
                if job.stream is None:
                    skipped.add(job.arrival)  # limits on loans allow no more

    def _next(self, group: GroupStateView, skipped: set[int]) -> JobStateView | None:
        """Return the job to start next, or None."""
        able = [job for pool in group.pools for job in self._able(pool, skipped)]
        return min(
            able,
            key=lambda j: (not _within(j.pool, j.width), j.job.submit, j.sequence),
            default=None,
        )

    def _able(self, pool: PoolStateView, skipped: set[int]) -> Iterator[JobStateView]:
        """Yield the first job of a pool that can start now, if any."""
        heads = sorted(queue.first() for queue in self._queues[pool].values())
        jobs = {queue.first(): queue.jobs[queue.first()] for queue in self._queues[pool].values()}
        for head in heads[:1] if self.strict else heads:
            job = jobs[head]
            if job.arrival not in skipped and self._can_start(job):
                yield job
                return

    def _can_start(self, job: JobStateView) -> bool:
        pool, width = job.pool, job.width
        if width <= pool.idle:
            return _within(pool, width) or width <= pool.room
        if not _within(pool, width):
            return False
        return pool.idle + sum(victim.width for victim in self._victims(job)) >= width

    def _victims(self, job: JobStateView) -> list[JobStateView]:
        """Return the newest jobs of pools above their quotas that free enough GPUs together.

        Returns all such jobs if they do not free enough.
        """
        missing = job.width - job.pool.idle
        if missing <= 0:
            return []
        usage = {pool: pool.dedicated + pool.spare for pool in job.pool.group.pools}
        chosen: list[JobStateView] = []
        for other in reversed(self._running[job.pool.group].values()):
            pool = other.pool
            borrows = pool is not job.pool and usage[pool] > pool.quota
            if borrows and other.job.preemptible != NEVER_STOPPED:
                chosen.append(other)
                usage[pool] -= other.width
                missing -= other.width
                if missing <= 0:
                    break
        for other in chosen[:]:  # a wide job makes narrow ones before it unnecessary
            if missing + other.width <= 0:
                chosen.remove(other)
                missing += other.width
        return chosen

    def check(self) -> None:
        """Assert that the indexes hold exactly the jobs of the state."""
        jobs = self.state.jobs.values()
        running = {number for own in self._running.values() for number in own}
        assert running == {job.arrival for job in jobs if job.stream is not None}
        for pool, queues in self._queues.items():
            queued = sorted(s for queue in queues.values() for s in queue.jobs)
            assert queued == sorted(job.sequence for job in pool.waiting()), pool.name


class KueueBestEffort(KueueStrict):
    """Borrow and reclaim, with `BestEffortFIFO` queues."""

    strict = False


def _within(pool: PoolStateView, width: int) -> bool:
    """Return whether a pool's usage with one more job of this width is within its quota."""
    return pool.dedicated + pool.spare + width <= pool.quota
