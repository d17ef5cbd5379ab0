"""Shortest service first over all pools of a group, as if they were one pool (§4.1)."""

from __future__ import annotations

from sortedcontainers import SortedList

from sia.contract.policy import Changes, Needs, Policy, anywhere, is_barred
from sia.contract.proposals import Proposals
from sia.contract.views import ClusterStateView, GroupStateView, JobStateView


class GlobalSsf(Policy):
    """Starts the job of the group with the least run time · width once it fits in the idle GPUs."""

    needs = Needs(run_times=True)
    shares = True
    places = True

    def attach(self, state: ClusterStateView) -> None:
        """Sort each group's queue by rank."""
        self._queues: dict[GroupStateView, SortedList[tuple[int, float, int, str]]] = {
            group: SortedList() for group in state.groups
        }
        super().attach(state)

    def rank(self, job: JobStateView) -> tuple[int, float, int, str]:
        """Return the order of a job: priority, service, sequence."""
        return -job.job.priority, job.run_time * job.job.width, job.sequence, job.job.id

    def submitted(self, job: JobStateView) -> None:
        """Add a job to the group's queue. O(log n)."""
        self._queues[job.pool.group].add(self.rank(job))

    def left(self, job: JobStateView) -> None:
        """Remove a job from the group's queue. O(log n)."""
        self._queues[job.pool.group].remove(self.rank(job))

    def propose(self, now: float, changes: Changes) -> Proposals:
        """Start the jobs with the least service in the groups that changed.

        A job that does not fit blocks the others, except one that only a limit on loans keeps back.
        """
        for group in changes.groups:
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
