"""Changes of the configuration between two runs of the daemon."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from msgspec import UNSET
from msgspec.structs import replace

from daemon.engine.nodes import BACKEND
from daemon.engine.pools import set_budget
from daemon.model.book import (
    Book,
    JobRecord,
    NodeRecord,
    PoolRecord,
    core_limits,
    job_of,
    pool_record,
)
from daemon.model.job import PoolMode
from daemon.model.limits import BUDGETS
from daemon.model.outputs import Refused
from daemon.model.setup import Node, Setup
from sia.contract.labels import name_of
from sia.contract.proposals import Preempt
from sia.core.core import Core
from sia.core.guard import PolicyFailedError
from sia.core.snapshot import JobSnapshot, dump, memory_of, plain_params, restore
from sia.core.snapshot import PoolSnapshot as SnapshotPool
from sia.decisions import Decision
from sia.events import PoolChanged
from sia.limits import MAX_GROUP
from sia.model import GpuNode, Pool
from sia.policies import load, make

OTHER_CELLS = (
    "restore the cells file and the pools, and change quotas while the daemon runs "
    "(sia pool set --cells); or set daemon.database to a new database"
)
"""Fix for a change of cells, or of pools with cells, while jobs run in these cells."""

GONE = "no longer there"
"""Reason for keeping a node as out that the backend no longer finds."""

LESS = "has fewer GPUs than before"
"""Reason for keeping a node as out of which the backend finds fewer GPUs than before."""

NUMBERS = ("quota", "lend_limit", "borrow_limit", "weight")
"""Fields of a pool that both the configuration and commands can change."""


CUT = "its trial has fewer GPUs than it asks for, and the policy or its options have changed"
"""Reason for stopping a job in a trial when the configuration changes."""

GOES_ON = "its trial goes on as an ordinary run, since the configuration has changed"
"""Reason of a job whose trial has become an ordinary run."""


def adapted(book: Book, core: Core, setup: Setup, unseen: int = 0) -> tuple[Book, Core] | Refused:
    """Return the book and core under a new configuration, or why it is not possible. O(n log n).

    If the policy or its options change, trials become ordinary runs; see `without_narrow_trials`.
    Changes by commands stay unless the configuration changes the same field; `changes` yields the
    events for these fields. `unseen` is the load (GPUs) of new pools, or of all pools if the policy
    or its options have changed.
    """
    lost = _lost(book, setup)
    setup = replace(setup, nodes=(*lost.nodes(setup.nodes),))
    for wrong in _problems(book, setup):
        return Refused(409, "configuration", *wrong)
    same = (setup.policy, setup.options) == (book.setup.policy, book.setup.options)
    costs = setup.preemptible == book.setup.preemptible
    forgets = _forgets(book.setup, setup)
    solving, policy = book.solving, make(setup.policy)
    try:
        snapshot = dump(core, forgets=forgets)
        memory = snapshot.memory
        if forgets:
            solving = None  # the policy no longer knows why it asked
            memory = memory_of(
                Core(setup.pools, policy, setup.options, nodes=setup.nodes_for(policy)).policy
            )
    except PolicyFailedError as error:
        return Refused(409, "configuration", str(error), "name another policy in daemon.policy")
    nodes = _nodes(book, setup, lost.why)
    differ = setup.nodes_for(policy)
    unplaced = _unplaced(book, core) if differ and snapshot.nodes is UNSET else set()
    jobs: Iterable[JobSnapshot] = (_back(each, unplaced) for each in snapshot.jobs)
    if forgets:
        jobs = map(_ordinary, jobs)
    if not costs:
        jobs = _costed(jobs, book, setup)
    known = {record.pool.name: record for record in snapshot.pools}
    loads = (unseen,) * len(setup.options.windows)
    pools = [_pool_snapshot(p, known.get(p.name), loads, unplaced, same=same) for p in setup.pools]
    snapshot = replace(
        snapshot,
        policy=type(policy).__name__,
        params=plain_params(policy),
        options=setup.options,
        pools=tuple(pools),
        dirty=tuple(p.name for p in setup.pools),
        memory=memory,
        open_request=snapshot.open_request and same and costs,
        jobs=tuple(_on_nodes(jobs, book, differ)),
        nodes=differ or UNSET,
        nodes_out=tuple(name for name, node in nodes.items() if differ and node.reasons) or UNSET,
        out=UNSET,  # counted again: nodes, quotas and groups may have changed
    )
    try:
        core = restore(snapshot, make(setup.policy))
    except ValueError as error:
        return Refused(409, "configuration", str(error), "restore the old settings")
    if forgets:
        _forget(book, core)
    windows = {name: window for name, window in book.windows.items() if window.node in nodes}
    book = replace(
        book, setup=setup, pools=_pools(book, setup), nodes=nodes, windows=windows, solving=solving
    )
    return book, core


def _forgets(before: Setup, after: Setup) -> bool:
    """Return whether the policy after a change of the configuration knows nothing of before."""
    same = (after.policy, after.options) == (before.policy, before.options)
    return not same or after.preemptible != before.preemptible or _regrouped(before, after)


def without_narrow_trials(core: Core, before: Setup, after: Setup) -> tuple[Core, list[Decision]]:
    """Return the core without trials on fewer GPUs than their jobs ask for, and their stops.

    Such jobs would keep the few GPUs under a policy that does not know of trials. The work of a
    trial is lost anyway. The core is not changed, because the configuration may still be refused.
    """
    jobs = core.state.jobs
    narrow = [i for i, job in jobs.items() if job.trial and job.width < job.job.width]
    stops: list[Decision] = []
    if not narrow or not _forgets(before, after):
        return core, stops
    core = core.copy()
    for core_id in narrow:
        stop = Preempt(core.state.jobs[core_id], CUT)
        core.committer.carry_out[Preempt](stop, core.state.now, stops)
    return core, stops


def _forget(book: Book, core: Core) -> None:
    """Forget promises, of which jobs with a deadline are told, and trials. O(jobs)."""
    for record in book.jobs.values():
        record.promise, job = None, core.state.jobs.get(record.core)
        if job is None or job.stream is not None:  # otherwise its trial is stopped
            if record.trial is not None and record.stream is not None:
                record.reason = GOES_ON
            record.trial = None


def _ordinary(job: JobSnapshot) -> JobSnapshot:
    """Return a job without its trial, which nobody ends any more: it runs on and keeps its work."""
    return replace(job, trial=False) if job.trial else job


def _costed(jobs: Iterable[JobSnapshot], book: Book, setup: Setup) -> Iterator[JobSnapshot]:
    """Yield the core's jobs; a job without an own cost of stops gets that of `setup`. O(jobs)."""
    before = book.setup.preemptible
    for each in jobs:
        record = book.jobs[job_of(each.job.id)]
        unsaid = record.spec.preemptible is None and each.job.preemptible == before
        if unsaid:  # otherwise it has an own cost, or may not be stopped again
            each = replace(each, job=replace(each.job, preemptible=setup.preemptible))  # noqa: PLW2901
        yield each


def _unplaced(book: Book, core: Core) -> set[str]:
    """Return the core's ids of jobs that it has started and that have no GPUs yet. O(jobs).

    They have no nodes that a core with nodes could count, so their starts are taken back.
    """
    started = (job_id for job_id, job in core.state.jobs.items() if job.stream is not None)
    named = ((job_id, job_of(job_id)) for job_id in started)
    return {job_id for job_id, name in named if not book.jobs[name].placed or name in book.seatless}


def _back(job: JobSnapshot, unplaced: Collection[str]) -> JobSnapshot:
    """Return a job as pending if its start is taken back; it keeps the work that it had."""
    if job.job.id not in unplaced:
        return job
    return replace(
        job, stream=None, width=0, loans=(), speed=1.0, lease=None, trial=False,
        taken_back=job.taken_back + 1,
    )  # fmt: skip


def taken_back(book: Book, core: Core) -> list[JobRecord]:
    """Return the started jobs that wait again in the core of a new configuration. O(starts)."""
    waiting = (book.jobs[job_id] for job_id in book.seatless)
    return [each for each in waiting if core.state.jobs[each.core].stream is None]


def _on_nodes(
    jobs: Iterable[JobSnapshot], book: Book, differ: Sequence[GpuNode]
) -> Iterator[JobSnapshot]:
    """Yield the jobs of a core with the GPUs that they have, if nodes differ; else without.

    The core numbers the GPUs of each node from 0. O(jobs).
    """
    for each in jobs:
        if each.stream is None or bool(differ) is bool(each.nodes):
            yield each
            continue
        taken = book.jobs[job_of(each.job.id)].nodes if differ else ()
        numbers = tuple(
            (name, tuple(map(book.nodes[name].gpus.index, gpus))) for name, gpus in taken
        )
        yield replace(each, nodes=numbers)


def tuned(setup: Setup, label: str) -> Setup | Refused:
    """Return the setup with other options of its policy, or a refusal.

    An empty label undoes a change.
    """
    if not label:
        if not setup.before:
            return Refused(409, "policy", "the policy has not been changed", "set one first")
        label = setup.before
    if label == setup.policy:
        return setup
    name = name_of(setup.policy)
    if name_of(label) != name:
        return Refused(
            409, "policy", f"the policy in force is {name}, not {name_of(label)}",
            f"give options of {name}, or change daemon.policy in the configuration",
        )  # fmt: skip
    try:
        make(label)
    except ValueError as error:
        what, _, mend = str(error).rpartition("; ")
        return Refused(422, "policy", what or mend, mend if what else "change the option")
    if not load(setup.policy).tunable:
        return Refused(
            409, "policy", f"the options of {name} cannot change while it runs",
            "change daemon.policy in the configuration and restart",
        )  # fmt: skip
    return replace(
        setup, policy=label, configured=setup.configured or setup.policy, before=setup.policy
    )


def _pool_snapshot(
    pool: Pool,
    before: SnapshotPool | None,
    loads: tuple[int, ...],
    unplaced: Collection[str],
    *,
    same: bool,
) -> SnapshotPool:
    if before is None:
        return SnapshotPool(pool, loads, ())
    grouped = replace(before.pool, group=pool.group, share=pool.share)
    lent_to = tuple(job_id for job_id in before.lent_to if job_id not in unplaced)
    return replace(before, pool=grouped, load=before.load if same else loads, lent_to=lent_to)


def _regrouped(before: Setup, after: Setup) -> bool:
    """Return whether a pool has moved to another sharing group."""
    old = {pool.name: pool for pool in before.pools}
    return any(_group(old.get(pool.name, pool)) != _group(pool) for pool in after.pools)


def _problems(book: Book, setup: Setup) -> Iterator[tuple[str, str]]:
    """Yield each problem of the new configuration, with its fix."""
    old = {pool.name: pool for pool in book.setup.pools}
    new = {pool.name: pool for pool in setup.pools}
    busy = dict.fromkeys(job.spec.pool for job in book.jobs.values())
    for name, pool in old.items():
        if name not in new and name in busy:
            yield f"pool {name} is gone but has jobs", "drain it, and remove it when it is empty"
        elif name in new and book.jobs and _group(pool) != _group(new[name]):
            yield f"pool {name} has another sharing group", "change groups while there are no jobs"
    if setup.cells != book.setup.cells:
        yield "daemon.cells: the cells differ from those in the database", OTHER_CELLS
    if setup.cells is not None and list(old) != list(new):
        yield "pool: pools cannot be added or removed with cells", OTHER_CELLS
    there = {(node.name, gpu) for node in setup.nodes for gpu in node.gpus}
    for job in book.jobs.values():
        used = {(name, gpu) for name, gpus in job.nodes for gpu in gpus}
        if setup.cells is None and used - there and job.core:
            yield (
                f"job {job.spec.id} uses GPUs that are gone",
                "keep its node until the job has ended",
            )
            break
    yield from _quota_problems(book, setup)


def _quota_problems(book: Book, setup: Setup) -> Iterator[tuple[str, str]]:
    """Check the sums of quotas."""
    owned = _owned(book, setup)
    total, there = sum(owned.values()), sum(len(node.gpus) for node in setup.nodes)
    fix = "restore the old settings, and lower quotas with sia pool set first"
    if setup.nodes and total > there:
        yield f"the pools would own {total} GPUs of {there}", fix
    if max(owned.values(), default=0) > MAX_GROUP:
        yield f"a sharing group would own more than {MAX_GROUP} GPUs", fix


def _owned(book: Book, setup: Setup) -> dict[tuple[str, str], int]:
    """Return the sum of quotas of each sharing group; commands may have changed quotas before."""
    old = {pool.name: pool.quota for pool in book.setup.pools}
    owned: dict[tuple[str, str], int] = {}
    for pool in setup.pools:
        quota = book.pools[pool.name].quota if old.get(pool.name) == pool.quota else pool.quota
        group = pool.sharing_group
        owned[group] = owned.get(group, 0) + quota
    return owned


def _group(pool: Pool) -> tuple[str, bool]:
    return pool.group, pool.share


def _pools(book: Book, setup: Setup) -> dict[str, PoolRecord]:
    found = {}
    for pool in setup.pools:
        mode = setup.modes.get(pool.name, PoolMode.OPEN)
        fresh = pool_record(pool, {}, mode, setup.budget(pool.name))
        record = found[pool.name] = book.pools.get(pool.name, fresh)
        record.group, record.share = pool.group, pool.share
        budget, before = setup.budget(pool.name), book.setup.budget(pool.name)
        for field in BUDGETS:
            if getattr(budget, field) != getattr(before, field):
                set_budget(record, field, getattr(budget, field))
    return found


class _Lost(NamedTuple):
    """Nodes that are kept although the backend finds less: reason and GPUs of each."""

    why: dict[str, str]
    gpus: dict[str, set[int]]
    attributes: dict[str, tuple[str, ...]]

    def nodes(self, found: Iterable[Node]) -> Iterator[Node]:
        """Yield the nodes that the backend found, and the lost nodes and GPUs that are kept."""
        names = set()
        for node in found:
            names.add(node.name)
            more = self.gpus.get(node.name)
            yield node if more is None else replace(node, gpus=(*sorted({*node.gpus, *more}),))
        for name, gpus in self.gpus.items():
            if name not in names:
                yield Node(name, (*sorted(gpus),), self.attributes[name])


def _lost(book: Book, setup: Setup) -> _Lost:
    """Return the nodes to keep although the backend no longer finds them or all their GPUs.

    A command cannot bring back a node that was lost while the daemon was down. A node is kept, as
    out, in two cases. If jobs use its lost GPUs, it is kept until the backend has reported how the
    jobs ended. If the pools own more GPUs than are left, all lost nodes are kept, so that the
    daemon can start and the pools share the GPUs that are left. O(jobs + nodes).
    """
    kept = _Lost({}, {}, {})
    if not setup.discovered or setup.cells is not None:
        return kept
    there = {node.name: set(node.gpus) for node in setup.nodes}
    few = sum(_owned(book, setup).values()) > sum(map(len, there.values()))
    used: dict[str, set[int]] = {}
    for job in book.jobs.values():
        for name, gpus in job.nodes if job.core else ():
            used.setdefault(name, set()).update(gpus)
    for node in book.setup.nodes:
        gone = set(node.gpus) - there.get(node.name, set())
        if gone and (few or gone & used.get(node.name, set())):
            kept.why[node.name] = LESS if node.name in there else GONE
            kept.gpus[node.name] = set(node.gpus)
            kept.attributes[node.name] = node.attributes
    return kept


def _nodes(book: Book, setup: Setup, out: Mapping[str, str]) -> dict[str, NodeRecord]:
    """Return the records of the nodes; `out` says why the backend takes some out."""
    if setup.cells is not None:
        return book.nodes
    found = {}
    for node in setup.nodes:
        before = book.nodes.get(node.name)
        reasons = dict(before.reasons) if before else {}
        if node.name in out:
            reasons[BACKEND] = out[node.name]
        elif reasons.get(BACKEND) in (GONE, LESS):
            del reasons[BACKEND]
        found[node.name] = NodeRecord(node.name, node.gpus, reasons)
    return found


def changes(book: Book, before: Setup, now: float) -> list[PoolChanged]:
    """Apply the configuration's changes of pools, which end overrides; return core events."""
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
