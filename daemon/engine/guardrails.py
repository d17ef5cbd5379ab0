"""Guard rails: a pool whose budget is spent or whose forecasts drift stops lending.

There are three kinds of budgets. One limits the GPU-hours lent in a calendar month (UTC). One
limits the minutes by which the jobs that the pool starts in such a month start later than without
sharing. One limits the percentage of a pool's jobs that start later (delayed jobs).
That percentage is of the jobs in the pool's account; if it was already exceeded when the budget was
set, only jobs since then count. The budget is spent if one more delayed job would exceed it, except
for the first delayed job: see `ON_CREDIT`. The accounts' virtual clocks tell which jobs are late. A
late job that is pending or running counts at once, before it has a verdict.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil, inf

from daemon.engine.lending_budgets import HOURS, LendingBudgets
from daemon.engine.step import StepContext, StepObserver
from daemon.lending.accounts import Accounts
from daemon.lending.lateness import Late, late_of
from daemon.model.account import Account
from daemon.model.book import PoolRecord, core_limits
from daemon.model.calendar import moment, month_of
from daemon.model.inputs import ForecastHealth
from daemon.model.outputs import Accepted, Answer
from sia.events import PoolChanged
from sia.limits import SLOWED
from sia.wording import counted, decimal, duration

PERCENT, MINUTES, LATE, DRIFT = "slowed", "minutes", "late", "drift"
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
        self._month_ends = inf  # when budgets of minutes begin anew, if any
        now = context.core.state.now
        self._first_look = now if now > -inf and any(map(_has_budget, self._pools)) else inf

    @property
    def _pools(self) -> Iterable[PoolRecord]:
        return self._book.pools.values()

    @property
    def due(self) -> float:
        """When a pool may have to stop lending, or may lend again, if nothing else happens."""
        following = min(self._following.values(), default=inf)
        return min(
            self._first_look, following, self._rests_until, self._month_ends, self._hours.due
        )

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
        if self._month_ends <= context.now:
            moved.update(p.name for p in self._pools if p.slowed_budget_minutes is not None)
        for name in book.pools if everywhere else moved & book.pools.keys():
            self._check_pool(book.pools[name])
        if everywhere:
            self._pausing_groups = {_group(p) for p in self._pools if _limits_slowed(p)}
            self._any_budget = any(
                _has_budget(pool) or pool.spent is not None for pool in self._pools
            )
        if everywhere or self._month_ends <= context.now:
            counted_by_month = any(p.slowed_budget_minutes is not None for p in self._pools)
            self._month_ends = month_of(context.now)[1] if counted_by_month else inf
        names = {*book.pools} if everywhere else checked | moved & book.pools.keys()
        self._update(names)
        context.recheck_pools = False

    def _check_pool(self, pool: PoolRecord) -> None:
        """Check a pool's budgets of delays, and note whether a pending job of it is late."""
        self._late.pop(pool.name, None)
        self._following.pop(pool.name, None)
        account, now = self._book.accounts.get(pool.name), self._context.now
        if account is None or not _limits_slowed(pool):
            _put(pool, PERCENT, "")
            _put(pool, MINUTES, "")
            return
        late = late_of(account.clock, now)
        if late.following < inf:
            self._following[pool.name] = late.following
        if late.waiting:
            self._late[pool.name] = _late_reason(pool, late.waiting)
        _put(pool, PERCENT, _percent_spent(pool, account, late))
        _put(pool, MINUTES, _minutes_spent(pool, account, late, now))

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
        for key in (HOURS, PERCENT, MINUTES, LATE, DRIFT):
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
        if kind == MINUTES:
            return self._minutes_reason(pool, now)
        return self._pause_reason(pool, now) if kind == LATE else ""

    def _percent_reason(self, pool: PoolRecord, now: float) -> str:
        account, budget = self._book.accounts.get(pool.name), pool.slowed_budget_pct
        if account is None or pool.marks is None or budget is None:
            return ""
        slowed, jobs = _slowed(pool.marks, account, late_of(account.clock, now))
        share = _share(slowed, jobs)
        if not budget:
            return f"{share}; a budget of 0 % allows none, so the pool never lends"
        more = ceil((slowed + 1) * 100 / budget) - 1 - jobs
        if more <= 0:
            return f"{share}; lending resumes with the next scheduling pass"
        again = f"lending resumes after {counted(more, 'more job')} without a delayed one"
        return f"{share}; one more would exceed {budget:g} %; {again}"

    def delayed_minutes(self, pool: PoolRecord, now: float) -> float | None:
        """Return the minutes of delay of a pool this month; None without such a budget."""
        self._accounts.settle()
        account = self._book.accounts.get(pool.name)
        if account is None or pool.delayed_from is None or pool.slowed_budget_minutes is None:
            return None if pool.slowed_budget_minutes is None else 0.0
        return _delayed(pool.delayed_from, account, late_of(account.clock, now)) / 60

    def _minutes_reason(self, pool: PoolRecord, now: float) -> str:
        delays = self._delays(pool, now)
        if not pool.slowed_budget_minutes:
            return f"{delays}; a budget of 0 min allows none, so the pool never lends"
        return f"{delays}; the next month begins at {moment(month_of(now)[1])}"

    def _delays(self, pool: PoolRecord, now: float) -> str:
        return _minutes(pool, 60 * (self.delayed_minutes(pool, now) or 0.0))

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
        why = "the budget was removed"
        if kind == HOURS and pool.lend_budget_hours is not None:
            why = self._hours.describe_pool(pool, now)
        elif kind == MINUTES and pool.slowed_budget_minutes is not None:
            why = self._delays(pool, now)
        elif (
            kind == PERCENT
            and pool.slowed_budget_pct is not None
            and pool.marks is not None
            and account is not None
        ):
            slowed, jobs = _slowed(pool.marks, account, late_of(account.clock, now))
            share = _share(slowed, jobs)
            why = f"{share}; one more would not exceed {pool.slowed_budget_pct:g} %"
        return why


def _percent_spent(pool: PoolRecord, account: Account, late: Late) -> str:
    """Return why a pool's budget of delayed jobs is spent; "" if it is not or there is none.

    An existing text stays, because it was announced in a notice.
    """
    budget = pool.slowed_budget_pct
    if budget is None:
        return ""
    if pool.marks is None or pool.marks[0] > account.jobs:
        good = account.slowed * 100 <= budget * account.jobs
        pool.marks = (0, 0) if good else (account.jobs, account.slowed)
    slowed, jobs = _slowed(pool.marks, account, late)
    allowed = budget * (jobs + 1)
    if budget:
        allowed = max(allowed, 100 * ON_CREDIT)
    if (slowed + 1) * 100 <= allowed:
        return ""
    why = f"{_share(slowed, jobs)}; one more would exceed {budget:g} %"
    return pool.kept.get(PERCENT) or why


def _minutes_spent(pool: PoolRecord, account: Account, late: Late, now: float) -> str:
    """Return why a pool's budget of minutes is spent; "" if it is not or there is none."""
    if pool.slowed_budget_minutes is None:
        return ""
    month, known = month_of(now)[0], account.lost + late.delays
    since = pool.delayed_from
    if since is None or since[0] != month or since[1] > known:  # the last after a restarted clock
        since = pool.delayed_from = month, known
    seconds = _delayed(since, account, late)
    if seconds < 60 * pool.slowed_budget_minutes:
        return ""
    return pool.kept.get(MINUTES) or _minutes(pool, seconds)


def _slowed(marks: tuple[int, int], account: Account, late: Late) -> tuple[int, int]:
    """Return the delayed jobs and all jobs of a pool since its marks, with late ones."""
    more = late.waiting + late.running
    return account.slowed - marks[1] + more, account.jobs - marks[0] + more


def _delayed(since: tuple[int, float], account: Account, late: Late) -> float:
    """Return the seconds of delay of a pool's jobs in a month, with those that still run."""
    return max(0.0, account.lost + late.delays - since[1])


def _minutes(pool: PoolRecord, seconds: float) -> str:
    return (
        f"jobs that it started this month (UTC) began {decimal(seconds / 60, 1)} min later than "
        f"without sharing; the budget is {pool.slowed_budget_minutes:g} min"
    )


def _share(slowed: int, jobs: int) -> str:
    return f"{slowed:,} of its {counted(jobs, 'job')} started later than without sharing"


def _late_reason(pool: PoolRecord, waits: int) -> str:
    return (
        f"{counted(waits, 'pending job')} of {pool.name} would already run without sharing; "
        f"lending resumes {duration(LATE_REST)} after the last of them has started"
    )


def _limits_slowed(pool: PoolRecord) -> bool:
    return pool.slowed_budget_pct is not None or pool.slowed_budget_minutes is not None


def _has_budget(pool: PoolRecord) -> bool:
    return pool.lend_budget_hours is not None or _limits_slowed(pool)


def _put(pool: PoolRecord, reason: str, why: str) -> None:
    if why:
        pool.kept[reason] = why
    else:
        pool.kept.pop(reason, None)


def _group(pool: PoolRecord) -> GroupKey:
    """Return the key of a pool's sharing group."""
    return pool.group, "" if pool.share else pool.name
