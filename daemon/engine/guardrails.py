"""The engine's part for guard rails: pools whose budget is spent or whose forecasts drift lend not.

A budget is GPU-hours lent in a calendar month (UTC), or the percentage of a pool's jobs that may
begin later than in the pool alone: of all that its account knows, or, where that is more already,
since the budget was set. It is spent where one more job would be too many, but for a first one:
`ON_CREDIT`. Who is late is known from the accounts' clocks; jobs that are late and still wait, or
run, count at once, before a verdict.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil, inf
from typing import NamedTuple

from daemon.engine.lending_budgets import HOURS, LendingBudgets
from daemon.engine.step import StepContext, StepObserver
from daemon.lending.accounts import Accounts
from daemon.lending.lateness import late_of
from daemon.model.account import Account
from daemon.model.book import PoolRecord, core_limits
from daemon.model.calendar import moment, month_of
from daemon.model.inputs import ForecastHealth
from daemon.model.outputs import Accepted, Answer
from sia.events import PoolChanged
from sia.limits import SLOWED
from sia.wording import counted, duration

PERCENT, LATE, DRIFT = "slowed", "late", "drift"
"""Why a pool lends nothing, besides `HOURS`."""

ON_CREDIT = 1
"""Slowed jobs that a pool may have before there are as many jobs as these are a share of: were
there none, 0.1 % would lend nothing up to the pool's 1,000th job, however well all goes."""

LATE_REST = 3600.0
"""Seconds for which a group lends nothing after the last job in it was late: errors come in
clusters (§5.4.1), and in a full pool all wait for one. Without, 600 of Helios's jobs were late by
one that borrowed again within minutes (docs/guardrails.md); ten minutes and a day do as well."""

GroupKey = tuple[str, str]
"""Pools that lend to each other."""


class GuardRails(StepObserver):
    """Looks before each decision who may lend, and tells the core and people where that changes.

    Of pools that nothing has happened to it asks nothing: not how many have a budget counts, but
    how many lend more or less, had a job begin or end, or are kept from lending.
    """

    def __init__(self, context: StepContext, accounts: Accounts) -> None:
        """Work at this context. O(pools), and O(jobs) where any has a budget of hours."""
        self._context, self._book, self._accounts = context, context.book, accounts
        self._hours = LendingBudgets(context)
        self._place = {name: i for i, name in enumerate(context.book.pools)}
        self._following: dict[str, float] = {}  # when a job that waits will be late, by pool
        self._late: dict[str, str] = {}  # pools with a job that waits and is late, in words
        self._minded: set[GroupKey] = set()  # groups that rest after such a job
        self._may = True  # whether any pool has a budget, or had one
        self._resting: set[str] = set()
        self._rests_until = inf  # the first of them
        now = context.core.state.now
        self._begin_by = now if now > -inf and any(map(_has_budget, self._pools)) else inf

    @property
    def _pools(self) -> Iterable[PoolRecord]:
        return self._book.pools.values()

    @property
    def due(self) -> float:
        """When it wants to look again at the latest."""
        following = min(self._following.values(), default=inf)
        return min(self._begin_by, following, self._rests_until, self._hours.due)

    @property
    def any_budget(self) -> bool:
        """Whether any pool has a budget, or may have one again once an override ends. O(pools)."""
        return any(_has_budget(pool) or pool.override is not None for pool in self._pools)

    def set_forecast_health(self, news: ForecastHealth) -> Answer:
        """From now on forecasts are not well in these pools, and in no others."""
        self._context.recheck_pools = True
        changed = False
        for pool in self._pools:
            why = news.why.get(pool.name, "")
            changed |= pool.kept.get(DRIFT, "") != why
            _put(pool, DRIFT, why)
        return Accepted(new=changed)

    def begin_step(self) -> None:
        """Before anything happens."""
        self._hours.begin_step()

    def end_step(self) -> None:
        """After the step's decisions."""
        self._hours.end_step()

    def check(self) -> None:
        """Assert that it counts what the core does. O(pools)."""
        self._hours.check()

    def before_pass(self) -> None:
        """Say who lends nothing from now on, or again. O(pools of which anything is otherwise)."""
        context, book = self._context, self._book
        self._begin_by = inf
        if not (context.recheck_pools or self._may):
            return
        accounts = self._accounts
        accounts.settle()  # so that the last step's outcome counts
        moved, accounts.moved = accounts.moved, set()
        everywhere = context.recheck_pools
        looked = self._hours.look(everywhere=everywhere)
        soon = context.now + 2 * SLOWED
        moved.update(name for name, time in self._following.items() if time <= soon)
        for name in book.pools if everywhere else moved & book.pools.keys():
            self._look_at(book.pools[name])
        if everywhere:
            self._minded = {_group(p) for p in self._pools if p.slowed_budget_pct is not None}
            self._may = any(_has_budget(pool) or pool.spent is not None for pool in self._pools)
        names = {*book.pools} if everywhere else looked | moved & book.pools.keys()
        self._settle(names)
        context.recheck_pools = False

    def _look_at(self, pool: PoolRecord) -> None:
        """Who of a pool is late, and whether that is too much."""
        self._late.pop(pool.name, None)
        if pool.slowed_budget_pct is None:
            self._following.pop(pool.name, None)
            _put(pool, PERCENT, "")
            return
        why = self._look_at_slowed(pool, pool.slowed_budget_pct, self._context.now)
        if why is not None:
            self._late[pool.name] = why

    def _settle(self, names: set[str]) -> None:
        """Have groups rest, and tell of pools, in their order."""
        book, now = self._book, self._context.now
        late: dict[GroupKey, str] = {}
        for name in sorted(self._late, key=self._place.__getitem__):
            late[_group(book.pools[name])] = self._late[name]
        if late:
            names |= {pool.name for pool in self._pools if _group(pool) in late}
        if late or self._rests_until <= now:
            names |= self._resting
        for name in sorted(names, key=self._place.__getitem__):
            pool = book.pools[name]
            if late or pool.kept or pool.told or pool.rests_until:  # most have nothing to do
                self._rest(pool, late.get(_group(pool), ""), now)
                self._tell(pool)
        rests = [book.pools[name].rests_until for name in self._resting]
        self._rests_until = min(rests, default=inf)

    def _look_at_slowed(self, pool: PoolRecord, budget: float, now: float) -> str | None:
        """Who of it is late and waits, in words, if one does."""
        account = self._book.accounts.get(pool.name)
        if account is None:
            return None
        if pool.marks is None or pool.marks[0] > account.jobs:
            good = account.slowed * 100 <= budget * account.jobs
            pool.marks = (0, 0) if good else (account.jobs, account.slowed)
        slowed, jobs, waits, following = _slowed(pool.marks, account, now)
        self._following.pop(pool.name, None)
        if following < inf:
            self._following[pool.name] = following
        allowed = budget * (jobs + 1)
        if budget:
            allowed = max(allowed, 100 * ON_CREDIT)
        if (slowed + 1) * 100 > allowed:
            why = f"{_share(pool, slowed, jobs)}: one more would be more than {budget:g} %"
            _put(pool, PERCENT, pool.kept.get(PERCENT) or why)
        else:
            _put(pool, PERCENT, "")
        return _late_words(pool, waits) if waits else None

    def _rest(self, pool: PoolRecord, why: str, now: float) -> None:
        """Keep a pool while somebody of its group is late, as `why` says, and for a while after."""
        if why:
            pool.rests_until = now + LATE_REST
        if _group(pool) not in self._minded or pool.rests_until <= now:
            pool.rests_until = 0.0
            _put(pool, LATE, "")
            self._resting.discard(pool.name)
        else:
            _put(pool, LATE, pool.kept.get(LATE) or why)
            self._resting.add(pool.name)

    def _tell(self, pool: PoolRecord) -> None:
        """Have the core and people know where a pool's reasons are others than they were."""
        kept, told = pool.kept, pool.told
        if kept.keys() == told.keys():
            return
        context, pool.told = self._context, dict(kept)
        if bool(kept) is not bool(told):
            lend, borrow = core_limits(pool)
            context.events.append(
                PoolChanged(
                    context.now, pool.name, pool.quota, pool.cells, lend, borrow, pool.weight
                )
            )
        for key in (HOURS, PERCENT, LATE, DRIFT):
            if (key in kept) is not (key in told):
                kind = "lending_kept" if key in kept else "lending_resumed"
                why = kept.get(key) or self._again(pool, key)
                context.notify(kind, pool=pool.name, reason=key, why=why, lends=not kept)

    def reasons(self, pool: PoolRecord, now: float) -> dict[str, str]:
        """Why a pool lends nothing, by kind, in words of this moment, and until when.

        `pool.kept` has the words with which it began. O(what is late, and the pool's loans).
        """
        self._accounts.settle()
        return {kind: self._word(pool, kind, now) or why for kind, why in pool.kept.items()}

    def _word(self, pool: PoolRecord, kind: str, now: float) -> str:
        """Nothing where no more is known than what was said first."""
        if kind == HOURS:
            said = self._hours.words(pool, now)
            return said and f"{said}; the next month begins at {moment(month_of(now)[1])}"
        if kind == PERCENT:
            return self._percent_words(pool, now)
        return self._rest_words(pool, now) if kind == LATE else ""

    def _percent_words(self, pool: PoolRecord, now: float) -> str:
        account, budget = self._book.accounts.get(pool.name), pool.slowed_budget_pct
        if account is None or pool.marks is None or budget is None:
            return ""
        late = _slowed(pool.marks, account, now)
        said = _share(pool, late.slowed, late.jobs)
        if not budget:
            return f"{said}, and none may: at 0 % it never lends"
        more = ceil((late.slowed + 1) * 100 / budget) - 1 - late.jobs
        if more <= 0:
            return f"{said}: it lends again with the next decision"
        again = f"it lends again after {more:,} more of which none does"
        return f"{said}: one more would be more than {budget:g} %; {again}"

    def _rest_words(self, pool: PoolRecord, now: float) -> str:
        for other in self._pools:
            account = self._book.accounts.get(other.name)
            minds = _minds(other) and _group(other) == _group(pool)
            waits = late_of(account.clock, now).waiting if minds and account is not None else 0
            if waits:
                return _late_words(other, waits)
        if not pool.rests_until:
            return ""
        return f"no job of its group is late any more: it lends again at {moment(pool.rests_until)}"

    def _again(self, pool: PoolRecord, kind: str) -> str:
        """Why that keeps a pool from lending no more."""
        now, account = self._context.now, self._book.accounts.get(pool.name)
        if kind == DRIFT:
            return "its forecasts are wrong too often no more"
        if kind == LATE:
            if any(_group(p) == _group(pool) for p in self._pools if _minds(p)):
                return f"no job of its group was late for {duration(LATE_REST)}"
            return "no pool of its group has such a budget any more"
        if kind == HOURS and pool.lend_budget_hours is not None:
            return self._hours.words(pool, now)
        if kind == PERCENT and _minds(pool) and pool.marks is not None and account is not None:
            late = _slowed(pool.marks, account, now)
            said = _share(pool, late.slowed, late.jobs)
            return f"{said}: with one more no more than {pool.slowed_budget_pct:g} %"
        return "it has no such budget any more"


class _Slowed(NamedTuple):
    """Jobs of a pool since its marks, with those that are late now; the next one will be late."""

    slowed: int
    jobs: int
    waits: int
    following: float


def _slowed(marks: tuple[int, int], account: Account, now: float) -> _Slowed:
    waits, runs, following = late_of(account.clock, now)
    late = waits + runs
    slowed, jobs = account.slowed - marks[1] + late, account.jobs - marks[0] + late
    return _Slowed(slowed, jobs, waits, following)


def _share(pool: PoolRecord, slowed: int, jobs: int) -> str:
    return f"{slowed:,} of its {counted(jobs, 'job')} began later than in {pool.name} alone"


def _late_words(pool: PoolRecord, waits: int) -> str:
    return (
        f"{counted(waits, 'job')} of {pool.name} would run by now in {pool.name} alone: "
        f"nothing is lent until {duration(LATE_REST)} after the last of these"
    )


def _minds(pool: PoolRecord) -> bool:
    return pool.slowed_budget_pct is not None


def _has_budget(pool: PoolRecord) -> bool:
    return pool.lend_budget_hours is not None or pool.slowed_budget_pct is not None


def _put(pool: PoolRecord, reason: str, why: str) -> None:
    if why:
        pool.kept[reason] = why
    else:
        pool.kept.pop(reason, None)


def _group(pool: PoolRecord) -> GroupKey:
    """Whom it lends with."""
    return pool.group, "" if pool.share else pool.name
