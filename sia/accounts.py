"""Whose GPUs a job uses: quotas, and loans between pools. A part of the only writer of `State`."""

from __future__ import annotations

from collections.abc import Iterable

from sia.decisions import Decision, MoveLoan
from sia.donors import Donors
from sia.model import Stream
from sia.state import GroupState, JobState, PoolState


class Accounts:
    """Counts of GPUs by pool; a spare start borrows from pools of its group."""

    def __init__(self) -> None:
        """Start with nobody lending."""
        self.overdrawn: dict[GroupState, None] = {}  # groups that lend GPUs they lost
        self.unsettled = False  # since then: a fact that cannot be may have come between
        self._donors: dict[GroupState, Donors] = {}

    def take(
        self, job: JobState, width: int, stream: Stream, decisions: list[Decision]
    ) -> tuple[tuple[str, int], ...]:
        """Give a job GPUs that are there; the loans of a spare one."""
        pool = job.pool
        job.width = width
        job.stream = stream
        if stream is Stream.DEDICATED:
            if width > pool.unused:
                self._call_home(pool, width - pool.unused, decisions)
            pool.dedicated += width
            self._recount(pool)
            return ()
        self._borrow(job)
        pool.spare += width
        return tuple((donor.name, gpus) for donor, gpus in job.loans.items())

    def shrink(self, job: JobState, width: int) -> tuple[tuple[str, int], ...]:
        """Have a job keep only so many of its GPUs: fits even where pools have lost some."""
        pool, fewer = job.pool, job.width - width
        job.width = width
        if job.stream is Stream.DEDICATED:
            pool.dedicated -= fewer
            self._recount(pool)
            return ()
        pool.spare -= fewer
        for donor, gpus in [*job.loans.items()][::-1]:
            given = min(fewer, gpus)
            fewer -= given
            if given:
                self._lend(donor, job, -given)
        return tuple((donor.name, gpus) for donor, gpus in job.loans.items())

    def give_back(self, job: JobState) -> None:
        """Take a job's GPUs from it."""
        pool = job.pool
        if job.stream is Stream.DEDICATED:
            pool.dedicated -= job.width
            self._recount(pool)
            return
        pool.spare -= job.width
        for donor, gpus in job.loans.items():
            donor.lent -= gpus
            del donor.lent_to[job.job.id]
            self._recount(donor)
        job.loans.clear()

    def requota(self, pool: PoolState, quota: int) -> None:
        """Give a pool another quota; what it lends beyond that is moved by `settle`."""
        pool.group.quota += quota - pool.quota
        pool.quota = quota
        self._recount(pool)
        if pool.unused < 0:
            self.overdrawn[pool.group] = None
            self.unsettled = True

    def settle(self, decisions: list[Decision]) -> None:
        """Where pools have lost GPUs that they lend: move those loans to whoever has some idle."""
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
        """Bring a pool's unused GPUs, and the sums they are part of, up to date."""
        unused = pool.quota - pool.dedicated
        unused = (max(0, unused)) - pool.lent
        pool.group.idle += unused - pool.unused
        pool.unused = unused
        if self._donors and pool.group in self._donors:
            self._donors[pool.group].changed(pool)

    def _borrow(self, job: JobState) -> None:
        """Lend a job its width: its own pool's unused GPUs first, then those who have most."""
        missing = job.width
        own = min(missing, job.pool.unused)
        if own > 0:
            self._lend(job.pool, job, own)
            missing -= own
        while missing:
            donor = self._donors_of(job.pool.group).most(besides=job.pool)
            gpus = min(missing, donor.unused)
            self._lend(donor, job, gpus)
            missing -= gpus

    def _call_home(self, pool: PoolState, missing: int, decisions: list[Decision]) -> None:
        """Have others lend what `pool` lent, until `missing` more GPUs of it are unused.

        The others must have as many. The newest loans move first: the oldest are the likeliest to
        end by themselves.
        """
        donors = self._donors_of(pool.group)
        while missing:
            job = next(reversed(pool.lent_to.values()))
            donor = donors.most(besides=pool)
            gpus = min(missing, job.loans[pool], donor.unused)
            self._lend(donor, job, gpus)
            self._lend(pool, job, -gpus)
            decisions.append(MoveLoan(job.job.id, pool.name, donor.name, gpus))
            missing -= gpus

    def _donors_of(self, group: GroupState) -> Donors:
        """Kept from the first loan on, so that who never lends does not pay for it."""
        donors = self._donors.get(group)
        if donors is None:
            donors = self._donors[group] = Donors(group)
        return donors

    def _lend(self, donor: PoolState, job: JobState, gpus: int) -> None:
        job_id = job.job.id
        lent = job.loans.get(donor, 0) + gpus
        donor.lent += gpus
        if lent:
            job.loans[donor] = lent
            donor.lent_to[job_id] = job
        else:
            del job.loans[donor]
            del donor.lent_to[job_id]
        self._recount(donor)

    def check(self, groups: Iterable[GroupState]) -> None:
        """Assert that donors stand where they should, and that loans were moved. O(pools)."""
        for group in groups:
            if any(pool.unused < 0 for pool in group.pools):
                assert group in self.overdrawn, group.name
                assert self.unsettled or all(p.unused <= 0 for p in group.pools), group.name
        for donors in self._donors.values():
            donors.check()
