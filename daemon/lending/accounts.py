"""Pool accounts: loans between pools, and how each pool's jobs would have run without sharing.

The accounts follow the core's events and decisions and influence neither. A defect here never fails
a step: the account of the pool is restarted from the core's state, like that of a new pool.
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
from sia.decisions import Decision, DedicateJob, MoveLoan, PreemptJob, ResizeJob, StartJob
from sia.events import (
    Event,
    JobCancelled,
    JobFinished,
    JobPreempted,
    JobSubmitted,
    PoolChanged,
    PriorityChanged,
)
from sia.limits import SLOWED
from sia.model import Stream
from sia.virtual.virtual_clock import VirtualClock
from sia.virtual.virtual_job import JobComparison as Comparison

BOOK_WITHIN = 10.0
"""Maximum seconds after which verdicts and loans are booked by a step of their own, if no other
step comes, so that the ledger is never older."""

BOOK_EVERY = 32
"""Number of steps between two bookings. Processing the events of many steps at once takes a third
of the time, because clocks and rows stay in the processor's cache."""

BOOK_AHEAD = 256
"""Number of queued events and decisions from which on they are processed between steps. One step
may stop hundreds of guests, and the step that books should find few of them."""

KEEP_OVER = 10_000
"""Maximum number of ended jobs of a pool that have not started in the virtual clock yet; each takes
about 80 B of a snapshot. For a pool that always borrows more than its quota the number grows
without end."""

KEEP_COMING = 50_000
"""Maximum number of events of a pool that wait until another of its jobs has started, for the same
reason."""

NOTHING = Booked()


class Accounts:
    """Keeps the accounts in the book, and collects what each step books."""

    def __init__(self, book: Book, core: Core) -> None:
        """Keep the accounts of this book."""
        self._book, self._core = book, core
        self._step = self._before = -inf  # time of this step, and of the one before
        self._now = -inf  # time up to which events are processed
        self._schedule: list[tuple[float, str]] = []  # (time, pool), including outdated entries
        self._next_look: dict[str, float] = {}  # by pool: the time of its valid entry
        self._changed: dict[str, VirtualClock] = {}  # clocks that got an event, by pool
        self._opened = self._closed = False
        self._recorded: list[tuple[float, Sequence[Event], Sequence[Decision]]] = []
        self._queued = 0  # events and decisions in this queue
        self._ended = 0  # jobs among the queued events that have ended
        self.moved: set[str] = set()
        """Pools whose clocks have changed since the guard rails last took this set."""
        self._broken = any(account.broken for account in book.accounts.values())
        self.booked = Booked()
        self.renewed: list[str] = []
        """Pools whose accounts were restarted in this step."""
        self._loans = LoanBook(book)
        self._handlers: dict[type, Callable[[Any], None]] = {
            JobSubmitted: self._submitted,
            JobFinished: self._finished,
            JobCancelled: self._cancelled,
            JobPreempted: self._lost,
            PriorityChanged: self._priority_changed,
            PoolChanged: self._pool_changed,
            StartJob: self._started,
            PreemptJob: self._stopped,
            ResizeJob: self._resized,
            DedicateJob: self._dedicated,
            MoveLoan: self._loan_moved,
        }
        for name, account in book.accounts.items():
            self._reschedule(name, account.clock)

    def continue_from(self, other: Accounts) -> None:
        """Continue a step that other accounts began, after a change of the configuration."""
        self._step, self._now, self.booked = other._step, other._now, other.booked
        self._open_accounts()

    def record(self, events: Sequence[Event], decisions: Sequence[Decision]) -> None:
        """Queue the core's events and decisions; `settle` processes them. O(1)."""
        if self._closed:
            return
        if self._book.setup.book_every > 1:
            self._book.heard = self._step
        self._recorded.append((self._step, events, decisions))
        self._queued += len(events) + len(decisions)

    def close(self) -> None:
        """Stop: a simulation needs no accounts."""
        self._closed, self._recorded, self.booked = True, [], NOTHING

    def begin_step(self, now: float) -> None:
        """Begin a step at this time, and book what is known if a booking is due.

        O(1) if `catch_up` was called.
        """
        if self._closed:
            return
        book, books = self._book, self._is_booking_step(now)
        if books or not self._opened:
            self.settle()
        self._before, self._step, self.renewed = self._step, now, []
        if not self._opened:
            self._open_accounts()
        if books:  # at times that do not depend on when accounts are read
            self._restart_broken()
        self._recorded.append((now, (), ()))
        self.booked = NOTHING
        if books:
            book.heard = None
        if books and (book.verdicts or book.rows):
            self.booked = Booked(book.verdicts, book.rows)
            book.verdicts, book.rows = [], []

    def _is_booking_step(self, now: float) -> bool:
        """Return whether the step at this time must book."""
        book = self._book
        if book.setup.book_every == 1:
            return True
        book.unbooked += 1
        if book.unbooked < book.setup.book_every and now < book.booked + BOOK_WITHIN:
            return False
        book.unbooked, book.booked = 0, now
        return True

    def end_step(self, ended: int) -> None:
        """Settle before the book evicts jobs; `ended` counts the jobs that ended in the step."""
        self._ended += ended
        if self._ended > KEEP_ENDED // 2:
            self.settle()  # processing looks the jobs up in the book

    def catch_up(self) -> None:
        """Settle now if many events are queued or the next step books, so that it has less work.

        The next step is expected after the same interval as the last one.
        """
        book, then = self._book, 2 * self._step - self._before
        books = book.unbooked >= book.setup.book_every - 1 or then >= book.booked + BOOK_WITHIN
        if books or self._queued >= BOOK_AHEAD:
            self.settle()

    def settle(self) -> None:
        """Process the queued events and decisions.

        The result does not depend on the time. O(queue).
        """
        if not self._recorded:
            return
        handlers = self._handlers
        heard, self._recorded = self._recorded, []
        self._queued = self._ended = 0
        for now, events, decisions in heard:
            self._advance(now)
            for fact in (*events, *decisions):
                handler = handlers.get(type(fact))
                if handler is None:
                    continue
                try:
                    handler(fact)
                except DEFECTS as error:
                    self._mark_broken(self._pools_of(fact), error)
            touched, self._changed = self._changed, {}
            for pool, clock in touched.items():
                try:
                    clock.bound(now, KEEP_OVER, KEEP_COMING)
                    self._collect(pool, clock)
                except DEFECTS as error:
                    self._mark_broken([pool], error)
            self.moved.update(touched)

    def _pools_of(self, fact: Event | Decision) -> list[str]:
        """Return the pool of an event; all pools if it is unknown."""
        if isinstance(fact, JobSubmitted):
            return [fact.job.pool]
        if isinstance(fact, PoolChanged):
            return [fact.pool]
        record = self._book.job(job_of(getattr(fact, "job_id", "")))
        return [*self._book.accounts] if record is None else [record.spec.pool]

    def _mark_broken(self, pools: list[str], error: Exception) -> None:
        """Mark these pools' accounts as broken after a defect.

        Until their restart an empty clock gets their events, and its verdicts are ignored.
        """
        for pool in pools:
            account = self._book.accounts.get(pool)
            if account is not None:
                account.broken, self._broken = f"{type(error).__name__}: {error}", True
                account.clock = VirtualClock.of(account.clock.told)
                self._changed.pop(pool, None)
                self._next_look.pop(pool, None)
                self.moved.add(pool)

    def _restart_broken(self) -> None:
        """Restart broken accounts from the core's state. O(pools); O(jobs) if any is broken.

        Open loans continue in new rows. Jobs that the clock refuses are left out.
        """
        accounts = self._book.accounts
        if not self._broken:
            return
        broken = [name for name in self._book.pools if accounts[name].broken]
        # Accounts of removed pools are restarted once their pools are back.
        self._broken = len(broken) < sum(bool(account.broken) for account in accounts.values())
        if not broken:
            return
        self._advance(self._step)
        self._loans.close_all(broken)
        for name in broken:
            account, quota = accounts[name], self._core.state.pools[name].quota
            account.clock, account.broken = VirtualClock.of(quota), ""
            account.renewed += 1
            try:
                self._adopt({name: None})
            except DEFECTS:
                account.clock = VirtualClock.of(quota)
            self._reschedule(name, account.clock)
        self.renewed = broken
        self.moved.update(broken)

    def _advance(self, now: float) -> None:
        """Advance the clocks in which something happens before this time. O(these pools)."""
        self._now = self._loans.now = now
        looks, pools = self._schedule, []
        while looks and looks[0][0] < now:
            when, pool = heappop(looks)
            if self._next_look.get(pool) == when:
                del self._next_look[pool]
                pools.append(pool)
        for pool in pools:  # each once: by rounding, its next time may be before now
            clock = self._book.accounts[pool].clock
            try:
                clock.advance(now)
                self._collect(pool, clock)
            except DEFECTS as error:
                self._mark_broken([pool], error)
        self.moved.update(pools)

    @property
    def due(self) -> float:
        """Latest time of the next step, to book what is known; infinite if nothing is."""
        if self._closed:
            return inf
        book, looks = self._book, self._schedule
        if book.heard is not None:
            return book.heard + BOOK_WITHIN
        self.settle()
        if book.rows or book.verdicts:
            return book.found + BOOK_WITHIN
        while looks and self._next_look.get(looks[0][1]) != looks[0][0]:
            heappop(looks)
        return max(looks[0][0], self._core.state.now) + BOOK_WITHIN if looks else inf

    def _reschedule(self, pool: str, clock: VirtualClock) -> None:
        """Schedule the next time at which something happens in a clock by itself."""
        when = clock.quiet()
        if when == inf:
            self._next_look.pop(pool, None)
        elif self._next_look.get(pool) != when:
            self._next_look[pool] = when
            heappush(self._schedule, (when, pool))

    def _collect(self, pool: str, clock: VirtualClock) -> None:
        """Count a clock's new verdicts, and schedule the clock again."""
        book, account = self._book, self._book.accounts[pool]
        self._reschedule(pool, clock)
        if not clock.ready:
            return
        found = clock.take()
        if account.broken:
            return
        if not (book.verdicts or book.rows):
            book.found = self._now
        for each in found:
            book.verdicts.append(verdict := _verdict(pool, each))
            add_verdict(account, verdict)

    def _open_accounts(self) -> None:
        """Open the accounts of new pools, and schedule all clocks. O(jobs)."""
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
            if account.clock.told != quota:  # the pool was removed, and exists again
                account.clock.requota(self._step, quota)
                new.append(name)
        for name in new:
            self._reschedule(name, book.accounts[name].clock)
        self.moved.update(new)

    def _adopt(self, pools: dict[str, None]) -> None:
        """Give the clocks of new accounts the existing jobs, and open their loans.

        The time before is unknown, so these jobs get no verdict.
        """
        book, now = self._book, self._now
        for job in sorted(self._core.state.jobs.values(), key=lambda job: job.arrival):
            pool, core_id = job.pool.name, job.job.id
            if pool not in pools:
                continue
            clock = book.accounts[pool].clock
            if job.stream is None:
                if not job.attempt:  # the run time of a stopped job is unknown
                    clock.submitted(now, job.job, judged=False)
            elif job.stream is Stream.DEDICATED:
                clock.adopt(core_id, job.width, job.start)
            for donor, gpus in job.loans.items():
                self._loans.open(job_of(core_id), pool, donor.name, gpus)

    def _clock(self, core_id: str) -> VirtualClock:
        """Return the clock of a job's pool, and mark it as changed."""
        return self._clock_of_pool(self._pool(job_of(core_id)))

    def _pool(self, job_id: str) -> str:
        record = self._book.job(job_id)
        assert record is not None, f"{job_id} is no job"
        return record.spec.pool

    def _clock_of_pool(self, pool: str) -> VirtualClock:
        clock = self._changed[pool] = self._book.accounts[pool].clock
        return clock

    def _submitted(self, event: JobSubmitted) -> None:
        self._clock_of_pool(event.job.pool).submitted(event.time, event.job)

    def _finished(self, event: JobFinished) -> None:
        job_id = job_of(event.job_id)
        pool = self._pool(job_id)
        self._close_loans(job_id)
        self._clock_of_pool(pool).finished(event.time, event.job_id)

    def _close_loans(self, job_id: str) -> None:
        for lender in [*self._book.lent.get(job_id, ())]:
            self._loans.close(job_id, lender)

    def _cancelled(self, event: JobCancelled) -> None:
        self._clock(event.job_id).withdrawn(event.time, event.job_id)

    def _priority_changed(self, event: PriorityChanged) -> None:
        self._clock(event.job_id).ranked(event.time, event.job_id, event.priority)

    def _pool_changed(self, event: PoolChanged) -> None:
        self._clock_of_pool(event.pool).requota(event.time, event.quota)

    def _started(self, start: StartJob) -> None:
        job_id = job_of(start.job_id)
        pool = self._pool(job_id)
        for lender, gpus in start.loans:
            self._loans.open(job_id, pool, lender, gpus)
        self._clock_of_pool(pool).started(self._now, start.job_id)

    def _stopped(self, stop: PreemptJob) -> None:
        """Close the loans of a stopped job: for the core, its lenders have their GPUs back."""
        job_id = job_of(stop.job_id)
        self._close_loans(job_id)
        self._clock_of_pool(self._pool(job_id)).stopped(self._now, stop.job_id)

    def _lost(self, event: JobPreempted) -> None:
        """Count the work that a stop cost a job.

        In its pool alone the job would not repeat this work.
        """
        self._clock(event.job_id).lost(event.time, event.job_id, event.lost)

    def _resized(self, resize: ResizeJob) -> None:
        job_id = job_of(resize.job_id)
        self._close_loans(job_id)
        for lender, gpus in resize.loans:
            self._loans.open(job_id, self._pool(job_id), lender, gpus)

    def _dedicated(self, decision: DedicateJob) -> None:
        self._close_loans(job_of(decision.job_id))

    def _loan_moved(self, move: MoveLoan) -> None:
        job_id = job_of(move.job_id)
        pool = self._pool(job_id)
        left = self._loans.close(job_id, move.previous) - move.gpus
        self._loans.open(job_id, pool, move.previous, left)
        more = self._loans.close(job_id, move.donor)
        self._loans.open(job_id, pool, move.donor, more + move.gpus)


def _verdict(pool: str, found: Comparison) -> Verdict:
    job_id, gpus, submit, began, started, ended, known, paused = found
    return Verdict(job_of(job_id), pool, gpus, submit, started, ended, began, not known, paused)


def add_verdict(account: Account, verdict: Verdict) -> None:
    """Add a verdict to an account's sums."""
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
        account.took_alone += took - later - verdict.paused
