"""The engine's part for guard rails: pools whose budget is spent or whose forecasts drift lend not.

A budget is GPU-hours lent in a calendar month (UTC), or the percentage of a pool's jobs that may
begin later than in the pool alone: of all that its account knows, or, where that is more already,
since the budget was set. It is spent where one more job would be too many, but for a first one:
`ON_CREDIT`. Who is late is known from the accounts' clocks; jobs that are late and still wait, or
run, count at once, before a verdict.
"""

from __future__ import annotations

from functools import lru_cache
from math import inf

from daemon.answers import Accepted, Answer
from daemon.book import PoolRecord, Spent, core_limits
from daemon.desk import Desk
from daemon.inputs import Drifted
from daemon.lateness import late_of
from replay.text import counted, decimal, duration
from sia.events import PoolChanged
from sia.limits import SLOWED

HOUR = 3600.0
DAY = 86400.0

HOURS, PERCENT, LATE, DRIFT = "hours", "slowed", "late", "drift"
"""Why a pool lends nothing, in the order in which it is said."""

ON_CREDIT = 1
"""Slowed jobs that a pool may have before there are as many jobs as these are a share of: were
there none, 0.1 % would lend nothing up to the pool's 1,000th job, however well all goes."""

LATE_REST = 3600.0
"""Seconds for which a group lends nothing after the last job in it was late: errors come in
clusters (§5.4.1), and in a full pool all wait for one. Without, 600 of Helios's jobs were late by
one that borrowed again within minutes (docs/guardrails.md); ten minutes and a day do as well."""


class Rails:
    """Looks before each decision who may lend, and tells the core and people where that changes."""

    def __init__(self, desk: Desk) -> None:
        """Work at this desk."""
        self._desk, self._book = desk, desk.book
        self._look_by = self._spent_by = inf
        now = desk.core.state.now
        if now > -inf and any(map(_has_budget, desk.book.pools.values())):
            self._look_by = now
        self._count_of = [pool for pool in desk.book.pools.values() if pool.spent is not None]

    @property
    def due(self) -> float:
        """When it wants to look again at the latest."""
        return min(self._look_by, self._spent_by)

    @property
    def may_look(self) -> bool:
        """Whether any pool has a budget, or may have one again once an override ends. O(pools)."""
        pools = self._book.pools.values()
        return any(_has_budget(pool) or pool.override is not None for pool in pools)

    def drifted(self, news: Drifted) -> Answer:
        """From now on forecasts are not well in these pools, and in no others."""
        self._desk.watched = True
        changed = False
        for pool in self._book.pools.values():
            why = news.why.get(pool.name, "")
            changed |= pool.kept.get(DRIFT, "") != why
            _put(pool, DRIFT, why)
        return Accepted(new=changed)

    def pass_time(self) -> None:
        """Before anything happens: what has been lent up to now. O(pools that ever had hours).

        Between two steps nothing changes, so that it is what the ledger says.
        """
        if self._book.setup.rails:
            for pool in self._count_of:
                self._spent(pool)

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

    def end_step(self) -> None:
        """After the step's decisions: when hours will be spent, as things are."""
        self._spent_by, book = inf, self._book
        for pool in self._count_of if book.setup.rails else ():
            spent, budget = pool.spent, pool.lend_budget_hours
            lends = self._desk.core.state.pools[pool.name].lends
            if lends and spent is not None and budget is not None and HOURS not in pool.kept:
                left = budget * HOUR - spent.seconds
                self._spent_by = min(self._spent_by, spent.since + max(left / lends, SLOWED))

    def look(self) -> None:
        """Say who lends nothing from now on, or again. O(pools with a budget)."""
        book, now = self._book, self._desk.now
        self._look_by = inf
        if not self._desk.watched:
            return
        self._desk.accounts.settle()  # what the last step has told them counts by now
        late: dict[tuple[str, str], str] = {}
        for pool in book.pools.values():
            if pool.lend_budget_hours is not None:
                self._look_at_hours(pool, pool.lend_budget_hours, now)
            elif pool.kept:
                _put(pool, HOURS, "")
            if pool.slowed_budget_pct is None:
                if pool.kept:
                    _put(pool, PERCENT, "")
            elif (why := self._look_at_slowed(pool, pool.slowed_budget_pct, now)) is not None:
                late[_group(pool)] = why
        minded = {_group(p) for p in book.pools.values() if p.slowed_budget_pct is not None}
        for pool in book.pools.values():
            if late or pool.kept or pool.told or pool.rests_until:  # most have nothing to do
                group = _group(pool)
                self._rest(pool, late.get(group, ""), now, minded=group in minded)
                self._tell(pool)
        self._desk.watched = any(p.kept or _has_budget(p) for p in book.pools.values())

    def _look_at_hours(self, pool: PoolRecord, budget: float, now: float) -> None:
        spent = self._spent(pool) if self._book.setup.rails else self._spent_before(pool, now)
        left = budget * HOUR - spent.seconds
        if left <= 0:
            used = decimal(spent.seconds / HOUR, 1)
            why = f"it has lent {used} of {budget:g} GPU-hours this month (UTC)"
            # In the words of the moment: what is under way makes it more, and nobody hears again.
            _put(pool, HOURS, pool.kept.get(HOURS) or why)
        else:
            _put(pool, HOURS, "")
            if spent.lends:
                self._look_by = min(self._look_by, now + max(left / spent.lends, SLOWED))
        self._look_by = min(self._look_by, month_of(now)[1])

    def _spent_before(self, pool: PoolRecord, now: float) -> Spent:
        """The same by the rules of older journals, whose loans counted from look to look."""
        month, _ = month_of(now)
        spent = pool.spent
        if spent is None or spent.month != month:
            spent = pool.spent = Spent(month, 0.0, now)
        spent.seconds += spent.lends * (now - spent.since)
        spent.since, spent.lends = now, self._desk.core.state.pools[pool.name].lends
        return spent

    def _look_at_slowed(self, pool: PoolRecord, budget: float, now: float) -> str | None:
        """Who of it is late and waits, in words, if one does."""
        account = self._book.accounts.get(pool.name)
        if account is None:
            return None
        if pool.marks is None or pool.marks[0] > account.jobs:
            good = account.slowed * 100 <= budget * account.jobs
            pool.marks = (0, 0) if good else (account.jobs, account.slowed)
        waits, runs, first = late_of(account.clock, now)
        slowed = account.slowed - pool.marks[1] + waits + runs
        jobs = account.jobs - pool.marks[0] + waits + runs
        self._look_by = min(self._look_by, first)
        allowed = budget * (jobs + 1)
        if budget and self._book.setup.rails:
            allowed = max(allowed, 100 * ON_CREDIT)
        if (slowed + 1) * 100 > allowed:
            why = (
                f"{slowed:,} of its {counted(jobs, 'job')} began later than in {pool.name} alone: "
                f"one more would be more than {budget:g} %"
            )
            _put(pool, PERCENT, pool.kept.get(PERCENT) or why)
        else:
            _put(pool, PERCENT, "")
        if not waits:
            return None
        return (
            f"{counted(waits, 'job')} of {pool.name} would run by now in {pool.name} alone: "
            f"nothing is lent until {duration(LATE_REST)} after the last of these"
        )

    def _rest(self, pool: PoolRecord, why: str, now: float, *, minded: bool) -> None:
        """Keep a pool while somebody of its group is late, as `why` says, and for a while after."""
        if not self._book.setup.rails:
            _put(pool, LATE, why)
            return
        if why:
            pool.rests_until = now + LATE_REST
        if not minded or pool.rests_until <= now:
            pool.rests_until = 0.0
            _put(pool, LATE, "")
        else:
            _put(pool, LATE, pool.kept.get(LATE) or why)
            self._look_by = min(self._look_by, pool.rests_until)

    def _tell(self, pool: PoolRecord) -> None:
        """Have the core and people know where a pool's reasons are others than they were."""
        kept, told = pool.kept, pool.told
        if kept.keys() == told.keys():
            return
        desk, pool.told = self._desk, dict(kept)
        if bool(kept) is not bool(told):
            lend, borrow = core_limits(pool)
            desk.events.append(
                PoolChanged(desk.now, pool.name, pool.quota, pool.cells, lend, borrow, pool.weight)
            )
        for key in (HOURS, PERCENT, LATE, DRIFT):
            if (key in kept) is not (key in told):
                kind = "lending_kept" if key in kept else "lending_resumed"
                why = kept.get(key) or told[key]
                desk.tell(kind, pool=pool.name, reason=key, why=why, lends=not kept)


def _has_budget(pool: PoolRecord) -> bool:
    return pool.lend_budget_hours is not None or pool.slowed_budget_pct is not None


def _put(pool: PoolRecord, reason: str, why: str) -> None:
    if why:
        pool.kept[reason] = why
    else:
        pool.kept.pop(reason, None)


def _group(pool: PoolRecord) -> tuple[str, str]:
    """Whom it lends with."""
    return pool.group, "" if pool.share else pool.name


@lru_cache(maxsize=4)  # each pool asks for the same in a step
def month_of(now: float) -> tuple[int, float]:
    """The number of a time's calendar month (UTC), and when it ends: seconds since the epoch."""
    year, month = _civil(int(now // DAY))
    following = (year, month + 1) if month < 12 else (year + 1, 1)
    return year * 12 + month - 1, _days(*following) * DAY


def began(month: int) -> float:
    """When the month of that number began."""
    return _days(month // 12, month % 12 + 1) * DAY


def _civil(days: int) -> tuple[int, int]:
    """The year and month of a day since 1970, as calendars have it since 1582."""
    shifted = days + 719468  # since 0000-03-01: leap days then end years
    era, of_era = divmod(shifted, 146097)
    year = (of_era - of_era // 1460 + of_era // 36524 - of_era // 146096) // 365
    of_year = of_era - (365 * year + year // 4 - year // 100)
    month = (5 * of_year + 2) // 153 + 3
    return era * 400 + year + (month > 12), month - 12 * (month > 12)


def _days(year: int, month: int) -> int:
    """Days from 1970 to the first of a month."""
    year -= month <= 2
    era, of_era = divmod(year, 400)
    of_year = (153 * (month - 3 if month > 2 else month + 9) + 2) // 5
    return era * 146097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719468
