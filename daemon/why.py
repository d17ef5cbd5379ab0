"""Why a job waits, runs or is over: what the policy says, and what the daemon adds to it."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from daemon.access import Who
from daemon.book import Book, JobRecord, job_of
from daemon.http.waits import position_of, waiting_in, why
from daemon.jobs import JobPhase
from daemon.schemas_why import Held, JobWhy, Obstacle, Place, PoolHeld, WayView
from daemon.why_words import needed, over_words, run_words
from sia.core import Core
from sia.why import Leaves, Quota, Room, Turn


def explain(book: Book, core: Core, record: JobRecord, who: Who) -> JobWhy:
    """All that is known of why a job is where it is. O(jobs).

    Of pools that somebody may not see it names no single job.
    """
    spec = record.spec
    found = JobWhy(spec.id, spec.pool, record.phase, core.state.now, why(book, core, record))
    if record.phase.over:
        found.words = over_words(record)
        return found
    if record.stream is not None:
        found.stream, found.reason, found.loans = record.stream, record.reason, dict(record.loans)
    job = waiting_in(core, record)
    if job is not None and record.phase is JobPhase.PENDING:
        said = core.policy.why(job)
        found.exact, found.position = said.exact, position_of(core, record)
        found.obstacles = _seen(said.obstacles, who)
        found.ways = [WayView(w.name, w.open, _seen(w.obstacles, who)) for w in said.ways]
        found.words += needed(found, said.unknown)
        return found
    found.obstacles = _outside(book, record)
    found.exact = bool(found.obstacles)
    if not found.obstacles and not found.words:
        found.words = run_words(record)
    return found


def _outside(book: Book, record: JobRecord) -> list[Obstacle]:
    """What keeps a job that waits in no queue of the core."""
    if record.phase is JobPhase.HELD:
        return [Held()]
    if record.phase is JobPhase.PENDING:
        return [PoolHeld(record.spec.pool)]
    if record.phase is JobPhase.STARTING and not record.placed:
        out = tuple(node.name for node in book.nodes.values() if node.reasons)
        return [Place(record.spec.gpus, out)]
    return []


def _seen(obstacles: Iterable[Obstacle], who: Who) -> list[Obstacle]:
    found: list[Obstacle] = []
    for each in obstacles:
        if isinstance(each, Quota | Room):
            found.append(replace(each, ends=_told(each.ends, who)))
        elif isinstance(each, Turn):
            found.append(replace(each, first=job_of(each.first)))
        else:
            found.append(each)
    return found


def _told(ends: Iterable[Leaves], who: Who) -> tuple[Leaves, ...]:
    """Jobs by their names; those of a pool that somebody may not see are one, without an end."""
    found: list[Leaves] = []
    hidden: dict[str, int] = {}
    for each in ends:
        if who.sees(each.pool):
            found.append(replace(each, job=job_of(each.job)))
        else:
            hidden[each.pool] = hidden.get(each.pool, 0) + each.gpus
    return (*found, *(Leaves("", pool, gpus, None) for pool, gpus in hidden.items()))
