"""Guard rails: a pool whose budget is spent or whose forecasts drift stops lending.

There are two kinds of budgets. One limits the GPU-hours lent in a calendar month (UTC). The other
limits the percentage of a pool's jobs that may start later than without sharing (delayed jobs).
That percentage is of the jobs in the pool's account; if it was already exceeded when the budget was
set, only jobs since then count. The budget is spent if one more delayed job would exceed it, except
for the first delayed job: see `ON_CREDIT`. The accounts' virtual clocks tell which jobs are late. A
late job that is pending or running counts at once, before it has a verdict.
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
"""Kinds of reason why a pool must not lend, besides `HOURS`."""

ON_CREDIT = 1
"""Number of delayed jobs that a pool with a budget above 0 may have in any case. Without this, a
pool with a budget of 0.1 % would lend nothing before its 1,000th job."""

LATE_REST = 3600.0
"""Seconds for which a sharing group lends nothing after its last late job. Forecast errors come in
clusters (§5.4.1), and in a full pool many jobs wait for one. Without this pause, one job that
borrowed again within minutes made 600 jobs of Helios late (docs/operate/guardrails.md). Ten minutes
and a day have about the same effect."""

GroupKey = tuple[str, str]
"""Key of a sharing group: pools that lend to each other."""


class GuardRails(StepObserver):
    """Decide before each pass of the core which pools may lend, and report changes.

    The cost depends on the number of pools whose loans changed, that had a job start or end, or
    that must not lend. It does not depend on the number of pools with a budget.
    """

    def __init__(self, context: StepContext, accounts: Accounts) -> None:
        """Work on this context. O(pools); O(jobs) if a pool has a budget of GPU-hours."""
        self._context, self._book, self._accounts = context, context.book, accounts
        self._hours = LendingBudgets(context)
        self._place = {name: i for i, name in enumerate(context.book.pools)}
        self._following: dict[str, float] = {}  # by pool: when its next pending job will be late
        self._late: dict[str, str] = {}  # by pool with a late pending job: the text
        self._pausing_groups: set[GroupKey] = set()  # groups that pause after a late job
        self._any_budget = True  # whether any pool has, or had, a budget
        self._resting: set[str] = set()
        self._rests_until = inf  # when the first resting pool may lend again
        now = context.core.state.now
        self._first_look = now if now > -inf and any(map(_has_budget, self._pools)) else inf

    @property
    def _pools(self) -> Iterable[PoolRecord]:
        return self._book.pools.values()

    @property
    def due(self) -> float:
        """When a pool may have to stop lending, or may lend again, if nothing else happens."""
        following = min(self._following.values(), default=inf)
        return min(self._first_look, following, self._rests_until, self._hours.due)

    @property
    def any_budget(self) -> bool:
        """Whether a pool has a budget, or may get one back when an override ends. O(pools)."""
        return any(_has_budget(pool) or pool.override is not None for pool in self._pools)

    def set_forecast_health(self, news: ForecastHealth) -> Answer:
        """Set which pools have unreliable forecasts; those of all other pools are reliable."""
        self._context.recheck_pools = True
        changed = False
        for pool in self._pools:
            before = pool.drift, pool.forecast_from, pool.kept.get(DRIFT, "")
            pool.drift = news.why.get(pool.name, "")
            pool.forecast_from = news.since.get(pool.name, pool.forecast_from)
            _put(pool, DRIFT, "" if news.lend else pool.drift)
            changed |= before != (pool.drift, pool.forecast_from, pool.kept.get(DRIFT, ""))
        return Accepted(new=changed)

    def end_step(self) -> None:
        """Count the loans that the step opened and closed."""
        self._hours.end_step()

    def check(self) -> None:
        """Assert that the loans counted are those of the core. O(pools)."""
        self._hours.check()

    def before_pass(self) -> None:
        """Set which pools may lend. O(pools with a change)."""
        context, book = self._context, self._book
        self._first_look = inf
        if not (context.recheck_pools or self._any_budget):
            return
        accounts = self._accounts
        accounts.settle()  # so that the outcome of the last step counts
        moved, accounts.moved = accounts.moved, set()
        everywhere = context.recheck_pools
        checked = self._hours.check_budgets(everywhere=everywhere)
        soon = context.now + 2 * SLOWED
        moved.update(name for name, time in self._following.items() if time <= soon)
        for name in book.pools if everywhere else moved & book.pools.keys():
            self._check_pool(book.pools[name])
        if everywhere:
            self._pausing_groups = {
                _group(p) for p in self._pools if p.slowed_budget_pct is not None
            }
            self._any_budget = any(
                _has_budget(pool) or pool.spent is not None for pool in self._pools
            )
        names = {*book.pools} if everywhere else checked | moved & book.pools.keys()
        self._update(names)
        context.recheck_pools = False

    def _check_pool(self, pool: PoolRecord) -> None:
        """Check a pool's budget of delayed jobs, and note whether a pending job of it is late."""
        self._late.pop(pool.name, None)
        if pool.slowed_budget_pct is None:
            self._following.pop(pool.name, None)
            _put(pool, PERCENT, "")
            return
        why = self._check_slowed(pool, pool.slowed_budget_pct, self._context.now)
        if why is not None:
            self._late[pool.name] = why

    def _update(self, names: set[str]) -> None:
        """Suspend and resume lending in these pools and in groups with a late job."""
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
            if late or pool.kept or pool.told or pool.rests_until:  # this is so for few pools
                self._pause(pool, late.get(_group(pool), ""), now)
                self._announce(pool)
        rests = [book.pools[name].rests_until for name in self._resting]
        self._rests_until = min(rests, default=inf)

    def _check_slowed(self, pool: PoolRecord, budget: float, now: float) -> str | None:
        """Check the budget of delayed jobs.

        Return a text if a pending job of the pool is late, else None.
        """
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
            why = f"{_share(slowed, jobs)}; one more would exceed {budget:g} %"
            _put(pool, PERCENT, pool.kept.get(PERCENT) or why)
        else:
            _put(pool, PERCENT, "")
        return _late_reason(pool, waits) if waits else None

    def _pause(self, pool: PoolRecord, why: str, now: float) -> None:
        """Suspend a pool while a job of its group is late (`why`), and `LATE_REST` seconds more."""
        if why:
            pool.rests_until = now + LATE_REST
        if _group(pool) not in self._pausing_groups or pool.rests_until <= now:
            pool.rests_until = 0.0
            _put(pool, LATE, "")
            self._resting.discard(pool.name)
        else:
            _put(pool, LATE, pool.kept.get(LATE) or why)
            self._resting.add(pool.name)

    def _announce(self, pool: PoolRecord) -> None:
        """If a pool's reasons have changed, tell the core and add a notice."""
        reasons, announced = pool.kept, pool.told
        if reasons.keys() == announced.keys():
            return
        context, pool.told = self._context, dict(reasons)
        if bool(reasons) is not bool(announced):
            lend, borrow = core_limits(pool)
            context.events.append(
                PoolChanged(
                    context.now, pool.name, pool.quota, pool.cells, lend, borrow, pool.weight
                )
            )
        for key in (HOURS, PERCENT, LATE, DRIFT):
            if (key in reasons) is not (key in announced):
                kind = "lending_kept" if key in reasons else "lending_resumed"
                why = reasons.get(key) or self._resume_reason(pool, key)
                context.notify(kind, pool=pool.name, reason=key, why=why, lends=not reasons)

    def reasons(self, pool: PoolRecord, now: float) -> dict[str, str]:
        """Return why a pool must not lend as of `now`, and until when, by kind of reason.

        `pool.kept` has the texts from the time when each reason began. O(late jobs + the pool's
        loans).
        """
        self._accounts.settle()
        return {kind: self._reason(pool, kind, now) or why for kind, why in pool.kept.items()}

    def _reason(self, pool: PoolRecord, kind: str, now: float) -> str:
        """Return the current text of a reason; "" if the text in `pool.kept` is still correct."""
        if kind == HOURS:
            spent = self._hours.describe_pool(pool, now)
            return spent and f"{spent}; the next month begins at {moment(month_of(now)[1])}"
        if kind == PERCENT:
            return self._percent_reason(pool, now)
        return self._pause_reason(pool, now) if kind == LATE else ""

    def _percent_reason(self, pool: PoolRecord, now: float) -> str:
        account, budget = self._book.accounts.get(pool.name), pool.slowed_budget_pct
        if account is None or pool.marks is None or budget is None:
            return ""
        late = _slowed(pool.marks, account, now)
        share = _share(late.slowed, late.jobs)
        if not budget:
            return f"{share}; a budget of 0 % allows none, so the pool never lends"
        more = ceil((late.slowed + 1) * 100 / budget) - 1 - late.jobs
        if more <= 0:
            return f"{share}; lending resumes with the next scheduling pass"
        again = f"lending resumes after {counted(more, 'more job')} without a delayed one"
        return f"{share}; one more would exceed {budget:g} %; {again}"

    def _pause_reason(self, pool: PoolRecord, now: float) -> str:
        for other in self._pools:
            account = self._book.accounts.get(other.name)
            minds = _limits_slowed(other) and _group(other) == _group(pool)
            waits = late_of(account.clock, now).waiting if minds and account is not None else 0
            if waits:
                return _late_reason(other, waits)
        if not pool.rests_until:
            return ""
        return f"no job of its group is late now; lending resumes at {moment(pool.rests_until)}"

    def _resume_reason(self, pool: PoolRecord, kind: str) -> str:
        """Return the text that says why a reason has ended."""
        now, account = self._context.now, self._book.accounts.get(pool.name)
        if kind == DRIFT:
            return "its forecasts are reliable again"
        if kind == LATE:
            if any(_group(p) == _group(pool) for p in self._pools if _limits_slowed(p)):
                return f"no job of its group was late for {duration(LATE_REST)}"
            return "no pool of its group has a budget of delayed jobs now"
        if kind == HOURS and pool.lend_budget_hours is not None:
            return self._hours.describe_pool(pool, now)
        if (
            kind == PERCENT
            and _limits_slowed(pool)
            and pool.marks is not None
            and account is not None
        ):
            late = _slowed(pool.marks, account, now)
            share = _share(late.slowed, late.jobs)
            return f"{share}; one more would not exceed {pool.slowed_budget_pct:g} %"
        return "the budget was removed"


class _Slowed(NamedTuple):
    """Delayed jobs and all jobs of a pool since its marks, including late ones that have not ended.

    `waits` is the number of late pending jobs; `following` is when the next job will be late
    (seconds).
    """

    slowed: int
    jobs: int
    waits: int
    following: float


def _slowed(marks: tuple[int, int], account: Account, now: float) -> _Slowed:
    waits, runs, following = late_of(account.clock, now)
    late = waits + runs
    slowed, jobs = account.slowed - marks[1] + late, account.jobs - marks[0] + late
    return _Slowed(slowed, jobs, waits, following)


def _share(slowed: int, jobs: int) -> str:
    return f"{slowed:,} of its {counted(jobs, 'job')} started later than without sharing"


def _late_reason(pool: PoolRecord, waits: int) -> str:
    return (
        f"{counted(waits, 'pending job')} of {pool.name} would already run without sharing; "
        f"lending resumes {duration(LATE_REST)} after the last of them has started"
    )


def _limits_slowed(pool: PoolRecord) -> bool:
    return pool.slowed_budget_pct is not None


def _has_budget(pool: PoolRecord) -> bool:
    return pool.lend_budget_hours is not None or pool.slowed_budget_pct is not None


def _put(pool: PoolRecord, reason: str, why: str) -> None:
    if why:
        pool.kept[reason] = why
    else:
        pool.kept.pop(reason, None)


def _group(pool: PoolRecord) -> GroupKey:
    """Return the key of a pool's sharing group."""
    return pool.group, "" if pool.share else pool.name
