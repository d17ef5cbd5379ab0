"""The engine's part for accounts: who lent what to whom, and how each pool would be alone.

It hears what the core is told and what it decides, and changes nothing of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from math import inf
from typing import Any

from daemon.account import Account, Booked, Lent, Loan, Verdict
from daemon.book import Book, job_of
from daemon.limits import KEEP_ENDED
from sia.alone import VirtualClock
from sia.core import Core
from sia.decisions import Decision, MoveLoan, StartJob
from sia.events import (
    Event,
    JobCancelled,
    JobFinished,
    JobSubmitted,
    PoolChanged,
    PriorityChanged,
)
from sia.limits import SLOWED
from sia.model import Stream
from sia.twin import Verdict as Found

BOOK_WITHIN = 60.0
"""Seconds after which what is known is booked by a step of its own, where there is no other."""

BOOK_EVERY = 32
"""Steps after which the daemon books what is known. Clocks are far from what else a step needs:
looked at for many steps at once they take a third of the time, and so do the rows."""

KEEP_OVER = 10_000
"""Jobs of a pool that are over and have not had their turn alone: some 80 B each of a snapshot. A
pool that always borrows more than it owns has ever more of them."""

KEEP_COMING = 50_000
"""Facts of a pool that wait until another job of it has started, likewise."""

NOTHING = Booked()


class Accounts:
    """Keeps the book's accounts, and what a step books."""

    def __init__(self, book: Book, core: Core) -> None:
        """Keep this book's."""
        self._book, self._core = book, core
        self._step = -inf  # its time
        self._now = -inf  # of what has been looked at
        self._looks: list[tuple[float, str]] = []  # when to look at a pool's clock, and others
        self._look: dict[str, float] = {}  # which of them counts
        self._touched: dict[str, VirtualClock] = {}  # that were told something, by pool
        self._opened = self._closed = False
        self._heard: list[tuple[float, Sequence[Event], Sequence[Decision]]] = []
        self._told = False  # something of it is more than that time has passed
        self._over = 0  # jobs of it that have ended
        self.booked = Booked()
        self._handlers: dict[type, Callable[[Any], None]] = {
            JobSubmitted: self._submitted,
            JobFinished: self._finished,
            JobCancelled: self._cancelled,
            PriorityChanged: self._ranked,
            PoolChanged: self._pool_changed,
            StartJob: self._started,
            MoveLoan: self._moved,
        }
        for name, account in book.accounts.items():
            account.clock.recount()
            self._look_again(name, account.clock)

    def take_over(self, other: Accounts) -> None:
        """Go on with a step that another one has begun."""
        self._step, self._now, self.booked = other._step, other._now, other.booked
        self._open()

    def hear(self, events: Sequence[Event], decisions: Sequence[Decision]) -> None:
        """Hear what the core was told, in its order, and what it decided then. O(1).

        It is looked at after the step: nobody is to wait for that.
        """
        if self._closed:
            return
        self._told = True
        self._heard.append((self._step, events, decisions))

    def close(self) -> None:
        """Keep them no longer: of a future that is only played nobody asks for them."""
        self._closed, self._heard, self.booked = True, [], NOTHING

    def pass_time(self, now: float) -> None:
        """It is now so late, before anything happens; what is known is booked, now and then.

        O(1) if prepared.
        """
        if self._closed:
            return
        book, books = self._book, self._books(now)
        if books or not self._opened:
            self.settle()
        self._step = now
        if not self._opened:
            self._open()
        self._heard.append((now, (), ()))
        self.booked = NOTHING
        if books and (book.verdicts or book.rows):
            self.booked = Booked(book.verdicts, book.rows)
            book.verdicts, book.rows = [], []

    def _books(self, now: float) -> bool:
        """Whether a step books what is known."""
        book = self._book
        if book.setup.book_every == 1:
            return True
        book.unbooked += 1
        if book.unbooked < book.setup.book_every and now < book.booked + BOOK_WITHIN:
            return False
        book.unbooked, book.booked = 0, now
        return True

    def end_step(self, over: int) -> None:
        """So many jobs have ended in a step; the book forgets those that ended long ago."""
        self._over += over
        if self._over > KEEP_ENDED // 2:
            self.settle()  # it asks the book for them

    def catch_up(self) -> None:
        """Look at what has been heard if the next step books, so that it need not."""
        if self._book.unbooked >= self._book.setup.book_every - 1:
            self.settle()

    def settle(self) -> None:
        """Look at what has been heard; at once or later comes to the same. O(what it is)."""
        if not self._heard:
            return
        handlers = self._handlers
        heard, self._heard = self._heard, []
        self._told, self._over = False, 0
        for now, events, decisions in heard:
            self._advance(now)
            for fact in (*events, *decisions):
                handler = handlers.get(type(fact))
                if handler is not None:
                    handler(fact)
            for pool, clock in self._touched.items():
                clock.bound(now, KEEP_OVER, KEEP_COMING)
                if clock.ready:
                    self._take(pool, clock)
                self._look_again(pool, clock)
            self._touched.clear()

    def _advance(self, now: float) -> None:
        """Look at the clocks of which more is known by now. O(pools of which it is)."""
        self._now = now
        looks, pools = self._looks, []
        while looks and looks[0][0] < now:
            when, pool = heappop(looks)
            if self._look.get(pool) == when:
                del self._look[pool]
                pools.append(pool)
        for pool in pools:  # once each: rounded, a clock's next look may be a little before now
            clock = self._book.accounts[pool].clock
            clock.advance(now)
            if clock.ready:
                self._take(pool, clock)
            self._look_again(pool, clock)

    @property
    def due(self) -> float:
        """When it wants to be called at the latest, so that what is known is booked."""
        if self._closed:
            return inf
        if self._told and self._book.setup.book_every > 1:
            return self._step + BOOK_WITHIN
        self.settle()
        book = self._book
        if book.rows or book.verdicts:
            return book.found + BOOK_WITHIN
        if not self._looks:
            return inf
        return max(self._looks[0][0], self._core.state.now) + BOOK_WITHIN

    def _look_again(self, pool: str, clock: VirtualClock) -> None:
        """Look at a clock when more is known of it by itself."""
        when = clock.quiet()
        if when < inf and self._look.get(pool) != when:
            self._look[pool] = when
            heappush(self._looks, (when, pool))

    def _take(self, pool: str, clock: VirtualClock) -> None:
        """Book a clock's verdicts."""
        account, verdicts = self._book.accounts[pool], self._book.verdicts
        self._find()
        for found in clock.take():
            verdicts.append(verdict := _verdict(pool, found))
            count(account, verdict)

    def _find(self) -> None:
        """Something is to be booked."""
        book = self._book
        if not (book.verdicts or book.rows):
            book.found = self._now

    def _open(self) -> None:
        """Open the accounts of pools that have none; look at all clocks once. O(jobs)."""
        self._opened = True
        book = self._book
        new = [name for name in book.pools if name not in book.accounts]
        if new:
            self._advance(self._step)
        for name in new:
            quota = self._core.state.pools[name].quota
            book.accounts[name] = Account(self._now, VirtualClock.of(quota))
        if new:
            self._adopt(dict.fromkeys(new))
        for name in new:
            self._look_again(name, book.accounts[name].clock)

    def _adopt(self, pools: dict[str, None]) -> None:
        """Take jobs in that were there before: their loans, and that they use and want GPUs.

        What would have been alone before nobody knows; so nothing is said of these.
        """
        book, now = self._book, self._now
        for job in sorted(self._core.state.jobs.values(), key=lambda job: job.arrival):
            pool, core_id = job.pool.name, job.job.id
            if pool not in pools:
                continue
            clock = book.accounts[pool].clock
            if job.stream is None:
                clock.submitted(now, job.job, judged=False)
            elif job.stream is Stream.DEDICATED:
                clock.adopt(core_id, job.width, job.start)
            for donor, gpus in job.loans.items():
                self._lend(job_of(core_id), pool, donor.name, gpus)

    def _clock(self, core_id: str) -> VirtualClock:
        """The clock of a job's pool, which is looked at in the end."""
        return self._of(self._pool(job_of(core_id)))

    def _pool(self, job_id: str) -> str:
        record = self._book.job(job_id)
        assert record is not None, f"{job_id} is no job"
        return record.spec.pool

    def _of(self, pool: str) -> VirtualClock:
        clock = self._touched[pool] = self._book.accounts[pool].clock
        return clock

    def _submitted(self, event: JobSubmitted) -> None:
        self._of(event.job.pool).submitted(event.time, event.job)

    def _finished(self, event: JobFinished) -> None:
        job_id = job_of(event.job_id)
        pool = self._pool(job_id)
        self._of(pool).finished(event.time, event.job_id)
        for lender in [*self._book.lent.get(job_id, ())]:
            self._take_back(job_id, lender)

    def _cancelled(self, event: JobCancelled) -> None:
        self._clock(event.job_id).withdrawn(event.time, event.job_id)

    def _ranked(self, event: PriorityChanged) -> None:
        self._clock(event.job_id).ranked(event.time, event.job_id, event.priority)

    def _pool_changed(self, event: PoolChanged) -> None:
        self._of(event.pool).requota(event.time, event.quota)

    def _started(self, start: StartJob) -> None:
        job_id = job_of(start.job_id)
        pool = self._pool(job_id)
        self._of(pool).started(self._now, start.job_id)
        for lender, gpus in start.loans:
            self._lend(job_id, pool, lender, gpus)

    def _moved(self, move: MoveLoan) -> None:
        job_id = job_of(move.job_id)
        pool = self._pool(job_id)
        left = self._take_back(job_id, move.previous) - move.gpus
        self._lend(job_id, pool, move.previous, left)
        more = self._take_back(job_id, move.donor)
        self._lend(job_id, pool, move.donor, more + move.gpus)

    def _lend(self, job_id: str, borrower: str, lender: str, gpus: int) -> None:
        """From now on a pool lends a job so many GPUs; what a pool's own jobs use is no loan."""
        if lender != borrower and gpus > 0:
            self._book.lent.setdefault(job_id, {})[lender] = Loan(borrower, gpus, self._now)

    def _take_back(self, job_id: str, lender: str) -> int:
        """A pool lends a job no more what it has lent it up to now: so many GPUs."""
        loans = self._book.lent.get(job_id, {})
        loan = loans.pop(lender, None)
        if loan is None:
            return 0
        if not loans:
            del self._book.lent[job_id]
        if self._now > loan.since:
            row = Lent(job_id, lender, loan.borrower, loan.gpus, loan.since, self._now)
            self._find()
            self._book.rows.append(row)
            accounts = self._book.accounts
            accounts[lender].lent += row.seconds
            accounts[loan.borrower].borrowed += row.seconds
        return loan.gpus


def _verdict(pool: str, found: Found) -> Verdict:
    job_id, gpus, submit, began, started, ended, known = found
    return Verdict(job_of(job_id), pool, gpus, submit, started, ended, began, not known)


def count(account: Account, verdict: Verdict) -> None:
    """Enter a verdict."""
    if verdict.forgotten:
        account.forgotten += 1
        return
    account.jobs += 1
    alone, started = verdict.alone, verdict.started
    if alone is None:
        account.never += 1
        return
    later = (verdict.ended if started is None else started) - alone
    if later > SLOWED:
        account.slowed += 1
        account.lost += later
    elif later < 0:
        account.gained -= later
    if started is not None:
        took = verdict.ended - verdict.submitted
        account.took += took
        account.took_alone += took - later
