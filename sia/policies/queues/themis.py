"""Themis*: finish-time fairness over all pools of a group, run to completion (§6.1, Baselines).

The unfairness of a schedule to a job is its completion time divided by the one it would have in its
own pool alone (the baseline, by the estimates). The job with the highest ratio starts first. Jobs
that do not fit are skipped.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from math import frexp, inf
from operator import itemgetter
from typing import Any, NamedTuple

from msgspec import Struct, convert, to_builtins
from sortedcontainers import SortedList

from sia.contract.policy import Changes, Needs, Policy, empty_plan, is_barred, stream_of
from sia.contract.proposals import Proposals, Start
from sia.contract.views import ClusterStateView, JobStateView, PoolStateView

MOMENT = 1e-6
"""Minimum completion time in seconds, so that the ratio is defined for an estimate of 0."""


class _Claim(NamedTuple):
    """A pending job whose ratio, if started at `now`, is (now − `minus`) / `alone`."""

    minus: float
    sequence: int
    alone: float
    job: JobStateView


class _Clock(Struct):
    """The memory of a pool's baseline; `ends` are (time, GPUs) of its running jobs."""

    pool: str
    now: float | None
    ends: list[tuple[float, int]]


class _Memory(Struct):
    """`alone` has the baseline completion times in seconds of pending jobs, in order of arrival."""

    clocks: list[_Clock]
    alone: list[float]


class Themis(Policy):
    """A start costs O(different widths · doublings of `alone`) plus the claims that come close."""

    needs = Needs(run_times=True)
    shares = True

    def attach(self, state: ClusterStateView) -> None:
        """Run a baseline schedule for each pool."""
        self._begin(state)
        super().attach(state)

    def _begin(self, state: ClusterStateView) -> None:
        self.state, self.plan = state, empty_plan(state)
        self._alone = {pool: _Alone(pool) for pool in state.pools.values()}
        self._claims = {group: _Claims() for group in state.groups}
        self._own: dict[str, _Claim] = {}

    def memory(self) -> Any:
        """Return the baseline schedules, and the completion times they gave to pending jobs."""
        clocks = [alone.memory() for alone in self._alone.values()]
        jobs = self.state.jobs.values()
        alone = [self._own[job.job.id].alone for job in jobs if job.stream is None]
        return to_builtins(_Memory(clocks, alone))

    def resume(self, state: ClusterStateView, memory: Any) -> None:
        """Restore the baseline schedules. O(n · log n)."""
        kept = convert(memory, _Memory)
        if [clock.pool for clock in kept.clocks] != [*state.pools]:
            raise ValueError("the memory of Themis is of other pools")
        self._begin(state)
        for alone, clock in zip(self._alone.values(), kept.clocks, strict=True):
            alone.resume(clock)
        waiting = [job for job in state.jobs.values() if job.stream is None]
        for job, seconds in zip(waiting, kept.alone, strict=True):
            if not MOMENT <= seconds < inf:
                raise ValueError(f"{job.job.id}: invalid baseline completion time {seconds}")
            self._claim(job, seconds)

    def submitted(self, job: JobStateView) -> None:
        """Add a claim. O(log n) amortised."""
        known = self._own.get(job.job.id)
        if known is not None:  # its priority changed
            self._claim(job, known.alone)
            return
        submit, run_time = job.job.submit, job.run_time
        start = self._alone[job.pool].start(submit, job.width, run_time)
        self._claim(job, max(start + run_time - submit, MOMENT))

    def _claim(self, job: JobStateView, alone: float) -> None:
        minus = job.job.submit - job.run_time
        claim = self._own[job.job.id] = _Claim(minus, job.sequence, alone, job)
        self._claims[job.pool.group].add(claim)

    def left(self, job: JobStateView) -> None:
        """Remove a claim. O(log n)."""
        self._claims[job.pool.group].remove(self._own[job.job.id])
        if job.stream is not None or job.job.id not in self.state.jobs:
            del self._own[job.job.id]

    def propose(self, now: float, changes: Changes) -> Proposals:
        """Start the fitting jobs with the highest ratio, in the groups that changed."""
        for group in changes.groups:
            while (job := self._claims[group].worst(now, group.idle)) is not None:
                stream = stream_of(job.pool, job.width)
                yield Start(job, stream, "highest completion time relative to its pool alone")

    def check(self) -> None:
        """Assert that every pending job has a claim."""
        for group, claims in self._claims.items():
            waiting = [job for pool in group.pools for job in pool.waiting()]
            assert sorted(claims.sequences()) == sorted(j.sequence for j in waiting), group.name
        assert len(self._own) == self.state.waiting


class _Claims:
    """Claims of a group by priority, width and the power of two just above `alone`.

    The order of claims changes with time. But among claims whose `alone` is within a factor of two,
    a much later one cannot have the highest ratio. So each bin, sorted by `minus`, is read from its
    start only while its claims can still be the highest.
    """

    def __init__(self) -> None:
        self._bins: dict[tuple[int, int, int], SortedList[_Claim]] = {}

    def add(self, claim: _Claim) -> None:
        key = _bin(claim)
        if key not in self._bins:
            self._bins[key] = SortedList()
        self._bins[key].add(claim)

    def remove(self, claim: _Claim) -> None:
        key = _bin(claim)
        self._bins[key].remove(claim)
        if not self._bins[key]:
            del self._bins[key]

    def worst(self, now: float, idle: int) -> JobStateView | None:
        """Return the fitting job with the highest ratio, among those of the highest priority."""
        fitting = [(key, claims) for key, claims in self._bins.items() if key[1] <= idle]
        for priority in sorted({key[0] for key, _ in fitting}, reverse=True):
            bins = [(key[2], claims) for key, claims in fitting if key[0] == priority]
            if (job := self._worst_of(bins, now)) is not None:
                return job
        return None

    def _worst_of(
        self, bins: list[tuple[int, SortedList[_Claim]]], now: float
    ) -> JobStateView | None:
        bounds = [
            ((now - claims[0].minus) / 2.0 ** (power - 1), power, claims) for power, claims in bins
        ]
        bounds.sort(key=itemgetter(0), reverse=True)
        best: tuple[float, int] | None = None
        found = None
        for bound, power, claims in bounds:
            if best is not None and bound < -best[0]:
                break
            low = 2.0 ** (power - 1)
            for minus, sequence, alone, job in claims:
                takes = now - minus
                if best is not None and takes / low < -best[0]:
                    break
                rank = -takes / alone, sequence
                if (best is None or rank < best) and not is_barred(job):
                    best, found = rank, job
        return found

    def sequences(self) -> list[int]:
        return [claim.sequence for claims in self._bins.values() for claim in claims]


def _bin(claim: _Claim) -> tuple[int, int, int]:
    return claim.job.job.priority, claim.job.width, frexp(claim.alone)[1]


class _Alone:
    """The baseline schedule of one pool, first come, first served."""

    def __init__(self, pool: PoolStateView) -> None:
        self._pool = pool
        self._clock = -inf
        self._used = 0
        self._ends: list[tuple[float, int]] = []

    def memory(self) -> _Clock:
        return _Clock(self._pool.name, self._clock if self._clock > -inf else None, self._ends)

    def resume(self, clock: _Clock) -> None:
        self._clock = -inf if clock.now is None else clock.now
        self._ends = clock.ends
        heapify(self._ends)
        self._used = sum(width for _, width in self._ends)

    def start(self, submit: float, width: int, run_time: float) -> float:
        """Return when a job that comes after all others would start."""
        self._clock = max(self._clock, submit)
        ends, quota = self._ends, self._pool.quota
        while ends and (ends[0][0] <= self._clock or self._used + width > quota):
            end, gpus = heappop(ends)
            self._clock = max(self._clock, end)
            self._used -= gpus
        self._used += width
        heappush(ends, (self._clock + run_time, width))
        return self._clock
