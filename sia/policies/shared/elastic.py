"""The common part of elastic policies: widths of jobs, queues of pools, and proposals.

An elastic policy divides a pool's quota again at each change. It returns the number of GPUs for
each job of the pool (`Elastic.deal`); this module stops, resizes and starts jobs accordingly.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping

from sortedcontainers import SortedDict

from sia.contract.policy import Changes, Needs, Policy
from sia.contract.proposals import (
    Dedicate,
    Preempt,
    ProposalResult,
    Proposals,
    Reconsider,
    Resize,
    Start,
)
from sia.contract.views import ClusterStateView, JobStateView, PoolStateView
from sia.model import NEVER_STOPPED, RESTART, Job, Stream

Line = SortedDict[int, JobStateView]
"""The jobs of a pool, pending and running, by sequence number."""


def least_width(job: Job) -> int:
    """Return the smallest width of a job: `min_width`, or 1 if it states none.

    For a job that would lose all of its work, or must not be stopped, this is its own width.
    """
    return job.width if job.preemptible in (NEVER_STOPPED, RESTART) else job.min_width or 1


def most_width(job: Job) -> int:
    """Return the largest width of a job: `max_width`, or its own width if it states none."""
    fixed = job.preemptible in (NEVER_STOPPED, RESTART)
    return job.width if fixed else job.max_width or job.width


def size_of(job: Job, run_time: float) -> float:
    """Return the size of a job in GPU-seconds: its time on its least width, times that width.

    `run_time` is in seconds at the job's own width (PCS, §4: demand_min).
    """
    least = least_width(job)
    return run_time / job.speed(least) * least


def remaining(job: JobStateView, now: float) -> float:
    """Return the remaining work, in seconds at the job's own width."""
    return max(0.0, job.run_time - job.work(now)) / job.pace


def speed_on(job: Job, gpus: float) -> float:
    """Return the speed on a fractional number of GPUs, relative to that on the job's own width.

    Below its smallest width a job runs part of the time, so its speed is proportional. Above its
    largest width the speed is constant. In between it is linear between whole widths. O(points).
    """
    least, most = least_width(job), most_width(job)
    if gpus <= least:
        return job.speed(least) * (gpus / least)
    if gpus >= most:
        return job.speed(most)
    low = int(gpus)
    part = gpus - low
    below = job.speed(low)
    return below + part * (job.speed(low + 1) - below) if part else below


class Elastic(Policy):
    """Base class: a subclass implements `deal`.

    For each changed pool a pass costs one `deal`, plus O(jobs that run before or after it).
    """

    needs = Needs(run_times=True, preemption=True, resizing=True)
    heeds = frozenset({"min_width", "max_width", "demand"})
    narrows = True
    tunable = True
    reason = "its turn"

    @abstractmethod
    def deal(self, pool: PoolStateView, gpus: int, now: float) -> Mapping[JobStateView, int]:
        """Return the number of GPUs of each job to run, at most `gpus` in all.

        Running jobs that must never be stopped are not included; their GPUs are already subtracted
        from `gpus`.
        """

    def attach(self, state: ClusterStateView) -> None:
        """Add all jobs to their pools' lines, running ones included."""
        self._lines: dict[str, Line] = {name: SortedDict() for name in state.pools}
        self._running: dict[str, Line] = {name: SortedDict() for name in state.pools}
        self._never = dict.fromkeys(state.pools, 0)  # jobs that must not be stopped
        self.state = state
        for job in state.jobs.values():
            if job.stream is not None:
                self.join(job)
        super().attach(state)

    def line(self, pool: PoolStateView) -> Iterable[JobStateView]:
        """Return the jobs of a pool in order of priority and arrival, without pinned ones."""
        jobs: Iterable[JobStateView] = self._lines[pool.name].values()
        if not self._never[pool.name]:
            return jobs
        return [job for job in jobs if not is_pinned(job)]

    def widths(self, job: JobStateView) -> tuple[int, int]:
        """Return the smallest and the largest width of an elastic job, in GPUs."""
        return least_width(job.job), most_width(job.job)

    def join(self, job: JobStateView) -> None:
        """Add a job to its pool's line. O(log n)."""
        name = job.pool.name
        self._lines[name][job.sequence] = job
        self._never[name] += job.job.preemptible == NEVER_STOPPED
        if job.stream is not None:
            self._running[name][job.sequence] = job

    def leave(self, job: JobStateView) -> None:
        """Remove a job from its pool's line. O(log n)."""
        name = job.pool.name
        del self._lines[name][job.sequence]
        self._never[name] -= job.job.preemptible == NEVER_STOPPED
        self._running[name].pop(job.sequence, None)

    def submitted(self, job: JobStateView) -> None:
        """Add a job, unless it is in the line already because it was stopped. O(log n)."""
        name = job.pool.name
        if job.sequence in self._lines[name]:
            self._running[name].pop(job.sequence, None)
        else:
            self.join(job)

    def left(self, job: JobStateView) -> None:
        """Remove a job that leaves the pool's line before it has started. O(log n)."""
        if job.stream is None:
            self.leave(job)

    def finished(self, job: JobStateView) -> None:
        """Remove a job that has ended. O(log n)."""
        self.leave(job)

    def propose(self, now: float, changes: Changes) -> Proposals:
        """Divide the quota of each changed pool again."""
        for pool in changes.pools:
            yield from self.divide(pool, now)

    def divide(self, pool: PoolStateView, now: float) -> Proposals:
        """Divide the quota of a pool, and propose the changes: first fewer, then more GPUs."""
        running = [*self._running[pool.name].values()]
        for job in running:
            if job.stream is Stream.SPARE:  # another policy had lent it GPUs
                yield from self._bring_home(job)
        never = self._never[pool.name]
        pinned = sum(job.width for job in running if is_pinned(job)) if never else 0
        wanted = self.deal(pool, max(0, pool.quota - pinned), now)
        for job in running:
            if job.stream is None or (never and is_pinned(job)):
                continue
            width = wanted.get(job, 0)
            if not width:
                yield Preempt(job, "GPUs of its pool go to jobs before it")
            elif width < job.width:
                yield Resize(job, width, Stream.DEDICATED, self.reason)
        for job, width in wanted.items():
            if job.stream is None or job.width < width:
                yield from self._widen(job, width)

    def _widen(self, job: JobStateView, width: int) -> Proposals:
        """Start or widen a job, if enough GPUs are idle.

        They are not if a limit on stops prevented a stop, or if the quota shrank below its use.
        """
        pool, now_on = job.pool, 0 if job.stream is None else job.width
        if pool.dedicated - now_on + width > pool.quota or width > pool.idle + job.frees:
            yield Reconsider(pool)
        elif job.stream is None:
            own = 0 if width == job.job.width else width
            result = yield Start(job, Stream.DEDICATED, self.reason, own)
            if result is ProposalResult.DONE:
                self._running[pool.name][job.sequence] = job
        else:
            yield Resize(job, width, Stream.DEDICATED, self.reason)

    def _bring_home(self, job: JobStateView) -> Proposals:
        """Count a job on lent GPUs within its pool's quota, or stop it."""
        pool = job.pool
        if pool.dedicated + job.width <= pool.quota:
            result = yield Dedicate(job, "each pool uses its own GPUs only")
            if result is ProposalResult.DONE:
                return
        if job.job.preemptible != NEVER_STOPPED:
            yield Preempt(job, "each pool uses its own GPUs only")

    def check(self) -> None:
        """Assert that every job is in its pool's line."""
        for name, line in self._lines.items():
            jobs = [job for job in self.state.jobs.values() if job.pool.name == name]
            assert list(line.values()) == sorted(jobs, key=lambda job: job.sequence), name
            running = [job for job in line.values() if job.stream is not None]
            assert list(self._running[name].values()) == running, name


def is_pinned(job: JobStateView) -> bool:
    """Return whether a job runs and must never be stopped, so that it keeps its GPUs."""
    return job.stream is not None and job.job.preemptible == NEVER_STOPPED


def deal_in_order(
    jobs: Iterable[JobStateView], gpus: int, *, passing: bool
) -> dict[JobStateView, int]:
    """Give each job in order as many GPUs as it can use, until none are left.

    A job whose smallest width does not fit waits. With `passing` later jobs may pass it, otherwise
    they wait too.
    O(jobs up to the last that gets GPUs), O(jobs) with `passing`.
    """
    dealt = {}
    for job in jobs:
        if not gpus:
            break
        if least_width(job.job) > gpus:
            if passing:
                continue
            break
        width = dealt[job] = min(gpus, most_width(job.job))
        gpus -= width
    return dealt
