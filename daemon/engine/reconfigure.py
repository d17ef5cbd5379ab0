"""An engine whose operator has changed the configuration while it was away."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import UNSET
from msgspec.structs import replace

from daemon.model.book import Book, NodeRecord, PoolRecord, core_limits, pool_record
from daemon.model.job import PoolMode
from daemon.model.outputs import Refused
from daemon.model.setup import Setup
from sia.core.core import Core
from sia.core.snapshot import PoolSnapshot as KeptPool
from sia.core.snapshot import dump, restore
from sia.events import PoolChanged
from sia.limits import MAX_GROUP
from sia.model import Pool
from sia.policies import load

OTHER_CELLS = (
    "give the cells file and the pools as they were, and change quotas while the daemon runs "
    "(sia pool set --cells); or name another database in daemon.database, for other cells"
)
"""The mend where cells or their pools change: jobs have places in them."""

NUMBERS = ("quota", "lend_limit", "borrow_limit", "weight")
"""What a configuration says of a pool that commands may change too."""


def adapted(book: Book, core: Core, setup: Setup, unseen: int = 0) -> tuple[Book, Core] | Refused:
    """The same jobs under other settings, or why that cannot be. O(n log n).

    What has been changed by commands stays so unless the configuration says something new of it;
    new numbers are still to be told: `changes`. The loads (GPUs) of a new pool, or of all where
    policy or options are others, are `unseen`.
    """
    for wrong in _problems(book, setup):
        return Refused(409, "configuration", *wrong)
    kept = dump(core)
    known = {record.pool.name: record for record in kept.pools}
    same = (setup.policy, setup.options) == (book.setup.policy, book.setup.options)
    loads = (unseen,) * len(setup.options.windows)
    pools = [_kept_pool(p, known.get(p.name), loads, same=same) for p in setup.pools]
    memory = kept.memory
    if not same or _regrouped(book.setup, setup):
        memory = Core(setup.pools, load(setup.policy)(), setup.options).policy.memory()
    kept = replace(
        kept,
        policy=load(setup.policy).__name__,
        options=setup.options,
        pools=tuple(pools),
        dirty=tuple(p.name for p in setup.pools),
        memory=memory,
        out=UNSET,  # nodes, quotas and groups may be others: it is counted anew
    )
    try:
        core = restore(kept, load(setup.policy)())
    except ValueError as error:
        return Refused(409, "configuration", str(error), "start with the settings as they were")
    nodes = _nodes(book, setup)
    windows = {name: window for name, window in book.windows.items() if window.node in nodes}
    return replace(book, setup=setup, pools=_pools(book, setup), nodes=nodes, windows=windows), core


def _kept_pool(
    pool: Pool, before: KeptPool | None, loads: tuple[int, ...], *, same: bool
) -> KeptPool:
    if before is None:
        return KeptPool(pool, loads, ())
    grouped = replace(before.pool, group=pool.group, share=pool.share)
    return replace(before, pool=grouped, load=before.load if same else loads)


def _regrouped(before: Setup, after: Setup) -> bool:
    """Whether a pool is in another sharing group."""
    old = {pool.name: pool for pool in before.pools}
    return any(_group(old.get(pool.name, pool)) != _group(pool) for pool in after.pools)


def _problems(book: Book, setup: Setup) -> Iterator[tuple[str, str]]:
    """What is wrong with it, and the mend."""
    old = {pool.name: pool for pool in book.setup.pools}
    new = {pool.name: pool for pool in setup.pools}
    busy = dict.fromkeys(job.spec.pool for job in book.jobs.values())
    for name, pool in old.items():
        if name not in new and name in busy:
            yield f"pool {name} is gone, and has jobs", "drain it, and take it out when it is empty"
        elif name in new and book.jobs and _group(pool) != _group(new[name]):
            yield f"pool {name} is in another sharing group", "change groups when no job is there"
    if (setup.cells, setup.lend_rests) != (book.setup.cells, book.setup.lend_rests):
        yield "daemon.cells: other cells than those that the database began with", OTHER_CELLS
    if setup.cells is not None and list(old) != list(new):
        yield "pool: pools come or go, and there are cells", OTHER_CELLS
    there = {(node.name, gpu) for node in setup.nodes for gpu in node.gpus}
    for job in book.jobs.values():
        used = {(name, gpu) for name, gpus in job.nodes for gpu in gpus}
        if setup.cells is None and used - there and job.core:
            yield f"job {job.spec.id} is on GPUs that are gone", "name its node until it has ended"
            break
    yield from _too_much(book, setup)


def _too_much(book: Book, setup: Setup) -> Iterator[tuple[str, str]]:
    """Quotas may have been changed by commands before: together all may be more than there is."""
    old = {pool.name: pool.quota for pool in book.setup.pools}
    owned: dict[tuple[str, str], int] = {}
    for pool in setup.pools:
        quota = book.pools[pool.name].quota if old.get(pool.name) == pool.quota else pool.quota
        group = pool.group, "" if pool.share else pool.name
        owned[group] = owned.get(group, 0) + quota
    total, there = sum(owned.values()), sum(len(node.gpus) for node in setup.nodes)
    mend = "start with the settings as they were, and lower quotas by command first"
    if setup.nodes and total > there:
        yield f"the pools would own {total} GPUs, and there are {there}", mend
    if max(owned.values(), default=0) > MAX_GROUP:
        yield f"a sharing group would own more than {MAX_GROUP} GPUs", mend


def _group(pool: Pool) -> tuple[str, bool]:
    return pool.group, pool.share


def _pools(book: Book, setup: Setup) -> dict[str, PoolRecord]:
    found = {}
    for pool in setup.pools:
        mode = setup.modes.get(pool.name, PoolMode.OPEN)
        fresh = pool_record(pool, {}, mode, setup.budget(pool.name))
        record = found[pool.name] = book.pools.get(pool.name, fresh)
        record.group, record.share = pool.group, pool.share
        if setup.budget(pool.name) != book.setup.budget(pool.name):
            budget = setup.budget(pool.name)
            record.lend_budget_hours = budget.lend_budget_hours
            if record.spent is not None:
                record.spent.look = 0.0
            record.slowed_budget_pct, record.marks = budget.slowed_budget_pct, None
    return found


def _nodes(book: Book, setup: Setup) -> dict[str, NodeRecord]:
    if setup.cells is not None:
        return book.nodes
    found = {}
    for node in setup.nodes:
        before = book.nodes.get(node.name)
        found[node.name] = NodeRecord(node.name, node.gpus, before.reasons if before else {})
    return found


def changes(book: Book, before: Setup, now: float) -> list[PoolChanged]:
    """What the configuration says anew of pools; it ends an override."""
    old = {pool.name: pool for pool in before.pools}
    found = []
    for pool in book.setup.pools:
        record, was = book.pools[pool.name], old.get(pool.name, pool)
        new = [field for field in NUMBERS if getattr(pool, field) != getattr(was, field)]
        if new:
            for field in new:
                setattr(record, field, getattr(pool, field))
            record.override = None
            record.version += 1
            found.append(_event(record, now))
    return found


def _event(pool: PoolRecord, now: float) -> PoolChanged:
    lend, borrow = core_limits(pool)
    return PoolChanged(now, pool.name, pool.quota, pool.cells, lend, borrow, pool.weight)
