"""The engine's part for accounts: who lent what to whom, and how each pool would be alone.

It hears what the core is told and what it decides, and changes nothing of it. What goes wrong here
ends no step: the account of the pool is begun anew from what the core says, as a new pool's is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from math import inf
from typing import Any

from daemon.lending.loans import LoanBook
from daemon.model.account import DEFECTS, Account, Booked, Verdict
from daemon.model.book import Book, job_of
from daemon.model.limits import KEEP_ENDED
from sia.core.core import Core
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
from sia.virtual.virtual_clock import VirtualClock
from sia.virtual.virtual_job import JobComparison as Found

BOOK_WITHIN = 10.0
"""Seconds after which what is known is booked by a step of its own, where there is no other: who
looks at a ledger after a loan has ended waits no longer for it."""

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
        self._step = self._before = -inf  # its time, and that of the one before
        self._now = -inf  # of what has been looked at
        self._looks: list[tuple[float, str]] = []  # when to look at a pool's clock, and others
        self._look: dict[str, float] = {}  # which of them counts
        self._touched: dict[str, VirtualClock] = {}  # that were told something, by pool
        self._opened = self._closed = False
        self._recorded: list[tuple[float, Sequence[Event], Sequence[Decision]]] = []
        self._over = 0  # jobs of it that have ended
        self.moved: set[str] = set()
        """Pools of whose clocks more is known since somebody has taken this."""
        self._broken = any(account.broken for account in book.accounts.values())
        self.booked = Booked()
        self.renewed: list[str] = []
        """Pools whose accounts were begun anew in this step."""
        self._loans = LoanBook(book)
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

    def continue_from(self, other: Accounts) -> None:
        """Go on with a step that another one has begun."""
        self._step, self._now, self.booked = other._step, other._now, other.booked
        self._open()

    def record(self, events: Sequence[Event], decisions: Sequence[Decision]) -> None:
        """Hear what the core was told, in its order, and what it decided then. O(1).

        It is looked at after the step: nobody is to wait for that.
        """
        if self._closed:
            return
        if self._book.setup.book_every > 1:
            self._book.heard = self._step
        self._recorded.append((self._step, events, decisions))

    def close(self) -> None:
        """Keep them no longer: of a future that is only played nobody asks for them."""
        self._closed, self._recorded, self.booked = True, [], NOTHING

    def begin_step(self, now: float) -> None:
        """It is now so late, before anything happens; what is known is booked, now and then.

        O(1) if prepared.
        """
        if self._closed:
            return
        book, books = self._book, self._books(now)
        if books or not self._opened:
            self.settle()
        self._before, self._step, self.renewed = self._step, now, []
        if not self._opened:
            self._open()
        if books:  # at a moment that does not hang on when somebody looked
            self._renew()
        self._recorded.append((now, (), ()))
        self.booked = NOTHING
        if books:
            book.heard = None
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
        """Look at what has been heard if the next step books, so that it need not.

        It is thought to come as soon as the last one did.
        """
        book, then = self._book, 2 * self._step - self._before
        if book.unbooked >= book.setup.book_every - 1 or then >= book.booked + BOOK_WITHIN:
            self.settle()

    def settle(self) -> None:
        """Look at what has been heard; at once or later comes to the same. O(what it is)."""
        if not self._recorded:
            return
        handlers = self._handlers
        heard, self._recorded = self._recorded, []
        self._over = 0
        for now, events, decisions in heard:
            self._advance(now)
            for fact in (*events, *decisions):
                handler = handlers.get(type(fact))
                if handler is None:
                    continue
                try:
                    handler(fact)
                except DEFECTS as error:
                    self._break(self._whose(fact), error)
            touched, self._touched = self._touched, {}
            for pool, clock in touched.items():
                try:
                    clock.bound(now, KEEP_OVER, KEEP_COMING)
                    self._take(pool, clock)
                except DEFECTS as error:
                    self._break([pool], error)
            self.moved.update(touched)

    def _whose(self, fact: Event | Decision) -> list[str]:
        """The pool that a fact is of; where nobody knows, it may be of any."""
        if isinstance(fact, JobSubmitted):
            return [fact.job.pool]
        if isinstance(fact, PoolChanged):
            return [fact.pool]
        record = self._book.job(job_of(getattr(fact, "job_id", "")))
        return [*self._book.accounts] if record is None else [record.spec.pool]

    def _break(self, pools: list[str], error: Exception) -> None:
        """A defect: what these pools' clocks say counts no more, until they are begun anew.

        Until then an empty one hears for each, of which nothing is taken.
        """
        for pool in pools:
            account = self._book.accounts.get(pool)
            if account is not None:
                account.broken, self._broken = f"{type(error).__name__}: {error}", True
                account.clock = VirtualClock.of(account.clock.told)
                self._touched.pop(pool, None)
                self._look.pop(pool, None)
                self.moved.add(pool)

    def _renew(self) -> None:
        """Begin broken accounts anew from what the core says. O(pools), and O(jobs) if any is.

        Loans go on in rows of their own. Jobs that cannot even be taken in are left out.
        """
        accounts = self._book.accounts
        if not self._broken:
            return
        broken = [name for name in self._book.pools if accounts[name].broken]
        # Those of pools that were taken out are begun anew once these are back.
        self._broken = len(broken) < sum(bool(account.broken) for account in accounts.values())
        if not broken:
            return
        self._advance(self._step)
        self._loans.close(broken)
        for name in broken:
            account, quota = accounts[name], self._core.state.pools[name].quota
            account.clock, account.broken = VirtualClock.of(quota), ""
            account.renewed += 1
            try:
                self._adopt({name: None})
            except DEFECTS:
                account.clock = VirtualClock.of(quota)
            self._look_again(name, account.clock)
        self.renewed = broken
        self.moved.update(broken)

    def _advance(self, now: float) -> None:
        """Look at the clocks of which more is known by now. O(pools of which it is)."""
        self._now = self._loans.now = now
        looks, pools = self._looks, []
        while looks and looks[0][0] < now:
            when, pool = heappop(looks)
            if self._look.get(pool) == when:
                del self._look[pool]
                pools.append(pool)
        for pool in pools:  # once each: rounded, a clock's next look may be a little before now
            clock = self._book.accounts[pool].clock
            try:
                clock.advance(now)
                self._take(pool, clock)
            except DEFECTS as error:
                self._break([pool], error)
        self.moved.update(pools)

    @property
    def due(self) -> float:
        """When it wants to be called at the latest, so that what is known is booked."""
        if self._closed:
            return inf
        book, looks = self._book, self._looks
        if book.heard is not None:
            return book.heard + BOOK_WITHIN
        self.settle()
        if book.rows or book.verdicts:
            return book.found + BOOK_WITHIN
        while looks and self._look.get(looks[0][1]) != looks[0][0]:
            heappop(looks)
        return max(looks[0][0], self._core.state.now) + BOOK_WITHIN if looks else inf

    def _look_again(self, pool: str, clock: VirtualClock) -> None:
        """Look at a clock when more is known of it by itself."""
        when = clock.quiet()
        if when == inf:
            self._look.pop(pool, None)
        elif self._look.get(pool) != when:
            self._look[pool] = when
            heappush(self._looks, (when, pool))

    def _take(self, pool: str, clock: VirtualClock) -> None:
        """Book a clock's verdicts, and look at it again when it knows more."""
        book, account = self._book, self._book.accounts[pool]
        self._look_again(pool, clock)
        if not clock.ready:
            return
        found = clock.take()
        if account.broken:
            return
        if not (book.verdicts or book.rows):
            book.found = self._now
        for each in found:
            book.verdicts.append(verdict := _verdict(pool, each))
            count(account, verdict)

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
        for name in book.pools:
            account, quota = book.accounts[name], self._core.state.pools[name].quota
            if account.clock.told != quota:  # it was taken out, and is back
                account.clock.requota(self._step, quota)
                new.append(name)
        for name in new:
            self._look_again(name, book.accounts[name].clock)
        self.moved.update(new)

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
                self._loans.lend(job_of(core_id), pool, donor.name, gpus)

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
        for lender in [*self._book.lent.get(job_id, ())]:
            self._loans.take_back(job_id, lender)
        self._of(pool).finished(event.time, event.job_id)

    def _cancelled(self, event: JobCancelled) -> None:
        self._clock(event.job_id).withdrawn(event.time, event.job_id)

    def _ranked(self, event: PriorityChanged) -> None:
        self._clock(event.job_id).ranked(event.time, event.job_id, event.priority)

    def _pool_changed(self, event: PoolChanged) -> None:
        self._of(event.pool).requota(event.time, event.quota)

    def _started(self, start: StartJob) -> None:
        job_id = job_of(start.job_id)
        pool = self._pool(job_id)
        for lender, gpus in start.loans:
            self._loans.lend(job_id, pool, lender, gpus)
        self._of(pool).started(self._now, start.job_id)

    def _moved(self, move: MoveLoan) -> None:
        job_id = job_of(move.job_id)
        pool = self._pool(job_id)
        left = self._loans.take_back(job_id, move.previous) - move.gpus
        self._loans.lend(job_id, pool, move.previous, left)
        more = self._loans.take_back(job_id, move.donor)
        self._loans.lend(job_id, pool, move.donor, more + move.gpus)


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
