"""What elastic policies share: widths of jobs, lines of pools, and proposals that reach new widths.

An elastic policy divides a pool's quota anew at each change. It says how many GPUs each job of the
pool should have (`Elastic.deal`); this module stops, resizes and starts jobs accordingly.
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
    """Return the fewest GPUs that a job can run on: 1 if it does not say.

    A job that would lose all of its work, or must not be stopped, has its own width only.
    """
    return job.width if job.preemptible in (NEVER_STOPPED, RESTART) else job.min_width or 1


def most_width(job: Job) -> int:
    """Return the most GPUs that a job can use: its own width if it does not say."""
    fixed = job.preemptible in (NEVER_STOPPED, RESTART)
    return job.width if fixed else job.max_width or job.width


def size_of(job: Job, run_time: float) -> float:
    """Return the size of a job in GPU-seconds: its time on its least width, times that width.

    `run_time` is in seconds at the job's own width (PCS, §4: demand_min).
    """
    least = least_width(job)
    return run_time / job.speed(least) * least


def remaining(job: JobStateView, now: float) -> float:
    """Return the work that is left, in seconds at the job's own width."""
    return max(0.0, job.run_time - job.work(now)) / job.pace


def speed_on(job: Job, gpus: float) -> float:
    """Return the speed on a part of its GPUs, relative to that on the job's own width.

    Below its least width a job runs part of the time, so its speed is in proportion. Above its most
    width it gains nothing. In between, the rate is linear between whole widths. O(points).
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

    A pass costs what `deal` costs, plus O(jobs that run or shall run), for each changed pool.
    """

    needs = Needs(run_times=True, preemption=True, resizing=True)
    heeds = frozenset({"min_width", "max_width", "demand"})
    narrows = True
    tunable = True
    reason = "its turn"

    @abstractmethod
    def deal(self, pool: PoolStateView, gpus: int, now: float) -> Mapping[JobStateView, int]:
        """Return the GPUs of each job that shall run, within `gpus` in all.

        Jobs that run and must never be stopped are not among them: their GPUs are taken off before.
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
        """Return the least and the most GPUs of an elastic job."""
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
        """Add a job, unless it is there already, as it was stopped. O(log n)."""
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
        """Divide the quota of each changed pool anew."""
        for pool in changes.pools:
            yield from self.divide(pool, now)

    def divide(self, pool: PoolStateView, now: float) -> Proposals:
        """Deal the quota of a pool, and propose what leads there: first less, then more GPUs."""
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
        """Start or widen a job, if the GPUs are there.

        They are not if a limit kept jobs from being stopped, or if a pool has lost GPUs in use.
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
    """Return whether a job keeps its GPUs, as it runs and must never be stopped."""
    return job.stream is not None and job.job.preemptible == NEVER_STOPPED


def deal_in_order(
    jobs: Iterable[JobStateView], gpus: int, *, passing: bool
) -> dict[JobStateView, int]:
    """Give each job in order as many GPUs as it can use, until none are left.

    A job whose least width does not fit waits: later ones pass it if `passing`, else they wait too.
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
