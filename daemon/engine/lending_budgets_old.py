"""Budgets of GPU-hours by the rules of older journals: what was lent counts, and nothing besides.

All pools with a budget are looked at in each step, as those that wrote these journals did: the
same sums in the same order. No new journal is decided by these.
"""

from __future__ import annotations

from math import inf

from daemon.engine.lending_budgets import HOUR, HOURS, words_of
from daemon.engine.step import StepContext
from daemon.model.book import PoolRecord, Spent
from daemon.model.calendar import began, month_of
from sia.limits import SLOWED


class OldHours:
    """Keeps pools' `spent`, by the rules of `Setup.rails` 0 and 1, and says who has none left."""

    def __init__(self, desk: StepContext) -> None:
        """Work at this desk."""
        self._desk, self._book = desk, desk.book
        self._look_by = self._spent_by = inf
        self._count_of = [pool for pool in desk.book.pools.values() if pool.spent is not None]

    @property
    def due(self) -> float:
        """When it wants to look again at the latest."""
        return min(self._look_by, self._spent_by)

    def pass_time(self) -> None:
        """Before anything happens: what has been lent up to now. O(pools that ever had hours).

        Between two steps nothing changes, so that it is what the ledger says.
        """
        if self._book.setup.rails:
            for pool in self._count_of:
                self._spent(pool)

    def look(self, *, everywhere: bool) -> set[str]:
        """Say who has none left; they are looked at all. O(pools)."""
        self._look_by = inf
        for pool in self._book.pools.values() if everywhere else ():
            if pool.lend_budget_hours is not None:
                self._look_at(pool, pool.lend_budget_hours, self._desk.now)
            else:
                pool.kept.pop(HOURS, None)
        return set()

    def end_step(self) -> None:
        """After the step's decisions: when hours will be spent, as things are."""
        self._spent_by = inf
        for pool in self._count_of if self._book.setup.rails else ():
            spent, budget = pool.spent, pool.lend_budget_hours
            lends = self._desk.core.state.pools[pool.name].lends
            if lends and spent is not None and budget is not None and HOURS not in pool.kept:
                left = budget * HOUR - spent.seconds
                self._spent_by = min(self._spent_by, spent.since + max(left / lends, SLOWED))

    def words(self, pool: PoolRecord, now: float) -> str:
        """What a pool with a budget has lent by now."""
        spent, budget = pool.spent, pool.lend_budget_hours
        if spent is None or budget is None:
            return ""
        lends = self._desk.core.state.pools[pool.name].lends
        return words_of(spent.seconds + lends * max(0.0, now - spent.since), 0.0, budget)

    def check(self) -> None:
        """Nothing is kept that could differ."""

    def _spent(self, pool: PoolRecord) -> Spent:
        """What a pool has lent this month, up to now."""
        now, spent = self._desk.now, pool.spent
        if spent is None:
            self._count_of.append(pool)
            spent = pool.spent = Spent(month_of(now)[0], 0.0, now)
        if spent.since == now:
            return spent
        month, _ = month_of(now)
        if spent.month != month:
            spent = pool.spent = Spent(month, 0.0, max(spent.since, began(month)))
        spent.seconds += self._desk.core.state.pools[pool.name].lends * (now - spent.since)
        spent.since, spent.lends = now, 0
        return spent

    def _look_at(self, pool: PoolRecord, budget: float, now: float) -> None:
        spent = self._spent(pool) if self._book.setup.rails else self._spent_before(pool, now)
        left = budget * HOUR - spent.seconds
        if left <= 0:
            pool.kept.setdefault(HOURS, words_of(spent.seconds, 0.0, budget))
        else:
            pool.kept.pop(HOURS, None)
            if spent.lends:
                self._look_by = min(self._look_by, now + max(left / spent.lends, SLOWED))
        self._look_by = min(self._look_by, month_of(now)[1])

    def _spent_before(self, pool: PoolRecord, now: float) -> Spent:
        """The same by the rules of the first journals, whose loans counted from look to look."""
        month, _ = month_of(now)
        spent = pool.spent
        if spent is None or spent.month != month:
            spent = pool.spent = Spent(month, 0.0, now)
        spent.seconds += spent.lends * (now - spent.since)
        spent.since, spent.lends = now, self._desk.core.state.pools[pool.name].lends
        return spent
