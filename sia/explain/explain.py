"""Explain why a pending job does not start, by trials without some obstacles.

Each trial removes obstacles by events on a copy of the core and makes one real pass, as `Core.step`
does, so the answer holds for every policy. Trials remove each obstacle alone, then pairs, then
three and four of the main ones. The answer has the first obstacles without which the job starts,
or else the facts that `glance` finds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, combinations, islice
from math import inf
from typing import NamedTuple

from msgspec.structs import replace

from sia.contract.policy import Policy
from sia.core.core import Core
from sia.core.guard import ask
from sia.decisions import StartJob
from sia.events import (
    Event,
    ForecastUpdated,
    GpusOut,
    JobCancelled,
    JobFinished,
    LendingSwitched,
    PoolChanged,
    PriorityChanged,
    RunTimesUpdated,
)
from sia.explain.glance import (
    glance,
    guest_obstacle,
    jobs_ahead,
    known_run_time,
    missing_quota,
    needed_gpus,
    order_obstacle,
    other_pools,
    reservation_of,
    reserved_in,
    window_of,
)
from sia.explain.obstacles import (
    EarlyObstacle,
    EndingJob,
    Explanation,
    GuestObstacle,
    Length,
    LimitObstacle,
    Obstacle,
    OrderObstacle,
    OtherPools,
    Out,
    QuotaObstacle,
    Rival,
    RoomObstacle,
    RoundObstacle,
)
from sia.limits import UNKNOWN_RUN_TIME, UNLIMITED
from sia.model import Estimate, Load, Stream
from sia.state.state import JobState, PoolState

MOST_PASSES = 64
"""Largest number of passes for one answer. A pass over 1,000 pools and 50,000 pending jobs takes
about 30 ms in a forked copy, so an answer takes at most about two seconds. All sets of obstacles
that `_sets` yields fit into this number."""

ENOUGH_PASSES = 16
"""Number of passes after which the search ends if one way to start is confirmed: a second way may
not exist."""

MOST_PAIRS = 32
"""Largest number of pairs in trials, so that single obstacles, pairs and the trials after them fit
into `MOST_PASSES`."""

MAIN = (OrderObstacle, GuestObstacle, QuotaObstacle, RoomObstacle, OtherPools)
"""The main obstacles: in a crowded cluster a job deep in its queue waits for all of these."""

MOST_POOLS = 4
"""Number of pools that trials remove one by one: those with the largest reservations, then those
with the most GPUs pending. If there are more pools, a trial removes all of them together."""

TryStart = Callable[[Core, str, Sequence[Event]], Stream | None]
"""Returns the stream in which a job starts if these events happen now, or None if it does not
start. It does not change the core."""


class ObstacleRemoval(NamedTuple):
    """An obstacle, and the events that remove it."""

    obstacle: Obstacle
    events: Sequence[Event]
    frees: int = 0
    """The number of GPUs that become idle by these events."""


def explain(core: Core, job: JobState, try_start: TryStart | None = None) -> Explanation:
    """Return what a pending job waits for. At most `MOST_PASSES` passes and copies of the core.

    `try_start` may copy the core in a cheaper way than `Core.copy`, which is O(state).
    """
    attempt = try_start or start_in_copy
    sight = glance(core.policy, job)
    if any(isinstance(each, RoundObstacle) for each in sight.obstacles):
        return sight  # no job starts before a round begins, whatever obstacles are removed
    wanted = sum(way.open for way in sight.ways)
    found: dict[str, tuple[Obstacle, ...]] = {}
    worth = partial(_may_start, core, job)
    for passes, chosen in enumerate(filter(worth, _sets(candidates(core, job), worth))):
        if len(found) == wanted or passes == (ENOUGH_PASSES if found else MOST_PASSES):
            break
        stream = attempt(core, job.job.id, _events(chosen))
        if stream is not None:
            way = "turn" if stream is Stream.DEDICATED else "spare"
            found.setdefault(way, tuple(each.obstacle for each in chosen))
            if not chosen:
                break
    ways = tuple(
        replace(way, obstacles=found[way.name], exact=True) if way.name in found else way
        for way in sight.ways
    )
    if not found:
        return Explanation(sight.obstacles, ways, exact=False)
    return Explanation(min(found.values(), key=len), ways, exact=True)


def start_in_copy(core: Core, job_id: str, events: Sequence[Event]) -> Stream | None:
    """As `start_after`, on a copy of the core. O(state)."""
    return start_after(core.copy(), job_id, events)


def start_after(core: Core, job_id: str, events: Sequence[Event]) -> Stream | None:
    """Apply events to the core; return the stream in which a job starts, or None."""
    for decision in core.step(core.state.now, events):
        if isinstance(decision, StartJob) and decision.job_id == job_id:
            return decision.stream
    return None


def candidates(core: Core, job: JobState) -> list[ObstacleRemoval]:
    """Return the obstacles to remove in trials, likeliest first. O(jobs + pools · windows)."""
    found = [*_own_pool(core, job)]
    if core.policy.shares:
        windows, lasting = core.state.options.windows, ask(core.policy, "lasting", job)
        run_times = [*_run_time(core, job)] if lasting == job.run_time else []
        too_long = lasting > windows[-1]  # then nothing else starts it on spare GPUs
        found += chain(_idle_gpus(core, job), run_times if too_long else ())
        found += chain(_limits(core, job), _pools(core, job), () if too_long else run_times)
    return found


def _sets(
    found: Sequence[ObstacleRemoval], worth: Callable[[Sequence[ObstacleRemoval]], bool]
) -> Iterator[Sequence[ObstacleRemoval]]:
    """Yield the empty set, each obstacle, likely pairs, then three and four of the main ones."""
    yield ()
    yield from ((each,) for each in found)
    places = sorted(combinations(range(len(found)), 2), key=sum)
    pairs = ((found[a], found[b]) for a, b in places)
    yield from islice(filter(worth, pairs), MOST_PAIRS)
    main = [each for each in found if isinstance(each.obstacle, MAIN)]
    yield from chain(combinations(main, 3), combinations(main, 4))


def _may_start(core: Core, job: JobState, chosen: Sequence[ObstacleRemoval]) -> bool:
    """Return whether a pass can start the job: if no job is stopped, it needs idle GPUs."""
    idle = job.pool.group.idle + sum(each.frees for each in chosen)
    return core.policy.needs.preemption or needed_gpus(core.policy, job) <= idle


def _events(chosen: Iterable[ObstacleRemoval]) -> list[Event]:
    """Return their events. A job that several of them end or cancel has one event."""
    jobs: dict[str, Event] = {}
    others: list[Event] = []
    for event in chain.from_iterable(each.events for each in chosen):
        if isinstance(event, JobFinished | JobCancelled):
            jobs[event.job_id] = event
        else:
            others.append(event)
    return [*jobs.values(), *others]


def _own_pool(core: Core, job: JobState) -> Iterator[ObstacleRemoval]:
    """Yield obstacles in the job's own pool: jobs ahead of it, guests, and the quota."""
    pool, now = job.pool, core.state.now
    if ahead := jobs_ahead(core.policy, job):
        yield ObstacleRemoval(
            order_obstacle(ahead), [JobCancelled(now, each.job.id) for each in ahead]
        )
    if guests := ask(core.policy, "guests_before", job):
        yield ObstacleRemoval(
            guest_obstacle(guests),
            [JobFinished(now, each.job.id) for each in guests],
            sum(each.width for each in guests),
        )
    priority = ask(core.policy, "overtaken_by", job)
    if priority is not None and not ahead:
        yield ObstacleRemoval(EarlyObstacle(priority), [PriorityChanged(now, job.job.id, priority)])
    short = missing_quota(core.policy, job)
    if short > 0 and needed_gpus(core.policy, job) <= pool.quota:
        own = [each for each in core.state.jobs.values()
               if each.pool is pool and each.stream is Stream.DEDICATED]  # fmt: skip
        growth = _growth(core.policy, own)
        ends = _first_to_end(
            own, short + sum(growth.values()), lambda each: each.width + growth[each]
        )
        left = max(0, pool.quota - pool.dedicated)
        shown = tuple(_ending(each, now) for each in ends)
        events = [JobFinished(now, each.job.id) for each in ends]
        obstacle = QuotaObstacle(pool.name, short, left, pool.quota, shown)
        yield ObstacleRemoval(obstacle, events, sum(each.width for each in ends))


def _growth(policy: Policy, running: Iterable[JobState]) -> dict[JobState, int]:
    """Return how many more GPUs each running job could take, as it may when other jobs end."""
    resizing = policy.needs.resizing
    return {
        each: ask(policy, "widths", each)[1] - each.width if resizing else 0 for each in running
    }


def _idle_gpus(core: Core, job: JobState) -> Iterator[ObstacleRemoval]:
    """Yield the obstacle that the job's sharing group has too few idle GPUs."""
    group, now = job.pool.group, core.state.now
    short = needed_gpus(core.policy, job) - group.idle
    if short <= 0:
        return
    running = [each for each in core.state.jobs.values()
               if each.stream is not None and each.pool.group is group]  # fmt: skip
    ends = _first_to_end(running, short, lambda each: each.frees)
    obstacle = RoomObstacle(short, max(0, group.idle), tuple(_ending(each, now) for each in ends))
    events = [JobFinished(now, each.job.id) for each in ends]
    yield ObstacleRemoval(obstacle, events, sum(each.width for each in ends))


def _first_to_end(
    running: Iterable[JobState], gpus: int, frees: Callable[[JobState], int]
) -> list[JobState]:
    """Return the jobs that end first and together free the needed GPUs, without unneeded ones."""
    chosen: list[JobState] = []
    for job in sorted(running, key=lambda each: (_expected_end(each), each.sequence)):
        if gpus <= 0:
            break
        if frees(job) > 0:
            chosen.append(job)
            gpus -= frees(job)
    for job in sorted(chosen, key=frees):
        if gpus + frees(job) <= 0:
            chosen.remove(job)
            gpus += frees(job)
    return chosen


def _expected_end(job: JobState) -> float:
    """Return when a running job should end: in the past if it is late, infinite if unknown."""
    return inf if job.run_time >= UNKNOWN_RUN_TIME else job.end(job.run_time)


def _ending(job: JobState, now: float) -> EndingJob:
    end = _expected_end(job)
    shown = None if end == inf else max(now, end)
    return EndingJob(job.job.id, job.pool.name, job.width, shown, late=end < now)


def _run_time(core: Core, job: JobState) -> Iterator[ObstacleRemoval]:
    """Yield the obstacle that the job's run time is unknown or exceeds all windows."""
    if not core.policy.needs.updates:
        return
    now = core.state.now
    for window in reversed(core.state.options.windows):
        if window < job.run_time:
            events = [RunTimesUpdated(now, [Estimate(job.job.id, window)])]
            yield ObstacleRemoval(Length(known_run_time(job), window), events)


def _limits(core: Core, job: JobState) -> Iterator[ObstacleRemoval]:
    """Yield obstacles to loans: lending that is off, limits, and nodes that are out."""
    pool, group, now = job.pool, job.pool.group, core.state.now
    if not group.lending:
        yield ObstacleRemoval(LimitObstacle("lending"), [LendingSwitched(now, on=True)])
    if group.out:
        yield ObstacleRemoval(Out(group.out), [GpusOut(now, pool.name, 0)])
    if pool.borrow_limit < UNLIMITED:
        events: list[Event] = [_changed(core, pool, borrow_limit=UNLIMITED)]
        yield ObstacleRemoval(LimitObstacle("borrow", pool.name, pool.borrow_limit), events)
    limited = [each for each in group.pools if each.lend_limit < UNLIMITED and each is not pool]
    limited.sort(key=lambda each: (each.lendable - each.unused, each.name))
    lifted = {each: _changed(core, each, lend_limit=UNLIMITED) for each in limited}
    for each in limited[:MOST_POOLS]:
        yield ObstacleRemoval(LimitObstacle("lend", each.name, each.lend_limit), [lifted[each]])
    if len(limited) > 1:
        yield ObstacleRemoval(LimitObstacle("lend"), [*lifted.values()])


def _changed(
    core: Core, pool: PoolState, lend_limit: int | None = None, borrow_limit: int | None = None
) -> PoolChanged:
    """Return the event that changes one limit of a pool."""
    places = core.state.places
    cells = {} if places is None else places.dump().quotas()[pool.name]
    return PoolChanged(
        core.state.now, pool.name, pool.quota, cells, lend_limit=lend_limit,
        borrow_limit=borrow_limit,
    )  # fmt: skip


def _pools(core: Core, job: JobState) -> Iterator[ObstacleRemoval]:
    """Yield the forecasts and pending jobs of pools, including the job's own pool's forecast."""
    options, now, group = core.state.options, core.state.now, job.pool.group
    held, window, span = dict.fromkeys(group.pools, 0), None, 0.0
    if core.policy.needs.loads:
        reserved = reserved_in(group, core.policy)
        window = window_of(ask(core.policy, "lasting", job), options, reserved)
    if window is not None:
        held, span = {pool: reserved[pool][window] for pool in held}, options.windows[window]
    others = [p for p in held if p is not job.pool and (p.length or held[p])]
    others.sort(key=lambda pool: (-held[pool], -pool.pending_width, pool.name))
    forecasts = {pool: _no_forecast(core, pool) for pool in held}
    queues = {pool: [JobCancelled(now, j.job.id) for j in pool.waiting()] for pool in others}
    for pool in [*others[:MOST_POOLS], job.pool]:
        load = 0 if window is None else pool.load[window]
        if held[pool] and load:
            yield ObstacleRemoval(
                reservation_of(pool, span, held[pool], now, load=load), [forecasts[pool]]
            )
    for pool in others[:MOST_POOLS]:
        gpus = pool.pending_width
        obstacle: Obstacle = Rival(pool.name, pool.length, gpus)
        if held[pool]:
            obstacle = reservation_of(pool, span, held[pool], now, waiting=gpus)
        if gpus:
            yield ObstacleRemoval(obstacle, queues[pool])
    if others:
        events: list[Event] = [event for pool in others for event in queues[pool]]
        events += (forecasts[pool] for pool in others)
        yield ObstacleRemoval(other_pools({pool: held[pool] for pool in others}, span), events)


def _no_forecast(core: Core, pool: PoolState) -> ForecastUpdated:
    windows = range(len(core.state.options.windows))
    return ForecastUpdated(core.state.now, [Load(pool.name, window, 0) for window in windows])
