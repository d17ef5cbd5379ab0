"""Budgets of GPU-hours: what a pool has lent this month, and what open loans are expected to add.

A budget is spent when the GPU-hours already lent, plus the expected remainder of the open loans,
reach the budget. The core's run-time estimates give the remainder. So lending stops before the
budget is exceeded. While jobs run as estimated this sum stays the same. Therefore a pool is checked
again only when a loan opens, closes or moves, and when a job runs longer than estimated. All state
is in `Spent`, so that a restarted daemon checks at the same times.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import fsum, inf
from typing import NamedTuple

from daemon.engine.step import StepContext
from daemon.model.book import PoolRecord, Spent
from daemon.model.calendar import began, month_of
from daemon.model.outputs import Notice
from daemon.model.timers import Timer, Timers
from sia.limits import SLOWED, UNKNOWN_RUN_TIME
from sia.wording import decimal

HOUR = 3600.0

HOURS = "hours"
"""Kind of reason why a pool must not lend: its budget of GPU-hours is spent."""

NEAR = 1e-3
"""GPU-seconds below which a remaining budget counts as 0. The rounding error is about this large
with a thousand GPUs and times in seconds since 1970. So checks at other times, such as after a
restart, have the same result."""

LOANS = frozenset(("loan_opened", "loan_moved", "loan_closed"))


class ExpectedLoans(NamedTuple):
    """The expected remainder of a pool's open loans, up to the end of the month."""

    left: float
    """Expected GPU-seconds."""
    beyond: int
    """GPUs lent to jobs that have outrun their estimate or have none."""
    following: float
    """When the next job will run longer than its estimate; infinite if no job can."""


class LendingBudgets:
    """Keep `PoolRecord.spent` of pools with a budget of GPU-hours, and find spent budgets."""

    def __init__(self, context: StepContext) -> None:
        """Work on this context. O(jobs on loans) if any pool is counted."""
        self._context, self._book = context, context.book
        self._notices: Sequence[Notice] = ()  # the notices of the current step
        self._read = 0
        self._loans: dict[str, dict[str, int]] = {}  # borrowed GPUs by lender and job
        self._timers = Timers()
        for pool in self._book.pools.values():
            if pool.spent is not None:
                self._loans[pool.name] = {}
        if not self._loans:
            return
        for record in self._book.loans():
            for lender, gpus in record.loans:
                if lender in self._loans and lender != record.spec.pool:
                    self._loans[lender][record.spec.id] = gpus
        for name in self._loans:
            spent = self._book.pools[name].spent
            if spent is not None:
                self._timers.set(Timer(spent.look, HOURS, name))

    @property
    def due(self) -> float:
        """Time of the next check of a pool; infinite if no check is due."""
        return self._timers.next

    def check_budgets(self, *, everywhere: bool) -> set[str]:
        """Check budgets before a pass of the core; return the names of the checked pools.

        O(open loans of these pools). With `everywhere`, after budgets may have changed, all pools
        whose check is due are checked: O(pools).
        """
        now, names = self._context.now, self._changed()
        while (timer := self._timers.due(now)) is not None:
            names.add(timer.name)
        if everywhere:
            names |= {pool.name for pool in self._book.pools.values() if self._is_due(pool, now)}
        for name in sorted(names):
            pool = self._book.pools[name]
            spent, expected = self._count(pool, now), self._expected(name, now)
            budget = pool.lend_budget_hours
            if budget is None or _left(budget, spent, expected) > 0:
                pool.kept.pop(HOURS, None)
            else:  # keep an existing text, because it was announced in a notice
                pool.kept.setdefault(HOURS, describe(spent.seconds, expected.left, budget))
            self._reschedule(pool, spent, expected)
        return names

    def end_step(self) -> None:
        """Count the loans that the step opened, closed or moved. O(open loans of their lenders)."""
        if not self._loans:
            return
        now = self._context.now
        for name in sorted(self._changed()):
            pool = self._book.pools[name]
            spent = self._count(pool, now)
            self._reschedule(pool, spent, self._expected(name, now))

    def describe_pool(self, pool: PoolRecord, now: float) -> str:
        """Describe what a pool has lent and is expected to lend. O(its loans)."""
        spent, budget = pool.spent, pool.lend_budget_hours
        if spent is None or budget is None:
            return ""
        return describe(spent.upto(now), self._expected(pool.name, now).left, budget)

    def check(self) -> None:
        """Assert that the loans counted are those of the core. O(pools)."""
        counted = {pool.name for pool in self._book.pools.values() if pool.spent is not None}
        assert self._loans.keys() == counted
        for name, loans in self._loans.items():
            assert sum(loans.values()) == self._context.core.state.pools[name].lends, name

    def _is_due(self, pool: PoolRecord, now: float) -> bool:
        """Return whether a pool's budget has to be checked now."""
        if pool.spent is None:
            return pool.lend_budget_hours is not None
        return pool.spent.look <= now

    def _changed(self) -> set[str]:
        """Return the lenders of loans that changed in the step's notices since the last call."""
        book, found = self._book, set[str]()
        notices = self._context.notices
        if notices is not self._notices:  # a new step has begun
            self._notices, self._read = notices, 0
        for notice in notices[self._read :]:
            if notice.kind in LOANS:
                for lender in (notice.pool, notice.data.get("previous", "")):
                    if lender in self._loans:
                        self._update_loan(lender, notice.job)
                        found.add(lender)
        self._read = len(notices)
        return found & book.pools.keys()

    def _update_loan(self, lender: str, job_id: str) -> None:
        record = self._book.job(job_id)
        loans = {} if record is None else dict(record.loans)
        gpus = loans.get(lender, 0)
        if gpus and record is not None and record.spec.pool != lender:
            self._loans[lender][job_id] = gpus
        else:
            self._loans[lender].pop(job_id, None)

    def _count(self, pool: PoolRecord, now: float) -> Spent:
        """Bring a pool's `spent` up to date."""
        spent, (month, _) = pool.spent, month_of(now)
        if spent is None:
            self._begin_count(pool.name)
            spent = pool.spent = Spent(month, 0.0, now)
        elif spent.month != month:
            since = max(spent.since, began(month))
            spent = pool.spent = Spent(month, 0.0, since, spent.lends)
        spent.seconds += spent.lends * (now - spent.since)
        spent.since, spent.lends = now, sum(self._loans[pool.name].values())
        return spent

    def _begin_count(self, name: str) -> None:
        """Begin to count a pool's loans. O(jobs)."""
        self._loans[name] = {}
        for record in self._book.loans():
            self._update_loan(name, record.spec.id)

    def _reschedule(self, pool: PoolRecord, spent: Spent, expected: ExpectedLoans) -> None:
        """Set when a pool has to be checked again if nothing else happens."""
        now, budget, stopped = self._context.now, pool.lend_budget_hours, HOURS in pool.kept
        spent.look = month_of(now)[1]
        left_over = inf if budget is None else _left(budget, spent, expected)
        if stopped is not (left_over <= 0):
            spent.look = now
        elif not stopped and budget is not None:
            grows = now + max(left_over / expected.beyond, SLOWED) if expected.beyond else inf
            spent.look = min(spent.look, expected.following, grows)
        self._timers.set(Timer(spent.look, HOURS, pool.name))

    def _expected(self, name: str, now: float) -> ExpectedLoans:
        end, ends = month_of(now)[1], list(self._ends(name))
        coming = [(over, gpus) for over, gpus in ends if over > now]
        left = fsum(gpus * (min(over, end) - now) for over, gpus in coming)  # in any order
        beyond = sum(gpus for _, gpus in ends) - sum(gpus for _, gpus in coming)
        return ExpectedLoans(left, beyond, min((over for over, _ in coming), default=inf))

    def _ends(self, name: str) -> Iterator[tuple[float, int]]:
        """Yield the estimated end of each borrowing job, and its GPUs."""
        book, jobs = self._book, self._context.core.state.jobs
        for job_id, gpus in self._loans[name].items():
            job = jobs[book.jobs[job_id].core]
            known = job.run_time < UNKNOWN_RUN_TIME
            yield job.end(job.run_time) if known else -inf, gpus


def _left(budget: float, spent: Spent, expected: ExpectedLoans) -> float:
    """Return the GPU-seconds of a budget that are neither lent nor expected to be lent."""
    left_over = budget * HOUR - spent.seconds - expected.left
    return left_over if left_over > NEAR else 0.0


def describe(lent: float, left: float, budget: float) -> str:
    """Describe what a pool has lent and is expected to lend, from GPU-seconds."""
    why = f"lent {decimal(lent / HOUR, 1)} of {budget:g} GPU-hours this month (UTC)"
    if left <= 0:
        return why
    return f"{why}; open loans are expected to add {decimal(left / HOUR, 1)}"
