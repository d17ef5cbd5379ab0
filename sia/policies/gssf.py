"""Shortest service first over all pools of a group, as if it were one pool (§4.1)."""

from __future__ import annotations

from collections.abc import Iterator

from sortedcontainers import SortedList

from sia.policies import Needs, Policy, Proposal, anywhere, is_barred
from sia.state.state import ClusterState, GroupState, JobState


class GlobalSsf(Policy):
    """The job with least run time · width of the group starts when it fits in what is idle."""

    needs = Needs(run_times=True)
    shares = True
    places = True

    def attach(self, state: ClusterState) -> None:
        """Keep each group's queue by priority, then by service; ties go to who came first."""
        self._queues: dict[GroupState, SortedList[tuple[int, float, int, str]]] = {
            group: SortedList() for group in state.groups
        }
        super().attach(state)

    def rank(self, job: JobState) -> tuple[int, float, int, str]:
        """By priority, then by service; ties go to who came first."""
        return -job.job.priority, job.run_time * job.job.width, job.sequence, job.job.id

    def submitted(self, job: JobState) -> None:
        """O(log n) in the group's queue."""
        self._queues[job.pool.group].add(self.rank(job))

    def left(self, job: JobState) -> None:
        """O(log n) in the group's queue."""
        self._queues[job.pool.group].remove(self.rank(job))

    def propose(self, now: float) -> Iterator[Proposal]:
        """Start the least service of the groups that changed; while it does not fit, it blocks.

        But for those that only a limit on loans keeps back: the others go on.
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
        """Every waiting job stands in its group's queue once."""
        for group, queue in self._queues.items():
            waiting = [job for pool in group.pools for job in pool.waiting()]
            assert list(queue) == sorted(map(self.rank, waiting)), group.name
