"""Cut a slice out of a trace: some pools, a period, and quotas scaled to a load (§6.1)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from math import inf

from msgspec.structs import replace

from replay.logs.trace import PoolTable, Trace
from sia.console.errors import UserError
from sia.core.playout import Arrival
from sia.model import Pool
from sia.wording import counted, did_you_mean, duration, some


def scaled_quota(work: float, load: float, length: float) -> int:
    """Return the quota on which `work` GPU-seconds in `length` seconds are `load`; at least 1."""
    return max(1, round(work / (load * length)))


def slice_trace(
    trace: Trace,
    table: PoolTable,
    *,
    begin: float,
    end: float,
    pools: Sequence[str],
    loads: Mapping[str, float] | None = None,
) -> tuple[Trace, PoolTable]:
    """Return the jobs of `pools` submitted in [begin, end), with `begin` as the new second 0.

    With `loads`, each pool gets a constant quota on which its jobs make up the given load
    (`scaled_quota` of the sum of width · duration). The slice may contain jobs wider than that
    quota; the replay drops and counts them. Raises UserError for an unknown pool or if no job is
    left.
    """
    known = {pool.name for pool in table.pools}
    unknown = [name for name in pools if name not in known]
    if unknown:
        close = did_you_mean(unknown[0], known) or f" The pools are {some(sorted(known))}."
        raise UserError(f"--pick: no pool {unknown[0]!r}.{close}")
    part = _cut(trace, begin, end, pools)
    if loads is None:
        return part, _own_quotas(table, begin, end, set(pools))
    return part, scaled_pools(part, table, loads, end - begin)


def scaled_pools(
    trace: Trace, table: PoolTable, loads: Mapping[str, float], length: float
) -> PoolTable:
    """Return the pools that `loads` names, with quotas that give each pool its load.

    A load is the fraction of the quota that the pool's jobs need over `length` seconds.
    """
    work = dict.fromkeys(loads, 0.0)
    for arrival in trace.arrivals:
        work[arrival.job.pool] += arrival.job.width * arrival.duration
    scaled = {name: scaled_quota(work[name], load, length) for name, load in loads.items()}
    selected = [pool for pool in table.pools if pool.name in scaled]
    return PoolTable([Pool(p.name, scaled[p.name], p.group, p.share) for p in selected])


def shortened(trace: Trace, longest: float = inf, widest: int | None = None) -> Trace:
    """Return a log without jobs of more than `widest` GPUs, and with run times cut at `longest`.

    Raises UserError if no job is left.
    """
    kept = [
        Arrival(job, min(run_time, longest))
        for job, run_time in trace.arrivals
        if widest is None or job.width <= widest
    ]
    if not kept:
        raise UserError(f"--widest {widest}: all jobs of the piece are wider; give a larger number")
    dropped = Counter({f"wider than {widest} GPUs": len(trace.arrivals) - len(kept)})
    cut = sum(run_time > longest for _, run_time in trace.arrivals)
    notes = [f"{counted(cut, 'run time')} cut at {duration(longest)}"] if cut else []
    return Trace(
        kept, trace.columns, trace.extras, +dropped + trace.dropped, [*trace.notes, *notes],
        trace.origin,
    )  # fmt: skip


def merged(trace: Trace, gpus: int) -> tuple[Trace, PoolTable]:
    """Return the log with all jobs in one pool, `all`, of this number of GPUs."""
    kept = [Arrival(replace(job, pool="all"), run_time) for job, run_time in trace.arrivals]
    whole = Trace(
        kept, trace.columns, trace.extras, trace.dropped, [*trace.notes], trace.origin
    )  # fmt: skip
    return whole, PoolTable([Pool("all", gpus)])


def _cut(trace: Trace, begin: float, end: float, pools: Sequence[str]) -> Trace:
    wanted = set(pools)
    arrivals = []
    dropped: Counter[str] = Counter()
    for job, run_time in trace.arrivals:
        if job.pool not in wanted:
            dropped["of another pool"] += 1
        elif not begin <= job.submit < end:
            dropped["submitted outside of the piece"] += 1
        else:
            moved = job.submitted_at(job.submit - begin)
            arrivals.append(Arrival(moved, run_time))
    if not arrivals:
        raise UserError(
            f"no job of {some(pools)} was submitted between {begin:,.0f} s and {end:,.0f} s; "
            "change --from, --length or --pick"
        )
    extras = {a.job.id: trace.extras[a.job.id] for a in arrivals if a.job.id in trace.extras}
    notes = [f"second 0 of this slice is second {begin:,.0f} of the log"]
    return Trace(arrivals, trace.columns, extras, dropped + trace.dropped, notes)


def _own_quotas(table: PoolTable, begin: float, end: float, wanted: set[str]) -> PoolTable:
    """Return the pools with the quotas of the log from `begin` to `end`."""
    steps = table.quotas()
    selected = [
        Pool(p.name, next(q for t, q in reversed(steps[p.name]) if t <= begin), p.group, p.share)
        for p in table.pools
        if p.name in wanted
    ]
    changes = [
        type(change)(change.time - begin, change.pool, change.quota)
        for change in table.changes
        if change.pool in wanted and begin < change.time < end
    ]
    extras_of_pools = {
        (name, max(0.0, time - begin)): row
        for (name, time), row in sorted(table.extras.items())  # the last row before `begin` applies
        if name in wanted and time < end
    }
    return PoolTable(selected, changes, table.columns, extras_of_pools)
