"""GENIE, in the comparison of Chronus (§4.3): least laxity, on the GPUs that a deadline needs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sia.contract.policy import Changes, Needs, Policy, is_barred, stream_of
from sia.contract.proposals import Proposals, Start
from sia.contract.views import ClusterStateView, GroupStateView, JobStateView
from sia.limits import UNKNOWN_RUN_TIME
from sia.policies.shared.elastic import least_width, most_width


class Genie(Policy):
    """Starts jobs with a deadline by laxity, then the others by arrival; stops none.

    Laxity is the time to the deadline minus the run time on the largest number of GPUs that the job
    can use. A job gets the fewest GPUs on which it still meets its deadline; its speed follows from
    its `demand`, or else is proportional to its GPUs. Jobs that cannot meet their deadline come
    after those that can, on the largest number of GPUs that they can use. A job that does not fit
    is skipped. A pass is O(pending jobs · widths).
    """

    needs = Needs(run_times=True, preemption=True)
    shares = True
    on_nodes = True
    heeds = frozenset({"deadline", "min_width", "max_width", "demand"})

    def attach(self, state: ClusterStateView) -> None:
        """Index the pending jobs."""
        self._waiting: dict[GroupStateView, dict[str, JobStateView]] = {
            group: {} for group in state.groups
        }
        super().attach(state)

    def submitted(self, job: JobStateView) -> None:
        """Queue a job. O(1)."""
        self._waiting[job.pool.group][job.job.id] = job

    def left(self, job: JobStateView) -> None:
        """Remove a job that started or was cancelled. O(1)."""
        del self._waiting[job.pool.group][job.job.id]

    def propose(self, now: float, changes: Changes) -> Proposals:
        """Start the jobs that fit, in order."""
        for group in changes.groups:
            waiting = self._waiting[group].values()
            for job in sorted(waiting, key=lambda job: self._rank(job, now)):
                if group.idle <= group.out:
                    break
                width = self._width(job, now)
                if width <= group.idle - group.out and not is_barred(job):
                    yield Start(job, stream_of(job.pool, width), "least laxity", width)

    def rank(self, job: JobStateView) -> Any:
        """By laxity; best effort comes last."""
        return self._rank(job, self.state.now)

    def _rank(self, job: JobStateView, now: float) -> tuple[int, int, float, int]:
        deadline = job.job.deadline
        if deadline is None:
            return -job.job.priority, 2, 0.0, job.sequence
        laxity = deadline - now - self._seconds(job, _most(job))
        return -job.job.priority, int(laxity < 0), laxity, job.sequence

    def _seconds(self, job: JobStateView, gpus: int) -> float:
        """Return the run time on `gpus` GPUs, in seconds."""
        if job.run_time >= UNKNOWN_RUN_TIME:
            return 0.0  # unknown: it may still meet its deadline
        return (job.run_time - job.done) / job.job.speed(gpus)

    def _width(self, job: JobStateView, now: float) -> int:
        """Return the fewest GPUs with which a job meets its deadline, else the most it can use."""
        if job.job.deadline is None or job.run_time >= UNKNOWN_RUN_TIME:
            return job.width
        within = job.job.deadline - now
        able = (gpus for gpus in self._widths(job) if self._seconds(job, gpus) <= within)
        return next(able, _most(job))

    def _widths(self, job: JobStateView) -> Iterator[int]:
        return iter(range(least_width(job.job), _most(job) + 1))

    def check(self) -> None:
        """Assert that every pending job is queued once."""
        assert sum(map(len, self._waiting.values())) == self.state.waiting


def _most(job: JobStateView) -> int:
    """Return the most GPUs that a job can use and its group can ever have."""
    return max(least_width(job.job), min(most_width(job.job), job.pool.group.quota))
