"""Changes of pools (quota, limits, state, budgets), permanent or until a time; the lending mode."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import asdict

from cells.layout.spec import Spec, shapes
from daemon.engine.jobs import Jobs
from daemon.engine.observers import ShadowLending
from daemon.engine.step import StepContext
from daemon.model.account import ShadowState
from daemon.model.book import Override, PoolRecord
from daemon.model.inputs import Lending, SetPool
from daemon.model.job import LendingMode, PoolMode
from daemon.model.limits import BUDGETS, MAX_WEIGHT, NO_BUDGET
from daemon.model.outputs import Accepted, Answer, Refused, unknown_pool
from daemon.model.timers import Timer
from sia.events import LendingSwitched, PoolChanged
from sia.limits import MAX_GROUP, MAX_QUOTA, TICK, UNLIMITED
from sia.wording import duration

OVERRIDE = "override"
"""Kind of timer: the end of an override."""

LIMITS = ("lend_limit", "borrow_limit")

FIELDS = ("quota", "cells", "state", *LIMITS, "weight", *BUDGETS)
"""Fields of a pool that a command may change."""


class Pools:
    """Changes pools, and restores their values when an override ends."""

    def __init__(self, context: StepContext, jobs: Jobs, shadow: ShadowLending) -> None:
        """Work on this context; `jobs` handles pending jobs, `shadow` shadow lending."""
        self._context = context
        self._book = context.book
        self._jobs, self._shadow = jobs, shadow

    def set_pool(self, asked: SetPool) -> Answer:
        """Change a pool completely or not at all.

        O(1); O(n) if its jobs leave or enter the core. With cells, also the cost of finding cells
        for all quotas.
        """
        pool = self._book.pools.get(asked.pool)
        if pool is None:
            return unknown_pool(asked.pool, self._book.pools)
        wanted = {f: v for f in FIELDS if (v := getattr(asked, f)) is not None}
        wrong = self._wrong(pool, asked, wanted)
        if wrong is not None:
            return wrong
        changed = {f: v for f, v in wanted.items() if v != _to_command(pool, f)}
        before = {f: _to_command(pool, f) for f in changed}
        wrong = self._apply(pool, changed)
        if wrong is not None:
            return wrong
        self._remember(pool, asked, wanted, before)
        if changed or asked.until is not None:
            pool.version += 1
            self._report(pool, changed, asked.until, asked.actor)
        return Accepted(bool(changed) or asked.until is not None, pool.version)

    def _wrong(self, pool: PoolRecord, asked: SetPool, wanted: dict[str, object]) -> Refused | None:
        if asked.version is not None and asked.version != pool.version:
            return Refused(
                409,
                "pool has changed",
                f"pool {pool.name} is at version {pool.version}, not {asked.version}",
                "read the pool again, then repeat the change",
            )
        if asked.until is not None:
            if not asked.until > self._context.now:
                return _unfit(pool, "the override ends in the past", "give a time in the future")
            if pool.override is not None:
                return Refused(
                    409,
                    "pool has an override",
                    f"the override of pool {pool.name} lasts another "
                    f"{duration(pool.override.until - self._context.now)}",
                    "leave out until (--for) for a lasting change, or wait until the override ends",
                )
        return self._wrong_cells(pool, asked, wanted) or self._wrong_numbers(pool, wanted)

    def _wrong_cells(
        self, pool: PoolRecord, asked: SetPool, wanted: dict[str, object]
    ) -> Refused | None:
        spec = self._book.setup.cells
        if asked.cells is None:
            if spec is not None and asked.quota not in (None, pool.quota):
                return _unfit(
                    pool,
                    "the quota follows from its cells",
                    "change its cells instead of its quota",
                )
            return None
        if spec is None:
            return _unfit(pool, "the daemon has no cells", "change the quota in GPUs")
        gpus = _gpus_of(spec, pool.name, asked.cells)
        if gpus is None:
            return _unfit(pool, f"no such chain or cell type: {asked.cells}", "see: sia nodes")
        if asked.quota not in (None, gpus):
            return _unfit(pool, f"its cells have {gpus} GPUs, not {asked.quota}", "leave quota out")
        wanted["quota"] = gpus
        return None

    def _wrong_numbers(self, pool: PoolRecord, wanted: dict[str, object]) -> Refused | None:
        for field, most in (("quota", MAX_QUOTA), *dict.fromkeys(LIMITS, UNLIMITED).items()):
            value = wanted.get(field, 0)
            if not 0 <= value <= most:  # type: ignore[operator]
                return _unfit(pool, f"{field} must be 0 to {most} (got {value})", f"change {field}")
        for name, highest in BUDGETS.items():
            budget = wanted.get(name, 0.0)
            if budget != NO_BUDGET and not 0 <= budget <= highest:  # type: ignore[operator]
                return _unfit(
                    pool, f"{name} must be 0 to {highest:g} (got {budget})", f"change {name}"
                )
        weight = wanted.get("weight", 1.0)
        if not 1 / MAX_WEIGHT <= weight <= MAX_WEIGHT:  # type: ignore[operator]
            bounds = f"{1 / MAX_WEIGHT:g} to {MAX_WEIGHT:g}"
            return _unfit(pool, f"weight must be {bounds} (got {weight})", "change weight")
        quota: int = wanted.get("quota", pool.quota)  # type: ignore[assignment]
        return None if quota == pool.quota else self._wrong_quota(pool, quota)

    def _wrong_quota(self, pool: PoolRecord, quota: int) -> Refused | None:
        known = self._context.core.state.pools[pool.name]
        if quota < known.dedicated:
            return Refused(
                409,
                "quota is in use",
                f"dedicated jobs of pool {pool.name} use {known.dedicated} GPUs, "
                f"more than a quota of {quota}",
                "wait until jobs end, or cancel some; state hold keeps others from starting",
            )
        others = [other for other in self._book.pools.values() if other is not pool]
        own = known.group.pools
        group = sum(o.quota for o in others if self._context.core.state.pools[o.name] in own)
        if group + quota > MAX_GROUP:
            return _unfit(
                pool, f"its group would own {group + quota} GPUs", f"keep it to {MAX_GROUP}"
            )
        there = sum(len(node.gpus) for node in self._book.nodes.values())
        owned = sum(other.quota for other in others) + quota
        if quota > pool.quota and self._context.placement is not None and owned > there:
            return _unfit(
                pool,
                f"all pools together would own {owned} GPUs of {there}",
                "lower another pool's quota first",
            )
        return None

    def _apply(self, pool: PoolRecord, changed: Mapping[str, object]) -> Refused | None:
        """Apply a change; refuse it with nothing changed if the cells do not allow it."""
        self._context.recheck_pools = True
        self._context.quotas_changed |= "quota" in changed
        if any(field not in ("state", *BUDGETS) for field in changed):
            wrong = self._tell_core(pool, changed)
            if wrong is not None:
                return wrong
        for field, value in changed.items():
            if field in BUDGETS:
                set_budget(pool, field, _to_record(value))
            elif field != "state":
                setattr(pool, field, _to_record(value))
        state = changed.get("state")
        if isinstance(state, PoolMode):
            self._switch(pool, state)
        return None

    def _tell_core(self, pool: PoolRecord, changed: Mapping[str, Any]) -> Refused | None:
        context = self._context
        quota, cells = changed.get("quota", pool.quota), changed.get("cells", pool.cells)
        lend = 0 if pool.told and "lend_limit" in changed else changed.get("lend_limit")
        event = PoolChanged(
            context.now, pool.name, quota, cells, lend, changed.get("borrow_limit"),
            changed.get("weight"),
        )  # fmt: skip
        if context.core.state.places is None:
            context.events.append(event)
            return None
        context.flush()  # so that a refusal affects no other event
        context.events.append(event)
        try:
            context.flush()
        except ValueError as error:
            context.events.clear()
            return _unfit(pool, str(error), "choose other cells")
        return None

    def _switch(self, pool: PoolRecord, state: PoolMode) -> None:
        before, pool.state = pool.state, state
        if state is PoolMode.HOLD:
            self._jobs.move_out(pool)
        elif before is PoolMode.HOLD:
            self._jobs.move_in(pool)

    def _remember(
        self, pool: PoolRecord, asked: SetPool, wanted: dict[str, object], before: dict[str, object]
    ) -> None:
        """Store the values to restore at the end of an override, but keep permanent changes."""
        if asked.until is not None:
            pool.override = Override(asked.until, **before)  # type: ignore[arg-type]
        elif pool.override is not None:
            rest = {f: v for f, v in asdict(pool.override).items() if f not in wanted}
            left = any(rest.get(f) is not None for f in FIELDS)
            pool.override = Override(**rest) if left else None
        self.set_timer(pool)

    def set_timer(self, pool: PoolRecord) -> None:
        """Set the timer of a pool's override. O(log n)."""
        if pool.override is not None:
            self._context.timers.set(Timer(pool.override.until, OVERRIDE, pool.name))
        else:
            self._context.timers.drop(OVERRIDE, pool.name)

    def due(self, timer: Timer) -> None:
        """End a pool's override."""
        pool = self._book.pools[timer.name]
        override = pool.override
        if override is None or override.until != timer.time:
            return
        back = {f: v for f in FIELDS if (v := getattr(override, f)) is not None}
        changed = {f: v for f, v in back.items() if v != _to_command(pool, f)}
        wrong = self._wrong_restore(pool, changed) or self._apply(pool, changed)
        if wrong is not None:  # other pools have its GPUs now: try again later
            pool.override = Override(max(override.until, self._context.now) + TICK, **back)
            self._context.notify("refused", pool=pool.name, why=wrong.detail)
            self.set_timer(pool)
            return
        pool.override = None
        pool.version += 1
        self._report(pool, changed, None, "")

    def _wrong_restore(self, pool: PoolRecord, changed: Mapping[str, object]) -> Refused | None:
        """Return why a pool cannot have its old quota again; a smaller quota is always possible."""
        quota: int = changed.get("quota", pool.quota)  # type: ignore[assignment]
        return self._wrong_quota(pool, quota) if quota > pool.quota else None

    def _report(
        self, pool: PoolRecord, changed: Mapping[str, object], until: float | None, actor: str
    ) -> None:
        data: dict[str, Any] = {
            f: v.value if isinstance(v, PoolMode) else _to_record(v) for f, v in changed.items()
        }
        if until is not None:
            data["until"] = until
        self._context.notify("pool_changed", pool=pool.name, version=pool.version, by=actor, **data)

    def set_lending(self, asked: Lending) -> Answer:
        """Set the lending mode. O(1); O(n) for shadow mode."""
        mode = LendingMode.SHADOW if asked.shadow else LendingMode.OFF
        return self.switch(LendingMode.ON if asked.on else mode, asked.actor)

    def switch(self, mode: LendingMode, by: str) -> Answer:
        """Set the lending mode."""
        book, now, on = self._book, self._context.now, mode is LendingMode.ON
        if mode is book.mode:
            return Accepted(new=False)
        if book.lending is not on:
            book.lending = on
            self._context.events.append(LendingSwitched(now, on))
        if mode is LendingMode.SHADOW:
            book.shadow = ShadowState(now)
        else:
            self._shadow.end()
        self._shadow.drop()
        self._context.notify("lending", on=on, mode=mode.value, by=by)
        return Accepted()


def set_budget(pool: PoolRecord, field: str, value: object) -> None:
    """Set one of a pool's `BUDGETS`, and count delays from now on if it limits them."""
    setattr(pool, field, value)
    if field == "slowed_budget_pct":
        pool.marks = None
    elif field == "slowed_budget_minutes":
        pool.delayed_from = None
    elif pool.spent is not None:
        pool.spent.look = 0.0


def _to_command(pool: PoolRecord, field: str) -> object:
    """Return the value of a pool's field in the form of commands: a number that means no limit."""
    value = getattr(pool, field)
    if value is None:
        return NO_BUDGET if field in BUDGETS else UNLIMITED
    return value


def _to_record(value: object) -> object:
    """Return a command's value in the form of `PoolRecord`: None for no limit or budget."""
    return None if value in (UNLIMITED, NO_BUDGET) else value


def _gpus_of(spec: Spec, pool: str, cells: Mapping[str, Mapping[str, int]]) -> int | None:
    """Return the GPUs of these cells and of a pool's pinned ones; None if a type is unknown."""
    size = {
        (chain, kind): shape.size[level]
        for chain, shape in shapes(spec).items()
        for level, kind in enumerate(shape.names)
    }
    asked = [(chain, k, count) for chain, types in cells.items() for k, count in types.items()]
    if any((chain, kind) not in size or count < 0 for chain, kind, count in asked):
        return None
    kinds = {kind: gpus for (_, kind), gpus in size.items()}
    pinned = sum(kinds[pin.type] for pin in spec.pinned if pin.pool == pool)
    return pinned + sum(size[chain, kind] * count for chain, kind, count in asked)


def _unfit(pool: PoolRecord, detail: str, fix: str) -> Refused:
    return Refused(422, "invalid", f"pool {pool.name}: {detail}", fix)
