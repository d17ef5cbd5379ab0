"""GPUs cut into parts, for shares that are not whole (PCS, §3.1)."""

from __future__ import annotations

from msgspec.structs import replace

from replay.logs.trace import PoolTable, Trace
from sia.console.errors import UserError
from sia.limits import MAX_POINTS, MAX_QUOTA
from sia.model import Job


def in_parts(trace: Trace, table: PoolTable, parts: int) -> tuple[Trace, PoolTable]:
    """Return the log and the pools with each GPU cut into `parts`.

    Quotas and stated widths are multiplied by `parts`. A job that does not state its least width
    can run on one part. Raises UserError if a product exceeds the largest quota.
    """
    largest = max([q for steps in table.quotas().values() for _, q in steps], default=0)
    widest = max([max(job.width, job.max_width) for job, _ in trace.arrivals], default=0)
    if max(largest, widest) * parts > MAX_QUOTA:
        raise UserError(
            f"--parts {parts}: {max(largest, widest):,} GPUs would be more than {MAX_QUOTA:,} "
            "parts; use fewer"
        )
    arrivals = [each._replace(job=_cut(each.job, parts)) for each in trace.arrivals]
    pools = [replace(pool, quota=pool.quota * parts) for pool in table.pools]
    changes = [replace(change, quota=change.quota * parts) for change in table.changes]
    cut = Trace(arrivals, trace.columns, trace.extras, trace.dropped, trace.notes, trace.origin)
    return cut, PoolTable(pools, changes, table.columns, table.extras)


def _cut(job: Job, parts: int) -> Job:
    return replace(
        job,
        width=job.width * parts,
        min_width=job.min_width * parts,
        max_width=job.max_width * parts,
        demand=_demand(job.demand, parts),
    )


def _demand(demand: tuple[tuple[int, float], ...], parts: int) -> tuple[tuple[int, float], ...]:
    """Return the demand in parts; below one GPU the speed is in proportion to the parts."""
    if not demand or parts == 1:
        return demand
    first, seconds = demand[0]
    below = [(1, seconds * parts)]
    if first > 1:
        below.append((parts, seconds))
    points = [*below, *((gpus * parts, time) for gpus, time in demand)]
    return tuple(points if len(points) <= MAX_POINTS else [below[0], *points[len(below) + 1 :]])
