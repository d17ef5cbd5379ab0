"""Pools of a group as they would be if some things were taken away: copies of those that differ.

Who lends what to whom decides who may start where loans are limited. Then the same accounts are
kept as in the state (`sia.accounts`), of copies that are made as they are first changed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from sia.limits import UNLIMITED
from sia.model import Stream
from sia.state.donors import LenderOrder
from sia.state.loans import LoanCounts
from sia.state.state import GroupState, JobState, PoolState

_T = TypeVar("_T", GroupState, PoolState, JobState)


def _copy(thing: _T) -> _T:
    made = object.__new__(type(thing))
    for name in thing.__slots__:
        setattr(made, name, getattr(thing, name))
    return made


class Lenders:
    """What the pools of a limited group may lend: worked out once for all that is asked.

    Attributes:
        pools: Those of the group, as they are; all of them copies if limits were lifted.
        of: Each of these copies by what it is of.
    """

    def __init__(self, group: GroupState, *, lending: bool, lends: bool) -> None:
        """O(pools). Have `lending` be on, and pools `lends` without limit, where it says so."""
        self.group = group
        self.of: dict[PoolState, PoolState] = {}
        if (lending and not group.lending) or lends:
            self.group = _copy(group)
            self.group.lending = group.lending or lending
            self.of = {pool: _copy(pool) for pool in group.pools}
            for pool in self.of.values():
                pool.group = self.group
                if lends:
                    pool.lend_limit = UNLIMITED
            self.group.pools = [*self.of.values()]
            self.group.relimit()
        self.limited = self.group.is_limited()
        self.originals = {made: pool for pool, made in self.of.items()}
        self.donors = LenderOrder(self.group)
        self.overdrawn = any(pool.unused < 0 for pool in group.pools)
        self.places = {pool: i for i, pool in enumerate(group.pools)}
        self._sums: dict[tuple[int, frozenset[PoolState]], int] = {}

    def spare(self, pool: PoolState, held: int) -> int:
        """GPUs that a pool may lend besides those that are held back: see `Sia`."""
        made = self.of.get(pool, pool)
        return min(made.unused - held, made.lendable)

    def spared(
        self,
        window: int,
        held: Mapping[PoolState, Sequence[int]],
        unheld: frozenset[PoolState],
    ) -> int:
        """The sum of that; nothing is held back for some. O(1), and O(pools) once for these."""
        found = self._sums.get((window, unheld))
        if found is None:
            each = (self.spare(p, 0 if p in unheld else held[p][window]) for p in self.places)
            found = self._sums[window, unheld] = sum(each)
        return found


class Copies:
    """Pools by what they are copies of. It does to them what the core would to the pools."""

    def __init__(self, group: GroupState, lenders: Lenders | None = None) -> None:
        """O(1); O(pools) with `lenders`: who lends to whom is only told with them."""
        self.made: dict[PoolState, PoolState] = {}
        self.group = _copy(group if lenders is None else lenders.group)
        self._lenders = lenders
        self._jobs: dict[str, JobState] = {}
        if lenders is not None:
            self.group.pools = self.group.pools[:]
            self._accounts = _Accounts(self, lenders)

    def now(self, pool: PoolState) -> PoolState:
        """A pool, to be read. O(1)."""
        made = self.made.get(pool)
        if made is None:
            return pool if self._lenders is None else self._lenders.of.get(pool, pool)
        return made

    def change(self, pool: PoolState) -> PoolState:
        """A pool, to be changed. O(1), and O(loans of the pool) once."""
        made = self.made.get(pool)
        if made is None:
            was = self.now(pool)
            made = self.made[pool] = _copy(was)
            made.group = self.group
            if self._lenders is not None:
                made.lent_to = pool.lent_to.copy()
                self.group.pools[self._lenders.places[pool]] = made
                self._accounts.copied(was, made)
        return made

    def lift(self, pool: PoolState, *, lend: bool) -> None:
        """A pool may lend, or borrow, without limit."""
        made = self.change(pool)
        if lend:
            made.lend_limit = UNLIMITED
        else:
            made.borrow_limit = UNLIMITED
        if self._lenders is not None:
            self._accounts.lifted(made)

    def settle(self) -> None:
        """Move loans of GPUs that pools have lost to whoever has some idle now. O(pools) if any."""
        if self._lenders is None or not self._lenders.overdrawn:
            return
        for pool in [*self._lenders.places]:
            if self.change(pool).unused < 0:
                self._call_home(self.change(pool))
        self._accounts.overdrawn[self.group] = None
        self._accounts.settle([])

    def end(self, job: JobState) -> None:
        """A running job has ended."""
        pool = self.change(job.pool)
        if self._lenders is None:
            if job.stream is Stream.SPARE:
                pool.spare -= job.width
                self.group.idle += job.width
            else:
                over = max(0, pool.dedicated - pool.quota)
                pool.dedicated -= job.width
                self.group.idle += max(0, job.width - over)
        elif job.stream is Stream.SPARE:
            self._accounts.give_back(self._copied(job))
        else:
            ended = _copy(job)
            ended.pool = pool
            self._accounts.give_back(ended)

    def start(self, job: JobState, stream: Stream) -> None:
        """A waiting job has started."""
        pool = self.change(job.pool)
        if self._lenders is not None:
            started = self._jobs[job.job.id] = _copy(job)
            started.pool, started.loans = pool, {}
            if stream is Stream.DEDICATED and job.width > pool.unused:
                self._call_home(pool)
            self._accounts.take(started, job.width, stream, [])
            return
        self.group.idle -= job.width
        if stream is Stream.SPARE:
            pool.spare += job.width
        else:
            pool.dedicated += job.width

    def _copied(self, job: JobState) -> JobState:
        """A spare job whose loans are to be changed; nothing else of the state refers to it."""
        known = self._jobs.get(job.job.id)
        if known is None:
            known = self._jobs[job.job.id] = _copy(job)
            known.pool = self.change(job.pool)
            known.loans = {self.change(donor): gpus for donor, gpus in job.loans.items()}
            for donor in known.loans:
                donor.lent_to[job.job.id] = known
        return known

    def _call_home(self, pool: PoolState) -> None:
        """What a pool has lent may have to move."""
        for job in [*pool.lent_to.values()]:
            self._copied(job)


class _Accounts(LoanCounts):
    """Accounts of pools that are copied before they are written."""

    def __init__(self, copies: Copies, lenders: Lenders) -> None:
        super().__init__()
        self._copies, self._lenders = copies, lenders

    def copied(self, was: PoolState, made: PoolState) -> None:
        """A copy stands for a pool from now on."""
        for donors in self._donors.values():
            donors.replaced(was, made)

    def lifted(self, pool: PoolState) -> None:
        """A pool has another limit."""
        self._recount(pool)

    def _donors_of(self, group: GroupState) -> LenderOrder:
        donors = self._donors.get(group)
        if donors is None:
            donors = self._donors[group] = self._lenders.donors.beside(group.pools)
            for pool, made in self._copies.made.items():
                donors.replaced(self._lenders.of.get(pool, pool), made)
                donors.changed(made)
        return donors

    def _lend(self, donor: PoolState, job: JobState, gpus: int) -> None:
        if donor.group is not self._copies.group:
            donor = self._copies.change(self._lenders.originals.get(donor, donor))
        super()._lend(donor, job, gpus)
