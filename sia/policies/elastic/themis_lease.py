"""Themis with leases: GPUs go to the job that is furthest behind its fair finish (PCS, §5.1).

A job's number is its completion time with the requested GPUs from now on, divided by its completion
time on its share of the pool. The share is the quota divided by the mean number of jobs in the pool
since the job's submission, over all changes and ends of leases.
"""

from __future__ import annotations

from heapq import heapify, heappop
from math import inf
from operator import attrgetter
from typing import Annotated, Any

from msgspec import Meta, Struct, convert, to_builtins

from sia.contract.policy import Changes
from sia.contract.proposals import Proposals, Wake
from sia.contract.views import ClusterStateView, JobStateView, PoolStateView
from sia.policies.shared.elastic import Elastic, least_width, most_width, remaining, speed_on

LEAST_LEASE = 0.001
"""Shortest lease in seconds. With shorter ones a scheduler would only renew leases."""

DIGITS = 9
"""Number of decimals to which the jobs' numbers are rounded. Jobs with all requested GPUs have the
number 1 except for rounding; the earlier one then comes first."""


class LeaseParams(Struct, frozen=True):
    """`lease` is in seconds; the authors recommend ten minutes."""

    lease: Annotated[float, Meta(ge=LEAST_LEASE, le=1e9)] = 600.0


class _Seen(Struct):
    """The sum of the numbers of jobs at all changes of a pool so far, and the number of changes."""

    jobs: int = 0
    changes: int = 0
    since: float = 0.0
    """When the present leases began."""
    due: float | None = None
    """When they end, in seconds; None if a new division could not change anything then."""


class _Memory(Struct):
    pools: dict[str, _Seen]
    before: dict[str, tuple[int, int]]


class _Bid:
    """The widths and speeds of a job, which do not change."""

    __slots__ = "_slowest", "fastest", "job", "least", "most"

    def __init__(self, job: JobStateView) -> None:
        self.job = job
        self.least, self.most = least_width(job.job), most_width(job.job)
        self._slowest, self.fastest = job.job.speed(self.least), job.job.speed(self.most)

    def speed_on(self, gpus: float) -> float:
        """Return the speed on a fractional number of GPUs, as `shared.elastic.speed_on`."""
        if gpus <= self.least:
            return self._slowest * (gpus / self.least)
        return self.fastest if gpus >= self.most else speed_on(self.job.job, gpus)


class ThemisLease(Elastic):
    """A pass costs O(jobs · log jobs + running jobs · jobs wider than the free GPUs) for a pool."""

    Params = LeaseParams
    reason = "furthest behind its fair finish"

    def attach(self, state: ClusterStateView) -> None:
        """Begin to count the jobs of each pool."""
        self._seen = {name: _Seen() for name in state.pools}
        self._before: dict[str, tuple[int, int]] = {}  # by job: sums before it came
        self._bids: dict[int, _Bid] = {}  # by sequence number
        super().attach(state)

    def memory(self) -> Any:
        """Return the counts of jobs, and when leases end."""
        return to_builtins(_Memory(self._seen, self._before))

    def resume(self, state: ClusterStateView, memory: Any) -> None:
        """Restore the counts and the ends of leases."""
        kept = convert(memory, _Memory)
        if kept.pools.keys() != state.pools.keys() or not kept.before.keys() <= state.jobs.keys():
            raise ValueError("the memory of themis-lease is of other pools or jobs")
        self.attach(state)
        self._seen, self._before = kept.pools, kept.before

    def submitted(self, job: JobStateView) -> None:
        """Count the jobs of the pool; the counts of a new job begin with its own submission."""
        new = job.job.id not in self._before
        if new:
            self._count(job.pool, self.state.now)
        super().submitted(job)
        if new:
            seen = self._seen[job.pool.name]
            here = len(self._lines[job.pool.name])
            self._before[job.job.id] = (seen.jobs - here, seen.changes - 1)

    def leave(self, job: JobStateView) -> None:
        """Count the jobs of the pool, including the leaving one."""
        gone = job.job.id not in self.state.jobs  # or its priority or estimate changes
        if gone:
            self._count(job.pool, self.state.now)
        super().leave(job)
        self._bids.pop(job.sequence, None)
        if gone:
            self._before.pop(job.job.id, None)

    def progressed(self, job: JobStateView) -> None:
        """Drop the cached widths and speeds of a job, because a report may change them."""
        self._bids.pop(job.sequence, None)

    def _count(self, pool: PoolStateView, now: float) -> None:
        """Count the ends of leases until now, at which nothing changed, and this change."""
        seen, jobs = self._seen[pool.name], len(self._lines[pool.name])
        if not jobs:
            seen.since = max(seen.since, now)  # the time without jobs counts for no job
            return
        leases = int(max(0.0, now - seen.since) / self.params.lease)
        leases -= bool(leases) and seen.since + leases * self.params.lease >= now
        seen.jobs += jobs * (leases + 1)
        seen.changes += leases + 1
        seen.since = max(seen.since, now)

    def propose(self, now: float, changes: Changes) -> Proposals:
        """Divide the pools that changed, and those whose leases are over."""
        changed = [*changes.pools]
        for pool in self.state.pools.values():
            due = self._seen[pool.name].due
            if due is not None and due <= now and pool not in changes.pools:
                self._count(pool, now)
                changed.append(pool)
        for pool in changed:
            yield from self.divide(pool, now)
            seen = self._seen[pool.name]
            seen.since = now
            seen.due = now + self.params.lease if self._is_short(pool) else None
        due = self.due()
        if due < inf:
            yield Wake(due)

    def _is_short(self, pool: PoolStateView) -> bool:
        """Return whether a job of the pool has fewer GPUs than it can use."""
        return any(
            job.stream is None or job.width < most_width(job.job)
            for job in self._lines[pool.name].values()
        )

    def due(self) -> float:
        """Return when the next leases end."""
        return min((seen.due for seen in self._seen.values() if seen.due is not None), default=inf)

    def deal(self, pool: PoolStateView, gpus: int, now: float) -> dict[JobStateView, int]:
        """Give GPUs to the job with the highest number, again and again.

        The number of a job that can get its largest width does not change, and is in a heap. The
        number of a job that can only get the remaining GPUs is computed in each turn.
        """
        bids = sorted(map(self._bid, self.line(pool)), key=attrgetter("most"))
        heap = [(self._rank(bid, bid.most, now), bid) for bid in bids if bid.most <= gpus]
        heapify(heap)
        wide: list[_Bid] = []
        dealt: dict[JobStateView, int] = {}
        while gpus:
            while bids and bids[-1].most > gpus:
                bid = bids.pop()
                if bid.job not in dealt:
                    wide.append(bid)
            while heap and (heap[0][1].most > gpus or heap[0][1].job in dealt):
                heappop(heap)
            wide = [bid for bid in wide if bid.least <= gpus]
            turns = [(self._rank(bid, gpus, now), bid) for bid in wide] + heap[:1]
            if not turns:
                break
            worst = min(turns)[1]
            dealt[worst.job] = min(gpus, worst.most)
            gpus -= dealt[worst.job]
            if worst in wide:
                wide.remove(worst)
        return dealt

    def _bid(self, job: JobStateView) -> _Bid:
        bid = self._bids.get(job.sequence)
        if bid is None or bid.job is not job:
            bid = self._bids[job.sequence] = _Bid(job)
        return bid

    def _rank(self, bid: _Bid, gpus: int, now: float) -> tuple[int, float, int]:
        """Return priority, then the job's number with `gpus` GPUs, then its age."""
        job = bid.job
        share = min(job.pool.quota / self._contention(job), bid.most)
        fair = job.run_time / bid.speed_on(share)
        left = remaining(job, now) / (bid.fastest if gpus == bid.most else job.job.speed(gpus))
        number = (now - job.job.submit + left) / fair if fair else inf
        return -job.job.priority, -round(number, DIGITS), job.sequence

    def _contention(self, job: JobStateView) -> float:
        """Return the mean number of jobs in its pool at the changes since its submission."""
        seen = self._seen[job.pool.name]
        before = self._before.get(job.job.id, (0, 0))
        changes = seen.changes - before[1]
        return max(1.0, (seen.jobs - before[0]) / changes) if changes else 1.0
