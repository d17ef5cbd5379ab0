"""Shortest service first over all pools of a group, as if they were one pool (§4.1)."""

from __future__ import annotations

from collections.abc import Iterator

from sortedcontainers import SortedList

from sia.policies import Needs, Policy, Proposal, anywhere, is_barred
from sia.state.state import ClusterState, GroupState, JobState


class GlobalSsf(Policy):
    """Starts the job of the group with the least run time · width once it fits in the idle GPUs."""

    needs = Needs(run_times=True)
    shares = True
    places = True

    def attach(self, state: ClusterState) -> None:
        """Sort each group's queue by rank."""
        self._queues: dict[GroupState, SortedList[tuple[int, float, int, str]]] = {
            group: SortedList() for group in state.groups
        }
        super().attach(state)

    def rank(self, job: JobState) -> tuple[int, float, int, str]:
        """Return the order of a job: priority, service, sequence."""
        return -job.job.priority, job.run_time * job.job.width, job.sequence, job.job.id

    def submitted(self, job: JobState) -> None:
        """Add a job to the group's queue. O(log n)."""
        self._queues[job.pool.group].add(self.rank(job))

    def left(self, job: JobState) -> None:
        """Remove a job from the group's queue. O(log n)."""
        self._queues[job.pool.group].remove(self.rank(job))

    def propose(self, now: float) -> Iterator[Proposal]:
        """Start the jobs with the least service in the groups that changed.

        A job that does not fit blocks the others, except one that only a limit on loans keeps back.
        """
        for group in self.state.dirty_groups():
            queue = self._queues[group]
            barred = 0
            while barred < len(queue):
                job = self.state.jobs[queue[barred][-1]]
                if job.width > job.pool.idle:
                    break
                if is_barred(job):
                    barred += 1
                    continue
                yield from anywhere(job, "least service of its group")
                if job.stream is None:
                    break

    def check(self) -> None:
        """Assert that every pending job is in its group's queue once."""
        for group, queue in self._queues.items():
            waiting = [job for pool in group.pools for job in pool.waiting()]
            assert list(queue) == sorted(map(self.rank, waiting)), group.name
