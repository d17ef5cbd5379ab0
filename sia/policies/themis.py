"""Themis*: finish-time fair over all pools of a group, run to completion (§6.1, Baselines).

How unfair a schedule is to a job is its time to completion over what that would be in its own pool
alone (the baseline, by the estimates). Whoever would be treated worst goes first; who does not fit
is passed over.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from sia.policies import Needs, Policy, Proposal, Start, stream_of
from sia.state import GroupState, JobState, PoolState, State

MOMENT = 1e-6
"""Seconds, the least that a job may take alone, so that one estimated at 0 has a fairness too."""


class _Claim(NamedTuple):
    """A waiting job that, started at `now`, would take (now + `offset`) / `alone` times as long."""

    job: JobState
    offset: float
    alone: float


class Themis(Policy):
    """Looks at every waiting job that fits when something is idle: O(n) a pass."""

    needs = Needs(run_times=True)
    shares = True

    def attach(self, state: State) -> None:
        """Run a clock of first come, first served beside each pool."""
        self._alone = {pool: _Alone(pool) for pool in state.pools.values()}
        self._claims: dict[GroupState, dict[int, dict[int, _Claim]]] = {
            group: {} for group in state.groups
        }
        super().attach(state)

    def submitted(self, job: JobState) -> None:
        """O(log n) in what runs in the pool's own clock, amortised."""
        submit, run_time = job.job.submit, job.run_time
        start = self._alone[job.pool].start(submit, job.width, run_time)
        claim = _Claim(job, run_time - submit, max(start + run_time - submit, MOMENT))
        self._claims[job.pool.group].setdefault(job.width, {})[job.sequence] = claim

    def left(self, job: JobState) -> None:
        """O(1)."""
        claims = self._claims[job.pool.group]
        del claims[job.width][job.sequence]
        if not claims[job.width]:
            del claims[job.width]

    def propose(self, now: float) -> Iterator[Proposal]:
        """Start whoever is treated worst of those that fit, in the groups that changed."""
        for group in self.state.dirty_groups():
            order = [
                (-(now + claim.offset) / claim.alone, sequence, claim.job)
                for width, claims in self._claims[group].items()
                if width <= group.idle
                for sequence, claim in claims.items()
            ]
            heapify(order)
            while order and group.idle:
                job = heappop(order)[2]
                if job.width <= group.idle:
                    stream = stream_of(job.pool, job.width)
                    yield Start(job, stream, "would be the furthest behind its own pool alone")

    def check(self) -> None:
        """Every waiting job has a claim."""
        for group, claims in self._claims.items():
            claimed = sorted(sequence for own in claims.values() for sequence in own)
            waiting = [job for pool in group.pools for job in pool.waiting()]
            assert claimed == sorted(job.sequence for job in waiting), group.name


class _Alone:
    """First come, first served in one pool, as if it were alone: says when each job would start."""

    def __init__(self, pool: PoolState) -> None:
        self._pool = pool
        self._clock = float("-inf")
        self._used = 0
        self._ends: list[tuple[float, int]] = []

    def start(self, submit: float, width: int, run_time: float) -> float:
        """When a job that comes after all others would start."""
        self._clock = max(self._clock, submit)
        ends, quota = self._ends, self._pool.quota
        while ends and (ends[0][0] <= self._clock or self._used + width > quota):
            end, gpus = heappop(ends)
            self._clock = max(self._clock, end)
            self._used -= gpus
        self._used += width
        heappush(ends, (self._clock + run_time, width))
        return self._clock
