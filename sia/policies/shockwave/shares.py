"""Gavel and the policies that it contains: each job gets a share of time, in rounds.

A policy computes for each job the fraction x of time for which it should run. In each round the
jobs with the highest x / (fraction of time for which they ran) come first; a new job counts as if
it had run for half a round. Shares are computed again when jobs arrive, end or change, but at most
every 1,000 s. These policies are reactive: they assume that all remaining work runs at the present
speed.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from msgspec import Struct, convert, to_builtins

from sia.contract.views import ClusterStateView, JobStateView, PoolStateView
from sia.policies.shockwave.modes import mode_of
from sia.policies.shockwave.rounds import MOMENT, RoundPolicy

RESHARE = 1000.0
"""Seconds between two computations of shares, as in Gavel."""

LEFT_OVER = 1e-9
"""The largest share of a job that gets no GPU-time; such small shares only order these jobs."""

HALVINGS = 60
"""Number of steps of a bisection, after which both bounds are equal floats."""


AloneSoFar = tuple[float, float, float]
"""The time in seconds that a job's work so far would have taken on an even share, its work in
seconds, and its present even share."""


class ShareFacts(NamedTuple):
    """The properties of a job that rivals use. Times are in seconds."""

    id: str
    width: int
    remaining: float
    """Remaining run time at the present speed."""
    work: float
    """Work done so far."""
    age: float
    """Time since its submission."""
    steps: float
    """Steps per second at the present speed."""


class _Shares(Struct):
    """The shares of a pool, by job."""

    since: float
    jobs: list[tuple[str, int]]
    """Jobs and their regimes for which they were computed."""
    shares: dict[str, float]
    had: dict[str, float]
    """Seconds in which each job ran since then."""
    ran: list[str]
    """Ids of the jobs that were chosen in the previous round."""
    alone: dict[str, AloneSoFar] = {}
    """The state of `ftf`, by job id."""


class SharePolicy(RoundPolicy):
    """Base of the rivals with shares."""

    def attach(self, state: ClusterStateView) -> None:
        """Start without shares."""
        self._pools: dict[str, _Shares] = {}
        super().attach(state)

    def memory(self) -> Any:
        """Return the shares of each pool, and the latest round."""
        return [self._decided, to_builtins(self._pools)]

    def resume(self, state: ClusterStateView, memory: Any) -> None:
        """Continue with these shares."""
        self.attach(state)
        self._decided, pools = memory
        self._pools = convert(pools, dict[str, _Shares])

    def choose(
        self, pool: PoolStateView, jobs: Sequence[JobStateView], now: float
    ) -> Mapping[JobStateView, int]:
        """Return all jobs, first those that got the smallest part of their share."""
        half = self.params.round / 2
        present = [(job.job.id, self.regime(job, now)) for job in jobs]
        known = self._pools.get(pool.name)
        if known is not None:
            for job_id in known.ran:
                if job_id in known.had:
                    known.had[job_id] += self.params.round
        if known is None or (present != known.jobs and now - known.since >= RESHARE):
            known = _Shares(now, present, {}, {}, [], {} if known is None else known.alone)
            facts = [self._facts(job, now) for job in jobs]
            known.shares = self.divide(pool, facts, known.alone)
            self._pools[pool.name] = known
        had = known.had = {job_id: known.had.get(job_id, half) for job_id, _ in present}
        shares = known.shares
        order = sorted(
            jobs,
            key=lambda job: (
                -_rounded(shares.get(job.job.id, 0.0) / had[job.job.id]),
                had[job.job.id],
                job.sequence,
            ),
        )
        idle, chosen = pool.quota, {}
        for job in order:
            if job.job.width <= idle:
                chosen[job] = job.job.width
                idle -= job.job.width
        known.ran = [job.job.id for job in chosen]
        return chosen

    @abstractmethod
    def divide(
        self, pool: PoolStateView, jobs: Sequence[ShareFacts], alone: dict[str, AloneSoFar]
    ) -> dict[str, float]:
        """Return the share of each job, from 0 to 1; Σ width · share is at most the quota.

        `alone` is the memory of `ftf`, by job.
        """

    def _facts(self, job: JobStateView, now: float) -> ShareFacts:
        seen = self.foresee(job, now, "last")
        regimes = job.job.regimes
        steps = None
        if regimes:
            config = mode_of(job.job.mode).config(len(seen.reached.seen) - 1, len(regimes))
            steps = regimes[config].steps
        return ShareFacts(
            job.job.id, job.job.width, max(MOMENT, seen.remaining), job.work(now),
            now - job.job.submit, 1.0 if steps is None else steps,
        )  # fmt: skip


def _rounded(value: float) -> float:
    """Return a value without its last digits, so that rounding does not order equal values."""
    return float(f"{value:.9g}")


class Gavel(SharePolicy):
    """Gavel: maximize the smallest width · share, then the next smallest."""

    def divide(
        self, pool: PoolStateView, jobs: Sequence[ShareFacts], alone: dict[str, AloneSoFar]
    ) -> dict[str, float]:
        """Raise a level up to which each job fills its width. O(n · log n)."""
        level, left = 0.0, float(pool.quota)
        by_width = sorted(jobs, key=lambda job: job.width)
        for place, job in enumerate(by_width):
            step = min(job.width - level, left / (len(by_width) - place))
            level += step
            left -= step * (len(by_width) - place)
        return {job.id: min(1.0, level / job.width) for job in jobs}


class GandivaFair(SharePolicy):
    """Gandiva-Fair: each job gets the same fraction of time, so its tickets are its width."""

    def divide(
        self, pool: PoolStateView, jobs: Sequence[ShareFacts], alone: dict[str, AloneSoFar]
    ) -> dict[str, float]:
        """Return min(1, GPUs / jobs) for all. O(n)."""
        return dict.fromkeys((job.id for job in jobs), min(1.0, pool.quota / len(jobs)))


class Ossp(SharePolicy):
    """Open shop: all jobs end at the same, earliest possible time."""

    def divide(
        self, pool: PoolStateView, jobs: Sequence[ShareFacts], alone: dict[str, AloneSoFar]
    ) -> dict[str, float]:
        """Return remaining / T for the least T that fits. O(n)."""
        if not pool.quota:
            return {}
        area = sum(job.width * job.remaining for job in jobs) / pool.quota
        ends = max(area, *(job.remaining for job in jobs))
        return {job.id: job.remaining / ends for job in jobs}


class MaxSteps(SharePolicy):
    """Max-Sum-Throughput: the most steps a second of all jobs together."""

    def divide(
        self, pool: PoolStateView, jobs: Sequence[ShareFacts], alone: dict[str, AloneSoFar]
    ) -> dict[str, float]:
        """Fill the GPUs in the order of steps per GPU. O(n · log n).

        If gangs leave GPUs idle, the other jobs get them in the same order.
        """
        left, found = float(pool.quota), {}
        most = max(job.steps / job.width for job in jobs)
        for job in sorted(jobs, key=lambda job: -job.steps / job.width):
            share = min(1.0, left / job.width)
            left -= share * job.width
            found[job.id] = share or LEFT_OVER * job.steps / job.width / most
        return found


class FinishTimeFair(SharePolicy):
    """Finish-time fairness: minimise the largest ratio of completion time to that alone."""

    def divide(
        self, pool: PoolStateView, jobs: Sequence[ShareFacts], alone: dict[str, AloneSoFar]
    ) -> dict[str, float]:
        """Bisect the largest ratio; a job that exceeds it even with all time gets all. O(n)."""
        gpus, known = pool.quota, alone
        whole = {}
        for job in jobs:
            even = min(1.0, gpus / (len(jobs) * job.width)) or 1.0
            before, work, share = known.get(job.id, (0.0, 0.0, even))
            taken = before + max(0.0, job.work - work) / share
            known[job.id] = taken, job.work, even
            whole[job.id] = taken + job.remaining / even
        for job_id in known.keys() - whole.keys():
            del known[job_id]

        def at(ratio: float) -> dict[str, float]:
            return {
                job.id: job.remaining / max(job.remaining, ratio * whole[job.id] - job.age)
                for job in jobs
            }

        def fits(ratio: float) -> bool:
            shares = at(ratio)
            return sum(shares[job.id] * job.width for job in jobs) <= gpus

        low, high = 0.0, 1.0
        while not fits(high) and high < 1e9:
            low, high = high, 2 * high
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            low, high = (low, middle) if fits(middle) else (middle, high)
        return at(high)
