"""What a waiting job lacks at first sight: its turn, quota and idle GPUs.

`sia.why` without who would have to end, and without trials: for a view of a job that many look at.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence

from sia.explain.why import (
    Explanation,
    Length,
    Obstacle,
    OrderObstacle,
    OtherPools,
    Out,
    StartPath,
    Width,
    before,
    in_turn,
    on_idle,
    only,
    quota_of,
    turn_of,
)
from sia.limits import UNKNOWN_RUN_TIME
from sia.model import Options
from sia.state.state import JobState, PoolState

LARGEST = 3
"""Of many pools those that are named for what is held back for them."""


def glance(job: JobState, now: float, ahead: Sequence[JobState], *, shares: bool) -> Explanation:
    """For who lends whatever is idle, or nothing; `ahead` are jobs of its pool that go first."""
    said = (on_idle if shares else in_turn)(job, (), now)
    (way,) = said.ways
    return only(way.name, (*_turn(ahead), *way.obstacles), exact=False) if way.open else said


def glance_at_sia(
    job: JobState, options: Options, held: Mapping[PoolState, Sequence[int]], now: float
) -> Explanation:
    """For SIA, which has `held` back so many GPUs for each pool, by window. O(pools)."""
    turn, spare = never_in_turn(job), never_spare(job, options)
    if turn is None:
        quota = quota_of(job, (), now)
        found: list[Obstacle] = [*_turn(before(job)), *([quota] if quota else [])]
        idle = on_idle(job, (), now).obstacles if job.gpus > job.pool.group.idle else ()
        turn = StartPath("turn", open=True, obstacles=tuple(found) or idle)
    if spare is None:
        lacks = on_idle(job, (), now).obstacles or _held_back(job, options, held)
        spare = StartPath("spare", open=True, obstacles=lacks)
    return Explanation((turn if turn.open else spare).obstacles, (turn, spare), exact=False)


def never_in_turn(job: JobState) -> StartPath | None:
    """That it never starts within its pool's quota, where that is so."""
    quota, gpus = job.pool.quota, job.gpus
    return StartPath("turn", open=False, obstacles=(Width(gpus, quota),)) if gpus > quota else None


def never_spare(job: JobState, options: Options) -> StartPath | None:
    """That SIA never starts it as a spare job, where that is so."""
    longest = options.windows[-1]
    if job.run_time > longest:
        thought = None if job.run_time >= UNKNOWN_RUN_TIME else job.run_time
        return StartPath("spare", open=False, obstacles=(Length(thought, longest),))
    quota = job.pool.quota
    most = max(quota, job.pool.group.quota - quota)  # its own are held back, for itself
    if job.width <= most:
        return None
    return StartPath("spare", open=False, obstacles=(Width(job.width, most),))


def _turn(ahead: Sequence[JobState]) -> list[OrderObstacle]:
    return [turn_of(ahead)] if ahead else []


def _held_back(
    job: JobState, options: Options, held: Mapping[PoolState, Sequence[int]]
) -> tuple[Obstacle, ...]:
    """Pools, and GPUs that are out, for which most is held back, in the window with the least."""
    group = job.pool.group
    windows = range(bisect_left(options.windows, job.run_time), len(options.windows))
    sums = {window: sum(held[pool][window] for pool in group.pools) for window in windows}
    window = min(windows, key=lambda each: sums[each])
    pools = [pool for pool in group.pools if pool is not job.pool and held[pool][window]]
    if not pools or job.width <= group.idle - group.out - sums[window]:
        return ()
    pools.sort(key=lambda pool: (-held[pool][window], pool.name))
    others = OtherPools(
        len(pools), sum(len(pool.pending) + len(pool.aside) for pool in pools),
        sum(pool.pending_width for pool in pools), options.windows[window],
        sum(held[pool][window] for pool in pools),
        tuple((pool.name, held[pool][window]) for pool in pools[:LARGEST]),
    )  # fmt: skip
    return (others, Out(group.out)) if group.out else (others,)
