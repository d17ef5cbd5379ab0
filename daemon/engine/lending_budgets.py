"""The engine's part for budgets of GPU-hours: what a pool has lent this month, and will have.

A budget counts as spent once what was lent and what is thought to be left of the loans under way,
by when the core believes that their jobs end, reach it: lending stops before and not after. While
jobs run as thought both together stay the same, so that a pool is looked at again where a loan
begins, ends or moves, and where a job runs longer. All that is remembered is in `Spent`, so that a
restart looks at no other moments.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import fsum, inf
from typing import NamedTuple

from daemon.engine.step import StepContext
from daemon.model.book import PoolRecord, Spent
from daemon.model.calendar import began, month_of
from daemon.model.timers import Timer, Timers
from sia.limits import SLOWED, UNKNOWN_RUN_TIME
from sia.wording import decimal

HOUR = 3600.0

HOURS = "hours"
"""Why a pool lends nothing whose budget is spent."""

NEAR = 1e-3
"""GPU-seconds that are as good as none: what the rounding of times since 1970 makes of a thousand
GPUs, so that whoever looks in between, as after a restart, finds the same."""

LOANS = frozenset(("loan_opened", "loan_moved", "loan_closed"))


class ExpectedLoans(NamedTuple):
    """What is thought of the loans under way of a pool, up to the end of the month."""

    left: float
    """GPU-seconds that are thought to come."""
    beyond: int
    """GPUs lent to jobs that run longer than was thought, or of which nobody knows how long."""
    following: float
    """When the next job will run longer than was thought; infinite if none can."""


class LendingBudgets:
    """Keeps pools' `spent`, by the rules from `Setup.rails` 2 on, and says who has none left."""

    def __init__(self, context: StepContext) -> None:
        """Work at this context. O(jobs on loans), if any pool is counted."""
        self._context, self._book = context, context.book
        self._read = 0  # notices of the step that are known
        self._loans: dict[str, dict[str, int]] = {}  # GPUs by job, of all pools with `spent`
        self._looks = Timers()
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
                self._looks.set(Timer(spent.look, HOURS, name))

    @property
    def due(self) -> float:
        """When a pool is to be looked at next; infinite if none is."""
        return self._looks.next

    def begin_step(self) -> None:
        """A step begins. O(1)."""
        self._read = 0

    def look(self, *, everywhere: bool) -> set[str]:
        """Say who has none left, before a decision; the names of those that were looked at.

        O(loans under way of these), and O(pools) for `everywhere`: budgets may be others.
        """
        now, names = self._context.now, self._changed()
        while (timer := self._looks.due(now)) is not None:
            names.add(timer.name)
        if everywhere:
            names |= {pool.name for pool in self._book.pools.values() if self._anew(pool, now)}
        for name in sorted(names):
            pool = self._book.pools[name]
            spent, thought = self._count(pool, now), self._thought(name, now)
            budget = pool.lend_budget_hours
            if budget is None or _missing(budget, spent, thought) > 0:
                pool.kept.pop(HOURS, None)
            else:  # in the words of the moment: people hear no more of it
                pool.kept.setdefault(HOURS, words_of(spent.seconds, thought.left, budget))
            self._look_again(pool, spent, thought)
        return names

    def end_step(self) -> None:
        """After the step's decisions. O(loans under way of pools that lend more or less)."""
        now = self._context.now
        for name in sorted(self._changed()):
            pool = self._book.pools[name]
            spent = self._count(pool, now)
            self._look_again(pool, spent, self._thought(name, now))

    def words(self, pool: PoolRecord, now: float) -> str:
        """What a pool with a budget has lent by now, and is thought to. O(its loans)."""
        spent, budget = pool.spent, pool.lend_budget_hours
        if spent is None or budget is None:
            return ""
        return words_of(spent.upto(now), self._thought(pool.name, now).left, budget)

    def check(self) -> None:
        """Assert that what is counted as lent is what the core lends. O(pools)."""
        counted = {pool.name for pool in self._book.pools.values() if pool.spent is not None}
        assert self._loans.keys() == counted
        for name, loans in self._loans.items():
            assert sum(loans.values()) == self._context.core.state.pools[name].lends, name

    def _anew(self, pool: PoolRecord, now: float) -> bool:
        """Whether a pool has, or had, a budget that nobody has looked at."""
        if pool.spent is None:
            return pool.lend_budget_hours is not None
        return pool.spent.look <= now

    def _changed(self) -> set[str]:
        """Pools that lend more or less by what was told since it was last asked."""
        book, found = self._book, set[str]()
        notices = self._context.notices
        for notice in notices[self._read :]:
            if notice.kind in LOANS:
                for lender in (notice.pool, notice.data.get("previous", "")):
                    if lender in self._loans:
                        self._hear(lender, notice.job)
                        found.add(lender)
        self._read = len(notices)
        return found & book.pools.keys()

    def _hear(self, lender: str, job_id: str) -> None:
        record = self._book.job(job_id)
        loans = {} if record is None else dict(record.loans)
        gpus = loans.get(lender, 0)
        if gpus and record is not None and record.spec.pool != lender:
            self._loans[lender][job_id] = gpus
        else:
            self._loans[lender].pop(job_id, None)

    def _count(self, pool: PoolRecord, now: float) -> Spent:
        """What a pool has lent this month, up to now."""
        spent, (month, _) = pool.spent, month_of(now)
        if spent is None:
            self._begin(pool.name)
            spent = pool.spent = Spent(month, 0.0, now)
        elif spent.month != month:
            since = max(spent.since, began(month))
            spent = pool.spent = Spent(month, 0.0, since, spent.lends)
        spent.seconds += spent.lends * (now - spent.since)
        spent.since, spent.lends = now, sum(self._loans[pool.name].values())
        return spent

    def _begin(self, name: str) -> None:
        """Count a pool's loans from now on. O(jobs)."""
        self._loans[name] = {}
        for record in self._book.loans():
            self._hear(name, record.spec.id)

    def _look_again(self, pool: PoolRecord, spent: Spent, thought: ExpectedLoans) -> None:
        """When it may have to be kept from lending, or no longer, if nothing else happens."""
        now, budget, kept = self._context.now, pool.lend_budget_hours, HOURS in pool.kept
        spent.look = month_of(now)[1]
        missing = inf if budget is None else _missing(budget, spent, thought)
        if kept is not (missing <= 0):
            spent.look = now
        elif not kept and budget is not None:
            grows = now + max(missing / thought.beyond, SLOWED) if thought.beyond else inf
            spent.look = min(spent.look, thought.following, grows)
        self._looks.set(Timer(spent.look, HOURS, pool.name))

    def _thought(self, name: str, now: float) -> ExpectedLoans:
        end, ends = month_of(now)[1], list(self._ends(name))
        coming = [(over, gpus) for over, gpus in ends if over > now]
        left = fsum(gpus * (min(over, end) - now) for over, gpus in coming)  # in any order
        beyond = sum(gpus for _, gpus in ends) - sum(gpus for _, gpus in coming)
        return ExpectedLoans(left, beyond, min((over for over, _ in coming), default=inf))

    def _ends(self, name: str) -> Iterator[tuple[float, int]]:
        """When the core believes that the jobs end to which a pool lends, and so many GPUs."""
        book, jobs = self._book, self._context.core.state.jobs
        for job_id, gpus in self._loans[name].items():
            job = jobs[book.jobs[job_id].core]
            known = job.run_time < UNKNOWN_RUN_TIME
            yield job.end(job.run_time) if known else -inf, gpus


def _missing(budget: float, spent: Spent, thought: ExpectedLoans) -> float:
    """GPU-seconds that it may lend beside what was lent and what is thought to be left."""
    missing = budget * HOUR - spent.seconds - thought.left
    return missing if missing > NEAR else 0.0


def words_of(lent: float, left: float, budget: float) -> str:
    """Why a pool lends no more, with GPU-seconds lent and thought to be left."""
    why = f"it has lent {decimal(lent / HOUR, 1)} of {budget:g} GPU-hours this month (UTC)"
    if left <= 0:
        return why
    return f"{why}, and what it lends now is thought to come to {decimal(left / HOUR, 1)} more"
