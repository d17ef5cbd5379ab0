"""Explain why a job is pending, runs or has ended: obstacles found by trials, and daemon facts.

A trial is a decision pass on a copy of the core, without some obstacles (`sia.explain.explain`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import inf

from msgspec.structs import replace

from daemon.answers.explain.placement import (
    fragmentation_reason,
    out,
    placement_reasons,
    preference_reason,
)
from daemon.answers.explain.planned import plan_words, planned_of
from daemon.answers.explain.wording import (
    doubt,
    needed,
    outlook_words,
    over_words,
    run_words,
    stop_limit_words,
    stop_words,
    turn_words,
)
from daemon.model.access import Principal
from daemon.model.book import Book, JobRecord, PoolRecord, job_of
from daemon.model.job import JobPhase
from daemon.wire.explain import (
    Held,
    JobWhy,
    ObstacleView,
    OutlookView,
    PlacementObstacle,
    PoolHeld,
    PoolNotLending,
    TurnView,
    WayView,
)
from sia.contract.policy import RoundOutlook
from sia.core.core import Core
from sia.core.guard import ask
from sia.explain.explain import explain as explain_start
from sia.explain.glance import glance
from sia.explain.obstacles import (
    EndingJob,
    Explanation,
    GuestObstacle,
    LimitObstacle,
    OrderObstacle,
    QuotaObstacle,
    RoomObstacle,
)
from sia.explain.obstacles import Obstacle as CoreObstacle
from sia.model import NEVER_STOPPED, Stream
from sia.state.state import JobState


def explain(
    book: Book,
    core: Core,
    record: JobRecord,
    who: Principal,
    why: Callable[[Core, JobState], Explanation] = explain_start,
    now: float = -inf,
) -> JobWhy:
    """Explain the state of a job; `why` finds the obstacles of a pending job.

    `now` is the time of the question: hours may have passed since the engine's last step.
    With the default `why`, which makes trials, this costs decision passes and copies of the core.
    Jobs of pools that the caller may not see are not named individually.
    """
    spec = record.spec
    found = JobWhy(spec.id, spec.pool, record.phase, max(now, core.state.now), [])
    if record.phase.over:
        found.words = over_words(record)
        return found
    found.turn = turn_of(core, record)
    found.planned = planned_of(book, core, record, who)
    runs = record.stream is not None
    planned = plan_words(record, found.planned, found.time, runs=runs)
    found.outlook = outlook_of(core, record)
    stops = stop_words(record, book.setup.stops_per_job)
    if record.stream is not None:
        found.stream, found.reason, found.loans = record.stream, record.reason, dict(record.loans)
    job = waiting_in(core, record)
    if job is not None and record.phase is JobPhase.PENDING:
        explanation = why(core, job)
        found.exact, found.position = explanation.exact, position_of(core, record)
        found.obstacles = _seen(explanation.obstacles, book, who)
        found.ways = [
            WayView(w.name, w.open, _seen(w.obstacles, book, who), w.exact)
            for w in explanation.ways
        ]
        found.words = [
            *needed(found, found.time),
            *_outage_words(book, core, job),
            *_limit_words(core),
            *doubt(explanation, ask(core.policy, "awaits", job), found.time),
            *planned,
        ]
        found.words += turn_words(found.turn, found.time, running=False)
        found.words += [*outlook_words(found.outlook, found.time), *stops]
        return found
    found.obstacles = _outside(book, record)
    found.exact = bool(found.obstacles)
    found.words = _waits_outside(book, record) or run_words(record, found.time)
    found.words += [
        *planned,
        *turn_words(found.turn, found.time, running=runs, stoppable=_may_stop(core, record)),
    ]
    found.words += [*outlook_words(found.outlook, found.time), *stops]
    return found


def turn_of(core: Core, record: JobRecord) -> TurnView | None:
    """Return a job's turn; None if the policy has no turns. O(n log n) for n jobs ahead of it."""
    job = core.state.jobs.get(record.core) if record.core else None
    turn = None if job is None else ask(core.policy, "turn", job)
    if job is None or turn is None:
        return None
    guest = job.stream is Stream.SPARE and not turn.came
    return TurnView(None if turn.time == inf else turn.time, turn.came, guest)


def _may_stop(core: Core, record: JobRecord) -> bool:
    """Return whether a job or the configuration says that it may be stopped."""
    job = core.state.jobs.get(record.core)
    return job is not None and job.job.preemptible not in (None, NEVER_STOPPED)


def outlook_of(core: Core, record: JobRecord) -> OutlookView | None:
    """Return what a policy that plans rounds plans for a job; None under other policies.

    O(n log n) for n jobs of its pool.
    """
    job = core.state.jobs.get(record.core) if record.core else None
    found: RoundOutlook | None = None if job is None else ask(core.policy, "outlook", job)
    if found is None:
        return None
    view = OutlookView(**found._asdict() | {"plan": [*found.plan]})
    view.other = job_of(found.other)
    return view


def waits(book: Book, core: Core, record: JobRecord) -> list[str]:
    """Return the reasons why a job does not run, one a line, without trials; empty if it runs.

    O(pending jobs of its pool + pools).
    """
    job = waiting_in(core, record)
    if job is None or record.phase is not JobPhase.PENDING:
        return _waits_outside(book, record)
    return [
        *needed(glance(core.policy, job), core.state.now),
        *_outage_words(book, core, job),
        *_limit_words(core),
    ]


def position_of(core: Core, record: JobRecord) -> int | None:
    """Return a job's position in its pool's queue, from 1; None if it is in no queue.

    Under a policy without queues the number of jobs ahead says nothing. O(pending jobs).
    """
    job = waiting_in(core, record)
    if job is None or not core.policy.queued:
        return None
    pool, number = job.pool, job.sequence
    return 1 + sum(n < number for n in pool.pending) + sum(n < number for n in pool.out_of_order)


def waiting_in(core: Core, record: JobRecord) -> JobState | None:
    """Return the core's state of a job that is pending in the core; None for other jobs."""
    job = core.state.jobs.get(record.core) if record.core else None
    return job if job is not None and job.stream is None else None


def _waits_outside(book: Book, record: JobRecord) -> list[str]:
    """Return the reasons why a job waits that is not in a queue of the core. O(jobs)."""
    if record.phase is JobPhase.HELD:
        return [f"it is held: sia release {record.spec.id}"]
    if record.phase is JobPhase.PENDING:
        pool = record.spec.pool
        return [f"pool {pool} is on hold: sia pool set {pool} --state open"]
    if record.phase is not JobPhase.STARTING:
        return []
    if record.placed:
        return ["it was started, and the backend has not reported yet that it runs"]
    return placement_reasons(book, record)


def _outage_words(book: Book, core: Core, job: JobState) -> list[str]:
    """Return reasons of which policies do not know: nodes that are out, and fragmented cells."""
    places = core.state.places is not None
    nodes = "; ".join(out(book)) if places or job.pool.group.out else ""
    gone = [f"GPUs of nodes that are out count above, but are not usable: {nodes}"] if nodes else []
    if not places:
        return [*preference_reason(core, job), *gone]
    return [*fragmentation_reason(core, job, out=bool(nodes)), *gone]


def _limit_words(core: Core) -> list[str]:
    """Return a line if the hourly limit on stops is reached. O(stops of the last hour)."""
    state = core.state
    return stop_limit_words(core.committer.stops, state.options.stops_per_hour, state.now)


def _outside(book: Book, record: JobRecord) -> list[ObstacleView]:
    """Return the obstacles of a job that waits but is not in a queue of the core."""
    if record.phase is JobPhase.HELD:
        return [Held()]
    if record.phase is JobPhase.PENDING:
        return [PoolHeld(record.spec.pool)]
    if record.phase is JobPhase.STARTING and not record.placed:
        out = tuple(node.name for node in book.nodes.values() if node.reasons)
        return [PlacementObstacle(record.gpus, out)]
    return []


def _seen(obstacles: Iterable[CoreObstacle], book: Book, who: Principal) -> list[ObstacleView]:
    """Convert the core's obstacles to what `who` may see, with the daemon's ids and reasons."""
    found: list[ObstacleView] = []
    for each in obstacles:
        if isinstance(each, QuotaObstacle | RoomObstacle):
            found.append(replace(each, ends=_visible_ends(each.ends, who)))
        elif isinstance(each, OrderObstacle | GuestObstacle):
            found.append(replace(each, first=job_of(each.first)))
        elif isinstance(each, LimitObstacle) and each.pool and each.kind == "lend":
            found.append(_lends(each, book.pools[each.pool], who))
        else:
            found.append(each)
    return found


def _lends(each: LimitObstacle, pool: PoolRecord, who: Principal) -> LimitObstacle | PoolNotLending:
    """Add the daemon's reasons why a pool does not lend: the core only knows the lend limit."""
    if not pool.told:
        return each
    why = pool.told if who.sees(pool.name) else dict.fromkeys(pool.told, "")
    return PoolNotLending(pool.name, dict(why), pool.lend_limit)


def _visible_ends(ends: Iterable[EndingJob], who: Principal) -> tuple[EndingJob, ...]:
    """Return the ending jobs that `who` may see, and one entry without end for each other pool."""
    found: list[EndingJob] = []
    hidden: dict[str, int] = {}
    for each in ends:
        if who.sees(each.pool):
            found.append(replace(each, job=job_of(each.job)))
        else:
            hidden[each.pool] = hidden.get(each.pool, 0) + each.gpus
    return (*found, *(EndingJob("", pool, gpus, None) for pool, gpus in hidden.items()))
