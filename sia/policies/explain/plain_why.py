"""Why a job waits under policies that hold nothing back: the least without which it starts.

Such a policy says whom it serves next of what is left if some things are taken away
(`Plain.serve`): its pass, over `Queues` in place of the state. That both agree is tested.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from functools import cached_property
from itertools import count
from operator import attrgetter
from typing import Any

from sia.explain import why
from sia.explain.glance import glance
from sia.explain.why import (
    ByEnd,
    Explanation,
    Obstacle,
    QuotaObstacle,
    Rival,
    RoomObstacle,
    Width,
    by_width,
    first_to_end,
    leaves,
    own_jobs,
    turn_of,
)
from sia.model import Stream
from sia.policies import Policy
from sia.policies.explain.copies import Copies
from sia.policies.explain.why_least import MANY, ROUNDS, EnoughError, Kind, Least, Unit
from sia.state.state import GroupState, JobState, PoolState

MOST_TRIALS, MOST_LOOKS = 150, 150_000
"""Trials for one answer; jobs that are looked at in all of them: some tens of milliseconds."""

GLANCES = 8
"""Jobs of a list that are passed over in the time of one that is looked at."""


def ahead_of(job: JobState, rank: Callable[[JobState], Any]) -> list[JobState]:
    """Jobs of its pool whose turn comes before its own, in order. O(n · log n) of these."""
    mine = rank(job)
    return sorted((each for each in job.pool.waiting() if rank(each) < mine), key=rank)


class QueueContext:
    """What a job waits among: looked at once for all trials.

    Attributes:
        job: That is asked about.
        before: Jobs of its pool whose turn comes before its own, in order.
        looks: How many more jobs may be looked at.
    """

    def __init__(self, job: JobState, rank: Callable[[JobState], Any]) -> None:
        """O(jobs of its pool that wait)."""
        self.job, self.before = job, ahead_of(job, rank)
        self.looks = MOST_LOOKS

    @cached_property
    def heads(self) -> list[tuple[PoolState, JobState]]:
        """The first jobs of the group's pools. O(pools)."""
        return [(pool, head) for pool in self.job.pool.group.pools if (head := pool.head)]

    @cached_property
    def in_order(self) -> list[JobState]:
        """All that wait in the group, as they arrived. O(n · log n)."""
        jobs = [job for pool in self.job.pool.group.pools for job in pool.waiting()]
        return sorted(jobs, key=attrgetter("sequence"))

    def look(self, jobs: int = 1) -> None:
        """At so many jobs. Raises EnoughError if those were too many."""
        self.looks -= jobs
        if self.looks < 0:
            raise EnoughError


class Queues:
    """A group without some things: what a pass over it is served from.

    Attributes:
        group: As it is, without loans.
        ended: Jobs that no longer run.
        blocked: Who is kept back by one that nobody passes, that one included.
    """

    def __init__(self, asked: QueueContext, gone: Collection[Unit], now: float) -> None:
        """Take these things away. O(of them)."""
        self.job, self.time = asked.job, now
        self.ended: set[JobState] = set()
        self.blocked: Iterable[JobState] = ()
        self._asked = asked
        self._copies = Copies(asked.job.pool.group)
        self._left: set[JobState] = set()
        self._silent: set[PoolState] = set()
        self._served: dict[PoolState, None] = {}
        for kind, of in gone:
            if kind is Kind.END:
                self._copies.end(of)
                self.ended.add(of)
            elif kind is Kind.TURN:
                self._left.update(asked.before)
            elif kind is Kind.QUEUE:
                self._silent.add(of)
            else:
                self._silent |= of

    @property
    def group(self) -> GroupState:
        """Its sums."""
        return self._copies.group

    def now(self, pool: PoolState) -> PoolState:
        """A pool as it would be; what waits in it is in `line`."""
        return self._copies.now(pool)

    def waits(self, job: JobState) -> bool:
        """Whether a job would wait still."""
        self._asked.look()
        return job is self.job or (job.pool not in self._silent and job not in self._left)

    def line(self, pool: PoolState) -> Iterator[JobState]:
        """Those of a pool that wait still, in the order of their arrival."""
        mine = pool is self.job.pool
        if pool in self._silent and not mine:
            return iter(())
        return filter(self.waits, pool.waiting() if pool.aside else pool.pending.values())

    def head(self, pool: PoolState) -> JobState | None:
        """The first of these."""
        return next(self.line(pool), None)

    def heads(self) -> Iterator[JobState]:
        """The first ones of all pools, of those that what is idle has room for. O(pools)."""
        idle, mine = self.group.idle, self.job.pool
        self._asked.look(len(self._asked.heads) // GLANCES)
        for pool, first in self._asked.heads:
            if pool is mine or pool in self._served:
                head = self.head(pool)
                if head is not None and head.width <= idle:
                    yield head
            elif first.width <= idle and pool not in self._silent:
                yield first

    def in_order(self) -> Iterator[JobState]:
        """All that wait still and that what is idle now has room for, as they arrived. O(n)."""
        idle = self.group.idle
        self._asked.look(len(self._asked.in_order) // GLANCES)
        return filter(self.waits, [job for job in self._asked.in_order if job.width <= idle])

    def within(self, job: JobState) -> bool:
        """Whether what is left of its pool's quota has room for it."""
        pool = self.now(job.pool)
        return pool.dedicated + job.width <= pool.quota

    def start(self, job: JobState) -> None:
        """It runs from now on."""
        stream = Stream.DEDICATED if self.within(job) else Stream.SPARE
        self._copies.start(job, stream)
        self._left.add(job)
        self._served[job.pool] = None

    def in_way(self) -> list[PoolState]:
        """Other pools with jobs that were served first, or that nobody passes."""
        pools = dict.fromkeys([*self._served, *(job.pool for job in self.blocked)])
        return [pool for pool in pools if pool is not self.job.pool]


class Plain(Policy):
    """A policy that serves queues and holds nothing back."""

    def rank(self, job: JobState) -> Any:
        """Who comes first in a pool: the least."""
        return job.sequence

    def serve(self, queues: Queues) -> Iterator[JobState]:
        """Whom a pass starts, one by one; each has started before the next is asked for.

        Of the pool of `queues.job` at least, and of its group where it shares. Where somebody
        blocks the rest, these are `queues.blocked`.
        """
        raise NotImplementedError

    def glance(self, job: JobState) -> Explanation:
        """Its turn, too. O(jobs of its pool that wait)."""
        return glance(job, self.state.now, ahead_of(job, self.rank), shares=self.shares)

    def why(self, job: JobState) -> Explanation:
        """All that it waits for, but in cells and for who shares where loans are limited.

        O(jobs), and a pass for each trial.
        """
        pool = job.pool
        if self.state.places is not None or (self.shares and pool.group.limited):
            return super().why(job)
        name, most = ("spare", pool.group.quota) if self.shares else ("turn", pool.quota)
        if job.width > most:
            return why.closed(name, Width(job.width, most), exact=True)
        return _Search(self, job).answer(name)


class _Search:
    """One question about one job."""

    def __init__(self, policy: Plain, job: JobState) -> None:
        self._job, self._now = job, policy.state.now
        self._serve, self._shares = policy.serve, policy.shares
        group, jobs, rank = job.pool.group, policy.state.jobs.values(), policy.rank
        if self._shares:
            self._running = [j for j in jobs if j.stream is not None and j.pool.group is group]
        else:
            self._running = own_jobs(job, jobs)
        self._asked, self._trials = QueueContext(job, rank), MOST_TRIALS
        self._least = Least(self._starts)

    def answer(self, name: str) -> Explanation:
        """What it waits for."""
        units = self._ends()
        if self._asked.before:
            units.append(Unit(Kind.TURN, self._job.pool))
        try:
            for turn in count():
                if self._least.starts(units):
                    break
                more = self._rivals(units, everybody=turn >= ROUNDS)
                if not more:
                    break
                units = more
        except EnoughError:
            return why.only(name, self._named(units), exact=False)
        kept, sure = self._least.of(units)
        return why.only(name, self._named(kept), exact=sure)

    def _starts(self, units: Collection[Unit], _: Stream | None) -> bool:
        self._trials -= 1
        if self._trials < 0:
            raise EnoughError
        return self._served(self._queues(units))

    def _queues(self, units: Collection[Unit]) -> Queues:
        return Queues(self._asked, units, self._now)

    def _served(self, queues: Queues) -> bool:
        for job in self._serve(queues):
            if job is self._job:
                return True
            queues.start(job)
        return False

    def _ends(self) -> list[Unit]:
        """Of whom there have to be fewer before it fits, whoever else waits."""
        job, order = self._job, ByEnd(self._running)
        if self._shares:
            ended = first_to_end(order, job.width - job.pool.group.idle)
        else:
            ended = by_width(order, job.pool.dedicated + job.width - job.pool.quota)
        return [Unit(Kind.END, each) for each in ended]

    def _rivals(self, units: list[Unit], *, everybody: bool) -> list[Unit]:
        """The same and those who are served first; none if there are no more. One pass.

        Where there are many, `everybody` but its own pool.
        """
        queues = self._queues(units)
        self._served(queues)
        gone = {unit.of for unit in units if unit.kind is Kind.QUEUE}
        gone.update(*(unit.of for unit in units if unit.kind is Kind.OTHERS))
        new = [pool for pool in queues.in_way() if pool not in gone]
        if not new:
            return []
        kept = [unit for unit in units if unit.kind not in (Kind.QUEUE, Kind.OTHERS)]
        pools = sorted([*gone, *new], key=lambda pool: pool.name)
        if len(pools) <= MANY:
            return [*kept, *(Unit(Kind.QUEUE, pool) for pool in pools)]
        if everybody:
            pools = [pool for pool in self._job.pool.group.pools if pool is not self._job.pool]
        return [*kept, Unit(Kind.OTHERS, frozenset(pools))]

    def _named(self, units: Collection[Unit]) -> list[Obstacle]:
        job, pool = self._job, self._job.pool
        found: list[Obstacle] = []
        if any(unit.kind is Kind.TURN for unit in units):
            found.append(turn_of(self._asked.before))
        ends = tuple(leaves(unit.of, self._now) for unit in units if unit.kind is Kind.END)
        if ends and self._shares:
            idle = pool.group.idle
            found.append(RoomObstacle(max(0, job.width - idle), max(0, idle), ends))
        elif ends:
            left = pool.quota - pool.dedicated
            found.append(QuotaObstacle(pool.name, job.width - left, max(0, left), pool.quota, ends))
        for kind, of in units:
            if kind is Kind.QUEUE:
                found.append(Rival(of.name, len(of.pending) + len(of.aside), of.pending_width))
            elif kind is Kind.OTHERS:
                waiting = sum(len(each.pending) + len(each.aside) for each in of)
                gpus = sum(each.pending_width for each in of)
                found.append(why.OtherPools(len(of), waiting, gpus, 0.0, 0, ()))
        return found
