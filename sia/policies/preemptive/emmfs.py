"""Elastic max-min: GPUs are divided evenly between pools and between jobs at every change.

Pools get GPUs one at a time, each to the pool with the lowest allocation / quota whose jobs can use
one more. Within a pool, jobs are admitted in order of arrival while their minimum widths fit in the
pool's share. The rest goes one at a time to the admitted job with the fewest GPUs that can use one
more. Limits on loans reduce what pools get beyond their quotas.

A job without limits of its own runs on 1 GPU up to its width. A job whose minimum width no longer
fits in its pool's share is preempted. A job that would lose all of its work runs on its own width
only, and so does one that must never be stopped, which keeps its GPUs. The speed of a job on a
number of GPUs is its demand (linear by default).
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from msgspec import Struct, convert, to_builtins
from sortedcontainers import SortedDict

from sia.contract.policy import Changes, Needs, Policy, stream_of
from sia.contract.proposals import Preempt, Proposals, Resize, Start
from sia.contract.views import ClusterStateView, GroupStateView, JobStateView, PoolStateView
from sia.model import NEVER_STOPPED, Stream
from sia.policies.shared.elastic import least_width, most_width


class _Memory(Struct):
    """The line of a pool; `news` are sequence numbers."""

    pool: str
    share: int
    admitted: int
    news: list[int]


class ElasticMaxMin(Policy):
    """A pass costs O(pools + admitted jobs that can change their width), in groups that changed."""

    needs = Needs(preemption=True, resizing=True)
    heeds = frozenset({"min_width", "max_width", "demand"})
    shares = True

    def attach(self, state: ClusterStateView) -> None:
        """Add all jobs, running ones included, to their pools' lines."""
        self._lines = {pool: _Line() for pool in state.pools.values()}
        for job in sorted(state.jobs.values(), key=lambda job: job.sequence):
            if job.stream is not None:
                self._lines[job.pool].join(job)
        super().attach(state)

    def widths(self, job: JobStateView) -> tuple[int, int]:
        """Return the smallest and the largest width of an elastic job, in GPUs."""
        return least_width(job.job), most_width(job.job)

    def memory(self) -> Any:
        """Return how many jobs of each pool were admitted last, and which are due for a change."""
        return to_builtins([line.memory(pool.name) for pool, line in self._lines.items()])

    def resume(self, state: ClusterStateView, memory: Any) -> None:
        """Admit the same jobs again."""
        self.attach(state)
        kept = convert(memory, list[_Memory])
        for own in kept:  # pools may have been added and removed since
            if own.pool in state.pools:
                self._lines[state.pools[own.pool]].resume(own)

    def submitted(self, job: JobStateView) -> None:
        """Add a job to its pool's line, unless it is there already. O(log n)."""
        self._lines[job.pool].join(job)

    def left(self, job: JobStateView) -> None:
        """Remove a job from its pool's line, unless it was started. O(log n)."""
        if job.stream is None:
            self._lines[job.pool].leave(job)
        elif _never_stops(job):
            self._lines[job.pool].pin(job)

    def finished(self, job: JobStateView) -> None:
        """Remove a job from its pool's line. O(log n)."""
        self._lines[job.pool].leave(job)

    def propose(self, now: float, changes: Changes) -> Proposals:
        """Take GPUs from jobs above their share, then give GPUs to jobs below it."""
        for group in changes.groups:
            wanted = self._deal(group)
            for job, width in wanted:
                if not width:
                    yield Preempt(job, "the share of its pool shrank")
                elif job.stream is not None and width < job.width:
                    yield self._resize(job, width)
            for job, width in wanted:
                if width and (job.stream is None or width > job.width):
                    yield from self._widen(job, width)

    def _deal(self, group: GroupStateView) -> list[tuple[JobStateView, int]]:
        """Return the jobs that must change their width, with the new width; 0 is pending."""
        shares = deal(group, {p: self._lines[p].demand for p in group.pools})
        if group.limited:
            _cut(shares)
        wanted: list[tuple[JobStateView, int]] = []
        for pool, gpus in shares.items():
            line = self._lines[pool]
            if gpus != line.share or pool in self.state.dirty:
                wanted += line.deal(gpus)
        return wanted

    def _widen(self, job: JobStateView, width: int) -> Proposals:
        """Start or widen a job if the GPUs are idle."""
        if width <= job.pool.idle + job.frees:
            if job.stream is not None:
                yield self._resize(job, width)
            else:
                stream = stream_of(job.pool, width)
                own = 0 if width == job.job.width else width
                yield Start(job, stream, "its share of the group's GPUs", own)
        if job.stream is None or job.width != width:
            # The pool's reduced quota absorbed the GPUs, or limits allow no further borrowing.
            self._lines[job.pool].owe()

    def _resize(self, job: JobStateView, width: int) -> Resize:
        stream = stream_of(job.pool, width)
        if job.stream is Stream.DEDICATED:  # after a reduction the pool may use more than its quota
            within = job.pool.dedicated - job.width + width <= job.pool.quota
            stream = Stream.DEDICATED if within or width < job.width else Stream.SPARE
        elif width < job.width and width > job.pool.idle + job.frees:
            stream = Stream.SPARE  # it keeps part of its loans, because nothing is idle
        return Resize(job, width, stream, "its share of the group's GPUs")

    def check(self) -> None:
        """Assert that every job is in its pool's line."""
        jobs: dict[PoolStateView, list[JobStateView]] = {pool: [] for pool in self._lines}
        for job in self.state.jobs.values():
            jobs[job.pool].append(job)
        for pool, line in self._lines.items():
            line.check(jobs[pool])


def deal(group: GroupStateView, demand: dict[PoolStateView, int]) -> dict[PoolStateView, int]:
    """Return the share of each pool: each GPU goes to the lowest allocation / quota, ties by name.

    A pool without quota gets GPUs only when no other pool can use more. O(pools · log pools).
    """
    left = group.quota
    if sum(demand.values()) <= left:
        return demand
    shares = dict.fromkeys(group.pools, 0)
    # Pools that want the smallest part of their quota are satisfied first.
    owners = [pool for pool in group.pools if pool.quota and demand[pool]]
    owners.sort(key=lambda pool: demand[pool] / pool.quota)
    quota = sum(pool.quota for pool in owners)
    for i, pool in enumerate(owners):
        if demand[pool] * quota > left * pool.quota:
            _deal_rest(owners[i:], left, quota, shares)
            left = 0
            break
        shares[pool] = demand[pool]
        left -= demand[pool]
        quota -= pool.quota
    for pool in group.pools:
        if not pool.quota:
            shares[pool] = min(left, demand[pool])
            left -= shares[pool]
    return shares


def _cut(shares: dict[PoolStateView, int]) -> None:
    """Reduce shares to the limits on borrowing; the other GPUs stay idle. O(pools · log pools)."""
    lent = sum(
        min(pool.lend_limit, max(0, pool.quota - gpus)) * pool.group.lending
        for pool, gpus in shares.items()
    )
    for pool in sorted(shares, key=lambda pool: (pool.ratio, pool.name)):
        beyond = min(lent, pool.borrow_limit, max(0, shares[pool] - pool.quota))
        shares[pool] = min(shares[pool], pool.quota + beyond)
        lent -= beyond


def _deal_rest(
    pools: list[PoolStateView], gpus: int, quota: int, shares: dict[PoolStateView, int]
) -> None:
    """Divide `gpus` by quota between pools that all want more, then the remainder one by one."""
    for pool in pools:
        shares[pool] = gpus * pool.quota // quota
    left = gpus - sum(shares[pool] for pool in pools)
    turns = sorted(pools, key=lambda pool: (shares[pool] / pool.quota, pool.name))
    for pool in turns[:left]:
        shares[pool] += 1


class _Line:
    """A pool's jobs in order of arrival: first the admitted ones, then the others."""

    def __init__(self) -> None:
        self.demand = 0  # GPUs that all jobs together could use
        self.share = 0
        self._admitted: SortedDict[int, JobStateView] = SortedDict()
        self._others: SortedDict[int, JobStateView] = SortedDict()
        self._least = self._most = 0  # sums of the least and most widths of the admitted jobs
        # Admitted, can change width: with its least and most width.
        self._flexible: SortedDict[int, tuple[JobStateView, int, int]] = SortedDict()
        self._kinds: Counter[tuple[int, int]] = (
            Counter()
        )  # (minimum, maximum) width of the admitted
        self._pinned: dict[int, JobStateView] = {}  # running, must not be stopped or resized
        self._news: dict[
            int, JobStateView
        ] = {}  # admitted or dismissed since the last call of `deal`

    def join(self, job: JobStateView) -> None:
        if job.sequence in self._admitted or job.sequence in self._others:
            return
        self.demand += most_width(job.job)
        if job.stream is not None and _never_stops(job):
            self._pinned[job.sequence] = job
            return
        self._others[job.sequence] = job
        if self._admitted and self._admitted.peekitem(-1)[0] > job.sequence:
            self._admit(job)  # the admitted ones are the first; `deal` dismisses the last

    def pin(self, job: JobStateView) -> None:
        """Exclude a started job that must not be stopped from the division."""
        if job.sequence in self._admitted:
            self._dismiss(job)
        del self._others[job.sequence]
        self._news.pop(job.sequence, None)
        self._pinned[job.sequence] = job

    def leave(self, job: JobStateView) -> None:
        self.demand -= most_width(job.job)
        if self._pinned.pop(job.sequence, None) is not None:
            return
        if job.sequence in self._admitted:
            self._dismiss(job)
        del self._others[job.sequence]
        self._news.pop(job.sequence, None)

    def memory(self, pool: str) -> _Memory:
        return _Memory(pool, self.share, len(self._admitted), [*self._news])

    def resume(self, memory: _Memory) -> None:
        jobs = dict(self._others)
        if not 0 <= memory.admitted <= len(jobs) or not jobs.keys() >= set(memory.news):
            raise ValueError(f"pool {memory.pool}: the memory names jobs that it does not have")
        for job in [*jobs.values()][: memory.admitted]:
            self._admit(job)
        self.share = memory.share
        self._news = {sequence: jobs[sequence] for sequence in memory.news}

    def owe(self) -> None:
        self.share = -1  # forces a new division at the next pass

    def deal(self, share: int) -> list[tuple[JobStateView, int]]:
        """Return the jobs that must change their width, with the new width; 0 is pending."""
        self.share = share
        if self._pinned:
            share = max(0, share - sum(job.width for job in self._pinned.values()))
        while self._admitted and self._least > share:
            self._dismiss(self._admitted.peekitem(-1)[1])
        while self._others:
            job = self._others.peekitem(0)[1]
            if self._least + least_width(job.job) > share:
                break
            self._admit(job)
        # Keep jobs that are not yet in their new state: a pass may have been cut short.
        self._news = {
            sequence: job
            for sequence, job in self._news.items()
            if (job.stream is None) is (sequence in self._admitted)
        }
        changes = [
            (job, 0 if sequence in self._others else least_width(job.job))
            for sequence, job in self._news.items()
            if sequence not in self._flexible
        ]
        return changes + self._dealt(share)

    def _dealt(self, gpus: int) -> list[tuple[JobStateView, int]]:
        """Return the flexible jobs whose width changes, with the new width.

        All get the common level within their limits, and the first ones one GPU more.
        """
        level = self._level(gpus)
        extra = gpus - self._used(level)
        changes = []
        flexible = self._flexible
        for sequence in flexible:  # faster than its values
            job, least, most = flexible[sequence]
            if level < least:
                width = least
            elif level >= most:
                width = most
            elif extra:
                width = level + 1
                extra -= 1
            else:
                width = level
            if width != job.width or job.stream is None:
                changes.append((job, width))
        return changes

    def _level(self, gpus: int) -> int:
        """Return the highest common width of all admitted jobs, within their own limits."""
        low, high = 0, max((most for _, most in self._kinds), default=0)
        if self._most <= gpus:
            return high
        while low < high:
            level = (low + high + 1) // 2
            if self._used(level) <= gpus:
                low = level
            else:
                high = level - 1
        return low

    def _used(self, level: int) -> int:
        """Return the GPUs that all admitted jobs use at a common width. O(kinds of jobs)."""
        used = 0
        for (least, most), jobs in self._kinds.items():
            used += jobs * (least if level < least else min(level, most))
        return used

    def _admit(self, job: JobStateView) -> None:
        del self._others[job.sequence]
        self._admitted[job.sequence] = self._news[job.sequence] = job
        least, most = least_width(job.job), most_width(job.job)
        self._least += least
        self._most += most
        self._kinds[least, most] += 1
        if least < most:
            self._flexible[job.sequence] = job, least, most

    def _dismiss(self, job: JobStateView) -> None:
        del self._admitted[job.sequence]
        self._others[job.sequence] = self._news[job.sequence] = job
        least, most = least_width(job.job), most_width(job.job)
        self._least -= least
        self._most -= most
        self._kinds[least, most] -= 1
        if not self._kinds[least, most]:
            del self._kinds[least, most]
        self._flexible.pop(job.sequence, None)

    def check(self, jobs: list[JobStateView]) -> None:
        assert sorted([*self._admitted, *self._others, *self._pinned]) == sorted(
            job.sequence for job in jobs
        )
        assert self.demand == sum(most_width(job.job) for job in jobs)
        admitted = self._admitted.values()
        assert self._least == sum(least_width(job.job) for job in admitted)
        assert self._most == sum(most_width(job.job) for job in admitted)
        widths = [(job, least_width(job.job), most_width(job.job)) for job in admitted]
        assert list(self._flexible.values()) == [each for each in widths if each[1] < each[2]]
        assert self._kinds == Counter(
            (least_width(job.job), most_width(job.job)) for job in admitted
        )


def _never_stops(job: JobStateView) -> bool:
    return job.job.preemptible == NEVER_STOPPED
