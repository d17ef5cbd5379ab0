"""The capacity scheduler of YARN, as Chronus is compared with (§4.3)."""

from __future__ import annotations

from collections import deque
from typing import Annotated

from msgspec import Meta, Struct
from sortedcontainers import SortedDict

from sia.contract.policy import Changes, Needs, Policy, stream_of
from sia.contract.proposals import Proposals, Start
from sia.contract.views import ClusterStateView, GroupStateView, JobStateView


class YarnParams(Struct, frozen=True):
    """Options of the capacity scheduler."""

    slo: Annotated[float, Meta(ge=0, le=100)] = 70.0
    """Percentage of a group's GPUs for jobs with a deadline; the others are for best effort."""


class CapacityScheduler(Policy):
    """Two fixed quotas in each group, each first come, first served; the head blocks.

    A job that is wider than its quota never starts and blocks no other job. No job is stopped.
    """

    Params = YarnParams
    needs = Needs()
    shares = True
    on_nodes = True
    heeds = frozenset({"deadline"})

    def attach(self, state: ClusterStateView) -> None:
        """Index the pending jobs, and count the GPUs of the running ones."""
        self._queues: dict[tuple[GroupStateView, bool], SortedDict[int, JobStateView]] = {
            (group, slo): SortedDict() for group in state.groups for slo in (True, False)
        }
        self._used = dict.fromkeys(self._queues, 0)
        super().attach(state)
        for job in state.jobs.values():
            if job.stream is not None:
                self._used[self._side(job)] += job.width

    def _side(self, job: JobStateView) -> tuple[GroupStateView, bool]:
        return job.pool.group, job.job.deadline is not None

    def submitted(self, job: JobStateView) -> None:
        """Queue a job; O(log n)."""
        self._queues[self._side(job)][job.sequence] = job

    def left(self, job: JobStateView) -> None:
        """Remove a job from its queue; O(log n)."""
        del self._queues[self._side(job)][job.sequence]
        if job.stream is not None:
            self._used[self._side(job)] += job.width

    def finished(self, job: JobStateView) -> None:
        """Subtract the GPUs of an ended job."""
        self._used[self._side(job)] -= job.width

    def quota(self, group: GroupStateView, *, slo: bool) -> int:
        """Return the GPUs of one of the two quotas."""
        first: int = round(group.quota * self.params.slo / 100)
        return first if slo else group.quota - first

    def propose(self, now: float, changes: Changes) -> Proposals:
        """Start the heads that fit in their quota; O(log n) for each start."""
        for group in changes.groups:
            for slo in (True, False):
                side, quota = (group, slo), self.quota(group, slo=slo)
                for job in self._heads(side, quota):
                    free = min(quota - self._used[side], group.idle)
                    if job.width > free:
                        break
                    yield Start(job, stream_of(job.pool, job.width), "head of its queue")
                    if job.stream is None:
                        break

    def _heads(self, side: tuple[GroupStateView, bool], quota: int) -> deque[JobStateView]:
        """Return a queue without leading jobs that are wider than its quota."""
        found: deque[JobStateView] = deque()
        for job in self._queues[side].values():
            if job.width <= quota:
                found.append(job)
            if len(found) > side[0].idle:
                break
        return found

    def check(self) -> None:
        """Assert that every pending job is queued once."""
        queued = sum(len(queue) for queue in self._queues.values())
        assert queued == self.state.waiting
        for side, used in self._used.items():
            running = (job for job in self.state.jobs.values() if job.stream is not None)
            assert used == sum(job.width for job in running if self._side(job) == side)
