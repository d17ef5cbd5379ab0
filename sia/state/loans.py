"""The GPUs that jobs use: quotas, and loans between pools. Part of the only writer of the state.

Limits on lending and borrowing apply to new loans. Sharing must never slow a job of the owner: if a
pool needs GPUs that it has lent, and only pools at their limit could take over the loan, the limit
is exceeded.
"""

from __future__ import annotations

from collections.abc import Iterable

from sia.decisions import Decision, MoveLoan
from sia.model import Stream
from sia.state.lenders import LenderOrder
from sia.state.state import GroupState, JobState, PoolState


class LoanCounts:
    """Counts GPUs by pool. A spare start borrows from the pools of its sharing group."""

    def __init__(self) -> None:
        """Start without loans."""
        self.overdrawn: dict[GroupState, None] = {}  # groups with pools that lend GPUs they lost
        self.unsettled = False  # `overdrawn` has changed since the last `settle`
        self.over: dict[PoolState, None] = {}  # pools beyond a limit
        self._lenders: dict[GroupState, LenderOrder] = {}

    def take(
        self, job: JobState, width: int, stream: Stream, decisions: list[Decision]
    ) -> tuple[tuple[str, int], ...]:
        """Allocate idle GPUs that the job may use, and return the loans of a spare job."""
        pool = job.pool
        job.width = width
        job.stream = stream
        if stream is Stream.DEDICATED:
            if width > pool.unused:
                self._call_home(pool, width - pool.unused, decisions)
            pool.dedicated += width
            self._recount(pool)
            return ()
        pool.spare += width
        self._borrow(job)
        return tuple([(lender.name, gpus) for lender, gpus in job.loans.items()])

    def shrink(self, job: JobState, width: int) -> tuple[tuple[str, int], ...]:
        """Reduce a job to `width` GPUs and return its loans. Works even if pools have lost GPUs."""
        pool, fewer = job.pool, job.width - width
        job.width = width
        if job.stream is Stream.DEDICATED:
            pool.dedicated -= fewer
            self._recount(pool)
            return ()
        left = fewer
        for lender, gpus in [*job.loans.items()][::-1]:
            given = min(left, gpus)
            left -= given
            if given:
                self._lend(lender, job, -given)
        pool.spare -= fewer
        return tuple((lender.name, gpus) for lender, gpus in job.loans.items())

    def give_back(self, job: JobState) -> None:
        """Release all GPUs of a job."""
        pool = job.pool
        if job.stream is Stream.DEDICATED:
            pool.dedicated -= job.width
            self._recount(pool)
            return
        pool.spare -= job.width
        pool.lent_own -= job.loans.get(pool, 0)
        for lender, gpus in job.loans.items():
            lender.lent -= gpus
            del lender.lent_to[job.job.id]
            self._recount(lender)
        job.loans.clear()

    def room_for(self, job: JobState) -> int:
        """Return `PoolState.room` for a running job if it released its GPUs first.

        O(its lenders).
        """
        pool, group = job.pool, job.pool.group
        if not group.limited:
            return group.idle + job.frees
        own = pool.unused + (job.loans.get(pool, 0) if job.loans else job.frees)
        others, borrows = group.lendable - pool.lendable, pool.borrows
        for lender, gpus in job.loans.items():
            if lender is not pool:
                borrows -= gpus
                most = min(lender.unused, lender.lend_limit - lender.lends) + gpus
                others += (max(0, most) if group.lending else 0) - lender.lendable
        return min(
            max(0, group.idle + job.frees - group.out),
            max(0, own) + max(0, min(others, pool.borrow_limit - borrows)),
        )

    def requota(self, pool: PoolState, quota: int) -> None:
        """Change a pool's quota. `settle` later moves the loans that exceed it."""
        pool.group.quota += quota - pool.quota
        pool.quota = quota
        pool.entitled = quota * pool.weight
        self._recount(pool)
        if pool.unused < 0:
            self.overdrawn[pool.group] = None
            self.unsettled = True

    def relimit(self, group: GroupState) -> None:
        """Apply changed limits of a group's pools. Existing loans beyond them stay. O(pools)."""
        group.relimit()
        self._lenders.pop(group, None)
        self.over.update((pool, None) for pool in group.pools if pool.over)

    def settle(self, decisions: list[Decision]) -> None:
        """Move loans of pools that lost lent GPUs to pools with idle ones."""
        for group in list(self.overdrawn):
            others = sum(pool.unused for pool in group.pools if pool.unused > 0)
            for pool in group.pools:
                if pool.unused < 0 < others:
                    missing = min(-pool.unused, others)
                    self._call_home(pool, missing, decisions)
                    others -= missing
            if all(pool.unused >= 0 for pool in group.pools):
                del self.overdrawn[group]
        self.unsettled = False

    def _recount(self, pool: PoolState) -> None:
        """Update a pool's unused GPUs and the sums that contain them."""
        unused = pool.quota - pool.dedicated
        if unused < 0:  # noqa: PLR1730  three times as fast as max()
            unused = 0
        unused -= pool.lent
        group = pool.group
        group.idle += unused - pool.unused
        pool.unused = unused
        if group.limited:
            self._reoffer(pool)
        lenders = self._lenders.get(group)
        if lenders is not None:
            lenders.changed(pool)

    def _reoffer(self, pool: PoolState) -> None:
        """Update the number of GPUs that a pool may lend."""
        lendable = pool.could_lend
        pool.group.lendable += lendable - pool.lendable
        pool.lendable = lendable
        if pool in self.over and not pool.over:
            del self.over[pool]

    def _borrow(self, job: JobState) -> None:
        """Lend a job its width, from its own pool's unused GPUs first, then from others."""
        missing = job.width
        own = min(missing, job.pool.unused)
        if own > 0:
            self._lend(job.pool, job, own)
            missing -= own
        while missing:
            lender = self._lenders_of(job.pool.group).most(besides=job.pool)
            gpus = min(missing, lender.available)
            assert gpus > 0, f"{lender.group.name} has fewer idle GPUs than counted"
            self._lend(lender, job, gpus)
            missing -= gpus

    def _call_home(self, pool: PoolState, missing: int, decisions: list[Decision]) -> None:
        """Move loans from `pool` to other lenders until `missing` more of its GPUs are unused.

        The other pools must have that many idle GPUs. The newest loans move first, because the
        oldest are likely to end soonest. Pools below their lend limit take over first; if none is,
        a limit is exceeded.
        """
        lenders = self._lenders_of(pool.group)
        while missing:
            job = next(reversed(pool.lent_to.values()))
            lender = lenders.most(besides=pool)
            available = lender.available
            if available <= 0:
                lender, available = _yielding(pool, job)
            gpus = min(missing, job.loans[pool], available)
            self._lend(lender, job, gpus)
            self._lend(pool, job, -gpus)
            self.over.update((each, None) for each in (lender, job.pool) if each.over)
            decisions.append(MoveLoan(job.job.id, pool.name, lender.name, gpus))
            missing -= gpus

    def _lenders_of(self, group: GroupState) -> LenderOrder:
        """Return the lender order of a group. It is created with the group's first loan.

        So groups that never lend have no cost.
        """
        lenders = self._lenders.get(group)
        if lenders is None:
            lenders = self._lenders[group] = LenderOrder(group)
        return lenders

    def _lend(self, lender: PoolState, job: JobState, gpus: int) -> None:
        job_id = job.job.id
        lent = job.loans.get(lender, 0) + gpus
        lender.lent += gpus
        if lender is job.pool:
            lender.lent_own += gpus
        if lent:
            job.loans[lender] = lent
            lender.lent_to[job_id] = job
        else:
            del job.loans[lender]
            del lender.lent_to[job_id]
        self._recount(lender)

    def check(self, groups: Iterable[GroupState]) -> None:
        """Assert that lender orders are up to date and overdrawn loans were moved. O(pools)."""
        for group in groups:
            if any(pool.unused < 0 for pool in group.pools):
                assert group in self.overdrawn, group.name
                assert self.unsettled or all(p.unused <= 0 for p in group.pools), group.name
            assert all(pool in self.over for pool in group.pools if pool.over), group.name
        for lenders in self._lenders.values():
            lenders.check()


def _yielding(pool: PoolState, job: JobState) -> tuple[PoolState, int]:
    """Return the pool that takes over a loan beyond its limit, and how many GPUs. O(pools).

    The job's own pool comes first, because it then lends to itself. If lending is off, pools below
    their own limit are used.
    """

    def room(other: PoolState) -> tuple[int, int]:
        most = other.unused if other is job.pool else other.lend_limit - other.lends
        return max(0, min(other.unused, most)), other.unused

    lender = max((each for each in pool.group.pools if each is not pool), key=room)
    below, unused = room(lender)
    return lender, below or unused
