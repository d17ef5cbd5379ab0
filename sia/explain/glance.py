"""What a pending job lacks at first sight, read from the state: no trial, no change.

It is for a view that many people open. It names its place in the queue, missing quota, missing idle
GPUs, limits and reservations, but not which jobs would have to end.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from sia.explain.obstacles import (
    Explanation,
    Length,
    LimitObstacle,
    Obstacle,
    OrderObstacle,
    OtherPools,
    Out,
    QuotaObstacle,
    Reservation,
    RoomObstacle,
    StartPath,
    Width,
)
from sia.limits import UNKNOWN_RUN_TIME
from sia.model import Options
from sia.policies import Policy
from sia.policies.sia.reservations import reservations
from sia.state.state import JobState, PoolState

LARGEST = 3
"""Pools with the largest reservations that are named: more make no line."""


def glance(policy: Policy, job: JobState) -> Explanation:
    """What a pending job lacks under this policy. O(pending jobs of its pool + pools · windows).

    A policy that shares has two ways to start a job, others have one.
    """
    ways = [_within_quota(policy, job)]
    if policy.shares:
        ways.append(_on_spare_gpus(policy, job))
    best = next((way for way in ways if way.open), ways[0])
    return Explanation(best.obstacles, tuple(ways), exact=False)


def jobs_ahead(policy: Policy, job: JobState) -> list[JobState]:
    """Pending jobs of its pool that come before it, in order. O(n) of its pool."""
    mine = policy.rank(job)
    ahead = [other for other in job.pool.waiting() if policy.rank(other) < mine]
    return sorted(ahead, key=policy.rank)


def order_obstacle(ahead: Sequence[JobState]) -> OrderObstacle:
    """The jobs ahead as an obstacle; there must be one."""
    return OrderObstacle(len(ahead), sum(each.gpus for each in ahead), ahead[0].job.id)


def missing_quota(job: JobState) -> int:
    """GPUs that its pool's quota has too few left for it; 0 or less if it has enough."""
    return job.pool.dedicated + job.gpus - job.pool.quota


def window_of(job: JobState, options: Options) -> int | None:
    """The window in which the least is reserved of those that its run time fits; None if none."""
    first = bisect_left(options.windows, job.run_time)
    fitting = range(first, len(options.windows))
    if not fitting:
        return None
    reserved = [reservations(pool, options) for pool in job.pool.group.pools]
    return min(fitting, key=lambda window: sum(gpus[window] for gpus in reserved))


def known_run_time(job: JobState) -> float | None:
    """Its expected run time; None if nothing is known of it."""
    return None if job.run_time >= UNKNOWN_RUN_TIME else job.run_time


def reservation_of(
    pool: PoolState, window: int, options: Options, now: float, *, waiting: int, load: int
) -> Reservation:
    """What is reserved for a pool in a window, for these causes."""
    span = options.windows[window]
    held = reservations(pool, options)[window]
    return Reservation(pool.name, span, held, waiting, load, now + span)


def other_pools(pools: Sequence[PoolState], window: int | None, options: Options) -> OtherPools:
    """Several pools as one obstacle; without a window nothing counts as reserved."""
    held = {pool: reservations(pool, options)[window or 0] for pool in pools}
    if window is None:
        held = dict.fromkeys(pools, 0)
    order = sorted(pools, key=lambda pool: (-held[pool], pool.name))
    return OtherPools(
        len(pools),
        sum(pool.length for pool in pools),
        sum(pool.pending_width for pool in pools),
        0.0 if window is None else options.windows[window],
        sum(held.values()),
        tuple((pool.name, held[pool]) for pool in order[:LARGEST] if held[pool]),
    )


def _within_quota(policy: Policy, job: JobState) -> StartPath:
    pool = job.pool
    if job.gpus > pool.quota:
        return StartPath("turn", open=False, obstacles=(Width(job.gpus, pool.quota),))
    found: list[Obstacle] = []
    if ahead := jobs_ahead(policy, job):
        found.append(order_obstacle(ahead))
    if (short := missing_quota(job)) > 0:
        left = max(0, pool.quota - pool.dedicated)
        found.append(QuotaObstacle(pool.name, short, left, pool.quota, ()))
    if not found:
        found += _missing_idle(job)
    return StartPath("turn", open=True, obstacles=tuple(found))


def _on_spare_gpus(policy: Policy, job: JobState) -> StartPath:
    pool, options = job.pool, policy.state.options
    # Under a policy that goes by forecasts, what its own pool has left is reserved for itself.
    own = pool.quota if not policy.needs.loads else 0
    most = max(pool.quota, pool.group.quota - pool.quota + own)
    if job.gpus > most:
        return StartPath("spare", open=False, obstacles=(Width(job.gpus, most),))
    found: list[Obstacle] = []
    if policy.needs.loads and job.run_time > options.windows[-1]:
        found.append(Length(known_run_time(job), options.windows[-1]))
    elif not policy.needs.loads and (ahead := jobs_ahead(policy, job)):
        found.append(order_obstacle(ahead))
    lacks = _missing_idle(job) or _limits(job)
    if not lacks and not found and policy.needs.loads:
        lacks = _reserved(job, options, policy.state.now)
    return StartPath("spare", open=True, obstacles=(*found, *lacks))


def _missing_idle(job: JobState) -> list[Obstacle]:
    idle = job.pool.group.idle
    return [RoomObstacle(job.gpus - idle, max(0, idle), ())] if job.gpus > idle else []


def _limits(job: JobState) -> list[Obstacle]:
    """The limit that keeps idle GPUs from a job that has no quota left, if one does."""
    pool, group = job.pool, job.pool.group
    if not group.limited or job.gpus <= pool.room or missing_quota(job) <= 0:
        return []
    if job.gpus > group.idle - group.out:
        return [Out(group.out)]
    if not group.lending:
        return [LimitObstacle("lending")]
    if job.gpus > max(0, pool.unused) + max(0, pool.borrow_limit - pool.borrows):
        return [LimitObstacle("borrow", pool.name, pool.borrow_limit)]
    return [LimitObstacle("lend")]


def _reserved(job: JobState, options: Options, now: float) -> list[Obstacle]:
    """Reservations of other pools that leave too few idle GPUs, if they do."""
    group, window = job.pool.group, window_of(job, options)
    assert window is not None, "its run time fits a window"
    held = {pool: reservations(pool, options)[window] for pool in group.pools}
    if job.width <= group.idle - group.out - sum(held.values()):
        return []
    pools = [pool for pool in group.pools if pool is not job.pool and held[pool]]
    if len(pools) == 1:
        (pool,) = pools
        causes = {"waiting": pool.pending_width, "load": pool.load[window]}
        return [reservation_of(pool, window, options, now, **causes)]
    return [other_pools(pools, window, options)] if pools else []
