"""Convert jobs, pools, nodes and loans to wire structs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from math import fsum
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from daemon.answers.explain.explain import position_of, waits
from daemon.doors.views.notes import notes_of, planned_for
from daemon.engine.engine import Engine
from daemon.model.access import Principal
from daemon.model.account import ShadowState, Turns
from daemon.model.book import Book, DeadlineAnswer, JobRecord, NodeRecord, Override
from daemon.model.job import OVER, JobSpec
from daemon.wire.jobs import (
    ArrayDetail,
    JobDetail,
    JobView,
    NodeView,
    OverrideView,
    PoolView,
    ProgressView,
    PromiseView,
)
from daemon.wire.limits import NODE_JOBS
from daemon.wire.plan import LendingRecalls, LendingShadow, LoanList, LoanView, PoolTurns, WouldLend
from sia.limits import UNKNOWN_RUN_TIME
from sia.state.state import PoolState

if TYPE_CHECKING:
    from daemon.service.service import Service


def job_view(record: JobRecord) -> JobView:
    """Convert a job for a list. O(1)."""
    spec = record.spec
    return JobView(
        spec.id, spec.pool, spec.gpus, record.phase, record.submitted, record.priority, spec.user,
        spec.name, spec.tags, record.attempt, record.started, record.ended, run_time_of(record),
        record.time_limit, record.stream, record.reason,
        {node: list(gpus) for node, gpus in record.nodes}, dict(record.loans), record.stop,
        record.code, record.signal, record.why, ran_of(record), progress_view(record),
        record.width, record.stops, record.preempted, record.kept,
    )  # fmt: skip


def job_detail(service: Service, record: JobRecord) -> JobDetail:
    """Convert a job with all its fields. O(pending jobs of its pool)."""
    spec, view = record.spec, job_view(record)
    core = service.engine.core
    least, most = record.widths or (spec.min_width, spec.max_width)
    return JobDetail(
        **msgspec.structs.asdict(view),
        command=spec.command, env=spec.env, cwd=spec.cwd, warn=spec.warn, duration=spec.duration,
        preemptible=service.book.setup.stop_cost(spec), requeue=spec.requeue, array=spec.array,
        min_width=least, max_width=most, demand=spec.demand,
        deadline=spec.deadline, soft=spec.soft, promise=promise_view(record),
        value=spec.value, budget=spec.budget, estimate=spec.run_time,
        prefers=spec.prefers, slowdown=spec.slowdown, strl=spec.strl,
        checkpoint=spec.checkpoint, mode=spec.mode, min_run_time=spec.min_run_time,
        model=spec.model, regimes=spec.regimes, iterations=spec.iterations,
        notes=[] if record.phase in OVER else notes_of(service, spec, planned_for(service, spec)),
        position=position_of(core, record), waits=waits(service.book, core, record),
    )  # fmt: skip


def promise_view(record: JobRecord) -> PromiseView | None:
    """Convert what the policy promised for a job's deadline; None if it has not answered."""
    return None if record.promise is None else _shown(record.promise)


def _shown(promise: DeadlineAnswer) -> PromiseView:
    return PromiseView(**msgspec.structs.asdict(promise))


def promise_of(service: Service, specs: Sequence[JobSpec]) -> PromiseView | None:
    """Return what the policy has promised so far for a job, or for all jobs of an array. O(size).

    The promise of an array is the promise of its last job. If one of its jobs has no promise, the
    array has none.
    """
    jobs = service.book.jobs
    found = [jobs[spec.id].promise if spec.id in jobs else None for spec in specs]
    told = [promise for promise in found if promise is not None]
    refused = [promise for promise in told if not promise.guaranteed]
    if refused:
        soonest = [promise.soonest for promise in refused if promise.soonest is not None]
        many = f"{len(refused):,} of {len(specs):,} jobs: " if len(specs) > 1 else ""
        latest = max(soonest) if len(soonest) == len(refused) else None
        return _shown(replace(refused[0], soonest=latest, why=f"{many}{refused[0].why}"))
    if len(told) < len(found):
        return None
    return _shown(max(told, key=lambda promise: (promise.by or 0.0, promise.planned or 0.0)))


def array_detail(book: Book, name: str) -> ArrayDetail:
    """Convert an array and the jobs of it that are in memory. O(size)."""
    records = book.named(name)
    phases = Counter(record.phase.value for record in records)
    return ArrayDetail(name, book.arrays[name][0], dict(phases), [*map(job_view, records)])


def run_time_of(record: JobRecord) -> float | None:
    """Return a job's estimated run time in seconds, or None if unknown."""
    return None if record.expected >= UNKNOWN_RUN_TIME else record.expected


def progress_view(record: JobRecord) -> ProgressView | None:
    """Convert a job's latest progress report; None if there is no report."""
    progress = record.progress
    if progress is None:
        return None
    return ProgressView(progress.at, progress.done, progress.speed, progress.regime, progress.end)


def ran_of(record: JobRecord) -> float | None:
    """Return the seconds for which a job ran, without pauses; None before its end."""
    if record.started is None or record.ended is None:
        return None
    return record.ran + record.ended - record.started


def unplaced(book: Book) -> dict[str, list[int]]:
    """Return the widths of started jobs without GPUs, by pool. They count as pending."""
    found: dict[str, list[int]] = {}
    for job_id in book.seatless:
        record = book.jobs[job_id]
        found.setdefault(record.spec.pool, []).append(record.gpus)
    return found


def pool_view(engine: Engine, name: str, now: float, widths: Sequence[int] = ()) -> PoolView:
    """Convert a pool and its usage; `widths` comes from `unplaced`. O(spare jobs on its GPUs).

    Lent hours and the reasons not to lend are evaluated at `now`.
    """
    pool, state = engine.book.pools[name], engine.core.state.pools[name]
    own = own_loans(state)
    return PoolView(
        pool.name, pool.quota, pool.group, pool.share, pool.state, pool.lend_limit,
        pool.borrow_limit, pool.weight, pool.version,
        {chain: dict(types) for chain, types in pool.cells.items()},
        None if pool.override is None else _override_view(pool.override),
        running=state.dedicated + state.spare - sum(widths),
        dedicated=state.dedicated,
        borrowed=state.spare - own,
        lent=state.lent - own,
        idle=max(0, state.unused),
        waiting=len(state.pending) + len(state.out_of_order) + len(pool.waiting) + len(widths),
        waiting_gpus=state.pending_width + sum(widths),
        lend_budget_hours=pool.lend_budget_hours,
        slowed_budget_pct=pool.slowed_budget_pct,
        slowed_budget_minutes=pool.slowed_budget_minutes,
        lent_hours=None if pool.spent is None else pool.spent.upto(now) / 3600,
        delayed_minutes=engine.delayed_minutes(name, now),
        kept=engine.not_lending_reasons(name, now),
    )  # fmt: skip


def pool_views(engine: Engine, now: float) -> list[PoolView]:
    """Convert all pools, sorted by name. O(pools + spare jobs on their GPUs)."""
    widths = unplaced(engine.book)
    return [
        pool_view(engine, name, now, widths.get(name, ())) for name in sorted(engine.book.pools)
    ]


def _override_view(over: Override) -> OverrideView:
    return OverrideView(
        over.until,
        over.quota,
        over.state,
        over.lend_limit,
        over.borrow_limit,
        over.weight,
        over.lend_budget_hours,
        over.slowed_budget_pct,
        over.slowed_budget_minutes,
    )


def own_loans(pool: PoolState) -> int:
    """Return the GPUs of a pool that its own spare jobs use."""
    return sum(job.loans[pool] for job in pool.lent_to.values() if job.pool is pool)


def node_views(book: Book, who: Principal) -> list[NodeView]:
    """Convert all nodes and the jobs on them that `who` may see. O(nodes + live jobs)."""
    used: Counter[str] = Counter()
    jobs: dict[str, list[str]] = {name: [] for name in book.nodes}
    for record in book.jobs.values():
        for node, gpus in record.nodes:
            used[node] += len(gpus)
            if len(jobs.setdefault(node, [])) < NODE_JOBS and who.sees(record.spec.pool):
                jobs[node].append(record.spec.id)
    views = [_node_view(node, used[node.name], jobs[node.name]) for node in book.nodes.values()]
    attributes = {node.name: node.attributes for node in book.setup.nodes}
    return [replace(view, attributes=attributes.get(view.name, ())) for view in views]


def _node_view(node: NodeRecord, used: int, jobs: list[str]) -> NodeView:
    return NodeView(node.name, len(node.gpus), used, dict(node.reasons), jobs)


def shadow_view(state: ShadowState, who: Principal) -> LendingShadow:
    """Convert the result of shadow lending; sums cover all pools. O(pairs of pools + jobs)."""
    lent = [
        WouldLend(lender, borrower, seconds / 3600)
        for lender, sums in state.lent.items()
        for borrower, seconds in sums.items()
    ]
    seen = [each for each in lent if who.sees(each.lender) or who.sees(each.borrower)]
    return LendingShadow(
        state.since, state.until, state.jobs, sum(each.gpu_hours for each in lent), state.sooner,
        state.later, state.gained, state.lost, state.unknown, state.renewed,
        sorted(seen, key=lambda each: (-each.gpu_hours, each.lender, each.borrower)), state.pending,
    )  # fmt: skip


def recalls_view(turns: Iterable[Turns]) -> LendingRecalls | None:
    """Sum what the stops of guests gained and cost; None if no guest was stopped. O(pools)."""
    some = [each for each in turns if each.stops]
    if not some:
        return None
    return LendingRecalls(
        sum(each.stops for each in some),
        fsum(each.ran for each in some) / 3600,
        fsum(each.lost for each in some) / 3600,
        fsum(each.left for each in some),
    )


def turns_view(pool: str, turns: Turns) -> PoolTurns:
    """Convert the turns and guests of a pool. O(1)."""
    return PoolTurns(
        pool, turns.turns, turns.late, turns.latest, turns.guests, turns.stops, turns.lost
    )


def loans_view(records: Iterable[JobRecord], who: Principal) -> LoanList:
    """List open loans between pools. A pool's spare jobs on its own GPUs are not loans.

    A loan between two pools that `who` may not see appears only in the sums. A job of a pool that
    `who` may not see has an empty name.
    """
    lent: Counter[str] = Counter()
    borrowed: Counter[str] = Counter()
    loans = []
    for record in records:
        pool = record.spec.pool
        for donor, gpus in record.loans:
            if donor != pool:
                since = record.started or record.decided or record.submitted
                if who.sees(pool) or who.sees(donor):
                    name = record.spec.id if who.sees(pool) else ""
                    loans.append(LoanView(name, pool, donor, gpus, since))
                lent[donor] += gpus
                borrowed[pool] += gpus
    return LoanList(loans, dict(lent), dict(borrowed))


async def alone_of(service: Service, record: JobRecord) -> float | None:
    """Return the baseline start of a job, or None if unknown or never. O(1)."""
    spec = record.spec
    service.engine.settle_accounts()
    if record.phase not in OVER:
        account = service.book.accounts.get(spec.pool)
        twin = None if account is None else account.clock.twins.get(record.core)
        return twin.began if twin is not None and twin.judged else None
    new = (verdict for verdict in reversed(service.book.verdicts) if verdict.job == spec.id)
    verdict = next(new, None) or await service.journal(lambda journal: journal.verdict(spec.id))
    return None if verdict is None else verdict.alone
