"""Facts of the state that keep a pending job from starting, without trials.

For views that many people open. The facts are the job's place in the queue, missing quota, missing
idle GPUs, limits and reservations, but not which jobs would have to end.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from functools import partial
from math import inf

from sia.contract.policy import Policy, next_multiple
from sia.contract.views import JobStateView
from sia.core.guard import ask
from sia.explain.obstacles import (
    EarlyObstacle,
    Explanation,
    GuestObstacle,
    LeastTime,
    Length,
    LimitObstacle,
    Obstacle,
    OrderObstacle,
    OtherPools,
    Out,
    QuotaObstacle,
    Reservation,
    RoomObstacle,
    RoundObstacle,
    StartPath,
    TurnOnly,
    Width,
)
from sia.limits import UNKNOWN_RUN_TIME
from sia.model import NEVER_STOPPED, Options
from sia.state.state import GroupState, JobState, PoolState

Reserved = Mapping[PoolState, Sequence[int]]
"""GPUs that the policy reserves for each pool of a group, by window."""

LARGEST = 3
"""Number of pools with the largest reservations that an answer names; more do not fit a line."""


def glance(policy: Policy, job: JobState) -> Explanation:
    """Return what a pending job lacks. O(pending jobs of its pool + pools · windows).

    A policy that shares has two ways to start a job, others have one.
    """
    ways = [_within_quota(policy, job)]
    if policy.shares:
        ways.append(_on_spare_gpus(policy, job))
    best = next((way for way in ways if way.open), ways[0])
    return Explanation(best.obstacles, tuple(ways), exact=False)


def jobs_ahead(policy: Policy, job: JobState) -> list[JobState]:
    """Return the pending jobs ahead of it in its queue, in order. O(pending jobs of its pool).

    Under a policy without queues there are none.
    """
    if not policy.queued:
        return []
    rank, queue = partial(ask, policy, "rank"), partial(ask, policy, "queue")
    mine, own = rank(job), queue(job)
    before = (other for other in job.pool.waiting() if rank(other) < mine)
    return sorted((other for other in before if queue(other) == own), key=rank)


def order_obstacle(ahead: Sequence[JobState]) -> OrderObstacle:
    """Return the jobs ahead as an obstacle; there must be at least one job."""
    return OrderObstacle(len(ahead), sum(each.gpus for each in ahead), ahead[0].job.id)


def guest_obstacle(guests: Sequence[JobStateView]) -> GuestObstacle:
    """Return guests of its pool as an obstacle; there must be at least one guest."""
    return GuestObstacle(len(guests), sum(each.width for each in guests), guests[0].job.id)


def missing_quota(policy: Policy, job: JobState) -> int:
    """Return how many GPUs its pool's quota lacks for it; 0 or less if it lacks none."""
    return job.pool.dedicated + needed_gpus(policy, job) - job.pool.quota


def needed_gpus(policy: Policy, job: JobState) -> int:
    """Return the smallest number of GPUs with which it can start."""
    least: int = ask(policy, "widths", job)[0]
    return least


def window_of(lasting: float, options: Options, reserved: Reserved) -> int | None:
    """Return, of the windows of at least `lasting` seconds, the one with the smallest reservations.

    None if no window is that long.
    """
    first = bisect_left(options.windows, lasting)
    sums = [sum(gpus) for gpus in zip(*reserved.values(), strict=True)]
    return min(range(first, len(sums)), key=sums.__getitem__, default=None)


def reserved_in(group: GroupState, policy: Policy) -> Reserved:
    """Return the policy's reservations for each pool of a group. O(pools)."""
    held = policy.plan[group].held
    return {pool: held[pool] for pool in group.pools}


def known_run_time(job: JobState) -> float | None:
    """Return its expected run time in seconds; None if unknown."""
    return None if job.run_time >= UNKNOWN_RUN_TIME else job.run_time


def reservation_of(
    pool: PoolState, window: float, gpus: int, now: float, *, waiting: int = 0, load: int = 0
) -> Reservation:
    """Return the obstacle of GPUs reserved for a pool in a window (seconds), with the causes."""
    return Reservation(pool.name, window, gpus, waiting, load, now + window)


def other_pools(held: Mapping[PoolState, int], window: float) -> OtherPools:
    """Return several pools as one obstacle; `held` has their reservations in `window` seconds."""
    order = sorted(held, key=lambda pool: (-held[pool], pool.name))
    return OtherPools(
        len(order),
        sum(pool.length for pool in order),
        sum(pool.pending_width for pool in order),
        window,
        sum(held.values()),
        tuple((pool.name, held[pool]) for pool in order[:LARGEST] if held[pool]),
    )


def _says_more(policy: Policy, job: JobState) -> bool:
    """Return whether a plan or a rule says more of a pending job than when the next round is."""
    return any(ask(policy, what, job) is not None for what in ("foretell", "awaits"))


def _within_quota(policy: Policy, job: JobState) -> StartPath:
    pool, needs = job.pool, needed_gpus(policy, job)
    if needs > pool.quota:
        return StartPath("turn", open=False, obstacles=(Width(needs, pool.quota),))
    if policy.round is not None and not _says_more(policy, job):
        begins = next_multiple(policy.state.now, policy.round)
        return StartPath("turn", open=True, obstacles=(RoundObstacle(begins),))
    found: list[Obstacle] = []
    if ahead := jobs_ahead(policy, job):
        found.append(order_obstacle(ahead))
    if guests := ask(policy, "guests_before", job):
        found.append(guest_obstacle(guests))
    if (short := missing_quota(policy, job)) > 0:
        left = max(0, pool.quota - pool.dedicated)
        found.append(QuotaObstacle(pool.name, short, left, pool.quota, ()))
    if (priority := ask(policy, "overtaken_by", job)) is not None:
        found.append(EarlyObstacle(priority))
    if not found:
        found += _missing_idle(job, needs)
    return StartPath("turn", open=True, obstacles=tuple(found))


def _on_spare_gpus(policy: Policy, job: JobState) -> StartPath:
    pool, options = job.pool, policy.state.options
    # Under a policy with forecasts, the unused quota of its own pool is reserved for that pool.
    foresees = ask(policy, "foresees", job)
    own = pool.quota if not foresees else 0
    most = max(pool.quota, pool.group.quota - pool.quota + own)
    needs = needed_gpus(policy, job)
    if needs > most:
        return StartPath("spare", open=False, obstacles=(Width(needs, most),))
    found: list[Obstacle] = []
    lasting: float = ask(policy, "lasting", job)
    if lasting == inf and foresees:
        never = job.job.preemptible in (None, NEVER_STOPPED)
        return StartPath("spare", open=False, obstacles=(TurnOnly("hard" if never else "stops"),))
    if foresees and lasting > options.windows[-1]:
        if lasting == job.run_time:
            found.append(Length(known_run_time(job), options.windows[-1]))
        else:
            found.append(LeastTime(lasting, options.windows[-1]))
    elif not policy.needs.loads and (ahead := jobs_ahead(policy, job)):
        found.append(order_obstacle(ahead))
    lacks = _missing_idle(job, needs) or _limits(policy, job)
    if not lacks and not found and foresees:
        lacks = _reserved(job, policy)
    return StartPath("spare", open=True, obstacles=(*found, *lacks))


def _missing_idle(job: JobState, needs: int) -> list[Obstacle]:
    idle = job.pool.group.idle
    return [RoomObstacle(needs - idle, max(0, idle), ())] if needs > idle else []


def _limits(policy: Policy, job: JobState) -> list[Obstacle]:
    """Return the limit on loans that keeps the job from idle GPUs, or an empty list."""
    pool, group, needs = job.pool, job.pool.group, needed_gpus(policy, job)
    if not group.limited or needs <= pool.room or missing_quota(policy, job) <= 0:
        return []
    if needs > group.idle - group.out:
        return [Out(group.out)]
    if not group.lending:
        return [LimitObstacle("lending")]
    if needs > max(0, pool.unused) + max(0, pool.borrow_limit - pool.borrows):
        return [LimitObstacle("borrow", pool.name, pool.borrow_limit)]
    return [LimitObstacle("lend")]


def _reserved(job: JobState, policy: Policy) -> list[Obstacle]:
    """Return the reservations of other pools, if they leave too few idle GPUs for the job."""
    group, options, now = job.pool.group, policy.state.options, policy.state.now
    reserved = reserved_in(group, policy)
    window = window_of(ask(policy, "lasting", job), options, reserved)
    assert window is not None, "its run time fits a window"
    held = {pool: gpus[window] for pool, gpus in reserved.items() if gpus[window]}
    if job.width <= group.idle - group.out - sum(held.values()):
        return []
    held.pop(job.pool, None)
    span = options.windows[window]
    if len(held) == 1:
        ((pool, gpus),) = held.items()
        load = pool.load[window]
        return [reservation_of(pool, span, gpus, now, waiting=pool.pending_width, load=load)]
    return [other_pools(held, span)] if held else []
