"""Predict ends of jobs and planned changes from the engine's state, for a playout. Pure.

The state has no run times, so a `RunTimeOf` function supplies them. Some changes are known only to
the engine, and a playout of the core leaves them out: held jobs, pools on hold, ends of overrides
that hold or open a pool, and maintenance windows that overlap with another outage of their node.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import takewhile
from math import inf
from typing import TypeVar

from daemon.engine.engine import Engine
from daemon.engine.guardrails import LATE
from daemon.engine.lending_budgets import HOURS
from daemon.engine.outages import OutageChange
from daemon.model.book import Book, JobRecord, MaintenanceWindow, Override, PoolRecord
from daemon.model.calendar import month_of
from daemon.model.job import ON_GPUS, JobPhase
from sia.core.playout import Fact
from sia.events import GpusOut, NodeBack, NodeOut, PoolChanged
from sia.limits import UNKNOWN_RUN_TIME, UNLIMITED

FEW = 4
"""If at most one pool in `FEW` is requested, jobs are looked up by pool. For more pools, merging
their jobs takes longer than a scan of all jobs."""

_Value = TypeVar("_Value")

RunTimeOf = Callable[[JobRecord], float]
"""Returns the run time in seconds of a job's current attempt, at least the time that the attempt
has run; for a pending job, the run time of its next attempt."""


def began(record: JobRecord, now: float) -> float:
    """Return the start of a job, or `now` if the backend has not reported yet that the job runs."""
    return now if record.started is None else record.started


def of_attempt(record: JobRecord, now: float, total: float) -> float:
    """Return the run time of a job's current or next attempt if its work takes `total` seconds.

    Work that earlier attempts have done, and that the job has kept, is subtracted.
    """
    plain = not record.done and record.speed == 1.0 and record.since == record.started
    if plain and not record.overhead:
        return total
    ran = 0.0 if record.started is None else now - record.started
    return ran + record.left(total, now)


def limited(record: JobRecord, seconds: float) -> float:
    """Return the run time of a job's attempt, cut at the job's time limit."""
    limit = record.time_limit
    return seconds if limit is None else min(seconds, max(0.0, limit - record.ran))


def estimated(now: float) -> RunTimeOf:
    """Return a function that gives run times as the scheduler assumes them at this time.

    For a job that reports its progress, the run time follows from the report. For other jobs it is
    the forecast, or the submitter's estimate if there is no forecast. A job that has already run
    longer than that is assumed to run twice as long as so far. A job without any estimate runs for
    `UNKNOWN_RUN_TIME`. The time limit cuts each run time. The whole work of a job is determined
    once and stays the same if the job is stopped later.
    """
    works: dict[str, float] = {}

    def think(record: JobRecord) -> float:
        ran = 0.0 if record.started is None else now - record.started
        run_time = reported(record, now)
        if run_time is None:
            total = works.get(record.spec.id)
            if total is None:
                total, worked = _estimated(record), record.work(now)
                total = works[record.spec.id] = total if total > worked else 2.0 * worked
            run_time = of_attempt(record, now, total)
        return max(ran, limited(record, run_time))

    return think


def reported(record: JobRecord, now: float, chance: float = 0.5) -> float | None:
    """Return the total run time in seconds that follows from a job's progress reports.

    Return None if the job is not on GPUs or its reports predict no end. If the predicted end has
    passed by t seconds, the median of the end is t seconds from now, and the quantile `chance` is t
    · chance / (1 - chance) seconds from now.
    """
    progress = record.progress
    if progress is None or progress.end is None or record.phase not in ON_GPUS:
        return None
    end = progress.end
    if end < now:
        end = now + (now - end) * chance / (1.0 - chance)
    return end - began(record, now)


def alive(book: Book, pools: Collection[str] | None = None) -> Iterable[JobRecord]:
    """Return active jobs of these pools, or of all pools (None), in order of submission."""
    if pools is None:
        return book.jobs.values()
    if len(pools) * FEW > len(book.pools):
        return (record for record in book.jobs.values() if record.spec.pool in pools)
    newest = takewhile(lambda record: record.ended is None, book.newest(pools))
    return reversed([*newest])


def ends(
    jobs: Iterable[JobRecord], now: float, think: RunTimeOf
) -> Iterator[tuple[float, JobRecord]]:
    """Yield the end of each job on GPUs, at `now` or later; one that is being ended, at `now`.

    A job that is being stopped is included only if it has already been started again.
    """
    for record in jobs:
        phase = record.phase  # compared one by one: hashing an enumeration is slow
        if phase is JobPhase.RUNNING or phase is JobPhase.STARTING:
            end = began(record, now) + think(record)
            yield (max(now, end)), record
        elif phase is JobPhase.ENDING:
            yield now, record
        elif phase is JobPhase.STOPPING and record.stream is not None:
            yield max(now, began(record, now) + think(record)), record


def facts_of(engine: Engine, now: float) -> list[Fact]:
    """Return planned changes as events of the core, in order of time. O(pools + windows²).

    Planned changes are ends of overrides and of lending bans, and nodes that leave and return. The
    engine does not change. `now` must not be before its last step.
    """
    book, facts = engine.book, list[Fact]()
    for pool in book.pools.values():
        facts += _changes(pool, now)
    state = engine.core.state
    if state.places is not None or state.nodes is not None:
        for window in book.windows.values():
            facts += _maintained(book, window, now)
    if state.places is None:
        facts += outages_ahead(engine, now)
    return sorted(facts, key=lambda fact: fact.time)


def _changes(pool: PoolRecord, now: float) -> Iterator[PoolChanged]:
    """Yield a pool's settings when its override ends and when it may lend again."""
    over, again = pool.override, _lends_again(pool, now)
    ends = inf if over is None else max(now, over.until)
    for time in sorted({ends, again} - {inf, -inf}):
        was = over if over is not None and time >= ends else Override(inf)
        lend = _other(was.lend_limit, UNLIMITED if pool.lend_limit is None else pool.lend_limit)
        yield PoolChanged(
            time, pool.name, _other(was.quota, pool.quota), _other(was.cells, pool.cells),
            lend if time >= again else 0, was.borrow_limit, was.weight,
        )  # fmt: skip


def _lends_again(pool: PoolRecord, now: float) -> float:
    """Return when the pool may lend again: -inf if it may now, inf if unknown."""
    if not pool.told:
        return -inf
    if pool.told.keys() - {HOURS, LATE}:
        return inf
    ends = month_of(now)[1] if HOURS in pool.told else now
    return max(ends, pool.rests_until if LATE in pool.told else now)


def _other(then: _Value | None, now: _Value) -> _Value:
    return now if then is None else then


def _maintained(book: Book, window: MaintenanceWindow, now: float) -> list[Fact]:
    """Return the outage and return of a node in a maintenance window."""
    if not _alone(book, window):
        return []
    back = NodeBack(max(now, window.end), window.node)
    if window.begun:
        return [back]
    return [NodeOut(max(now, window.start), window.node, window.why), back]


def outages_ahead(engine: Engine, now: float) -> Iterator[GpusOut]:
    """Yield GPUs out of service and the quotas that change with them; only without cells."""
    book = engine.book
    edges = [
        OutageChange(max(now, pool.override.until), pool=pool.name, quota=pool.override.quota)
        for pool in book.pools.values()
        if pool.override is not None and pool.override.quota is not None
    ]
    for window in book.windows.values():
        if _alone(book, window):
            edges.append(OutageChange(max(now, window.end), window.node))
            if not window.begun:
                edges.append(OutageChange(max(now, window.start), window.node, out=True))
    return engine.planned_outages(sorted(edges, key=lambda edge: (edge.time, edge.out)))


def _alone(book: Book, window: MaintenanceWindow) -> bool:
    """Return True if this window alone takes its node out of service."""
    others = [w for w in book.windows.values() if w.node == window.node and w is not window]
    return not others and len(book.nodes[window.node].reasons) == window.begun


def _estimated(record: JobRecord) -> float:
    """Return the forecast run time, or else the submitter's estimate."""
    if record.expected < UNKNOWN_RUN_TIME:
        return record.expected
    return record.spec.run_time or UNKNOWN_RUN_TIME


def is_unknown(record: JobRecord) -> bool:
    """Return True if a job has neither an estimated run time nor a time limit."""
    return record.time_limit is None and _estimated(record) >= UNKNOWN_RUN_TIME


def overruns(record: JobRecord, now: float) -> bool:
    """Return True if a job has run longer than its estimate or its reports predicted."""
    if record.progress is not None and record.progress.end is not None:
        return record.progress.end < now
    return record.started is not None and record.work(now) > _estimated(record)
