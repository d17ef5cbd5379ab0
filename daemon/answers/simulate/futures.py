"""Build the arguments of `sia.core.playout.play` from the engine's current state. Pure.

Run times are unknown, so a `RunTimeOf` function supplies them. What the core does not know about is
left out and listed: held jobs, pools on hold, and overrides that put a pool on hold or open it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from itertools import takewhile
from math import inf
from typing import NamedTuple, TypeVar

from daemon.engine.engine import Engine
from daemon.engine.guardrails import LATE
from daemon.engine.lending_budgets import HOURS
from daemon.engine.outages import OutageChange
from daemon.model.book import Book, JobRecord, MaintenanceWindow, Override, PoolRecord, job_of
from daemon.model.calendar import month_of
from daemon.model.job import ON_GPUS, JobPhase
from sia.core.playout import Fact
from sia.events import NodeBack, NodeOut, PoolChanged
from sia.limits import UNKNOWN_RUN_TIME, UNLIMITED

SHOWN = 8
"""Maximum of names listed in a message, followed by the number of the others."""

FEW = 4
"""Jobs are looked up by pool if at most one pool in `FEW` is requested; merging the jobs of more
pools takes longer than a scan of all jobs."""

_Value = TypeVar("_Value")

RunTimeOf = Callable[[JobRecord], float]
"""Returns the total run time of a job in seconds, at least the time that it has run."""


class Future(NamedTuple):
    """Arguments of `play` for a copy of the engine's core, and a list of what they leave out."""

    running: list[tuple[float, str]]
    durations: Mapping[str, float]
    """Run times of pending jobs, by core id."""
    facts: list[Fact]
    left_out: list[str]
    """Descriptions of what is left out."""


def began(record: JobRecord, now: float) -> float:
    """Return the start of a job; now if the job was not seen running yet."""
    return now if record.started is None else record.started


def thought(now: float) -> RunTimeOf:
    """Return a function that gives run times as the scheduler assumes them at this time.

    The run time of a job that reports its progress is what follows from that. Else it is the
    forecast, or else the submitter's estimate, cut at the time limit. A job that has run longer is
    assumed to run twice as long as so far. A job without any estimate runs for
    `UNKNOWN_RUN_TIME`.
    """

    def think(record: JobRecord) -> float:
        ran = 0.0 if record.started is None else now - record.started
        run_time = reported(record, now)
        if run_time is None:
            run_time = _said(record)
            if run_time <= ran:
                run_time = 2.0 * ran
        limit = record.time_limit
        return run_time if limit is None else max(ran, min(run_time, limit))

    return think


def reported(record: JobRecord, now: float, chance: float = 0.5) -> float | None:
    """Return the total run time in seconds that the reports of a job on GPUs lead to.

    None if they lead to none. A job that should have ended some time ago takes as long again, as
    the median; generally, a quantile `chance` of its end is further away by the odds of `chance`.
    """
    said = record.progress
    if said is None or said.end is None or record.phase not in ON_GPUS:
        return None
    end = said.end
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
    """Yield the end of each job on GPUs, at `now` or later; an ending job ends now."""
    for record in jobs:
        phase = record.phase  # compared one by one: enumerations hash slowly, and jobs are many
        if phase is JobPhase.RUNNING or phase is JobPhase.STARTING:
            end = began(record, now) + think(record)
            yield (max(now, end)), record
        elif phase is JobPhase.ENDING:
            yield now, record


def future_of(engine: Engine, now: float, think: RunTimeOf) -> Future:
    """Return the future if jobs run as assumed and no more jobs arrive. O(jobs).

    Args:
        engine: The engine; it does not change.
        now: Start time, at or after the engine's last step.
        think: Returns the run time of a job.
    """
    book = engine.book
    running = [(end, record.core) for end, record in ends(book.jobs.values(), now, think)]
    return Future(running, _Durations(book, think), _facts(engine, now), _left_out(engine))


class _Durations(dict[str, float]):
    """Run times of pending jobs, computed when the jobs start."""

    def __init__(self, book: Book, think: RunTimeOf) -> None:
        super().__init__()
        self._jobs, self._think = book.jobs, think

    def __missing__(self, core_id: str) -> float:
        return self._think(self._jobs[job_of(core_id)])


def _facts(engine: Engine, now: float) -> list[Fact]:
    """Return future changes: ends of overrides and lending bans, nodes that leave and return."""
    book, facts = engine.book, list[Fact]()
    for pool in book.pools.values():
        facts += _changes(pool, now)
    if engine.core.state.places is not None:
        for window in book.windows.values():
            facts += _maintained(book, window, now)
    else:
        facts += _counted(engine, now)
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


def _counted(engine: Engine, now: float) -> Iterator[Fact]:
    """Without cells: yield the number of GPUs out of service, and quotas that change with it."""
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


def _left_out(engine: Engine) -> list[str]:
    book, found = engine.book, list[str]()
    held = sum(record.phase is JobPhase.HELD for record in book.jobs.values())
    if held:
        found.append(f"held jobs: {held}")
    waiting = [f"{pool.name} ({len(pool.waiting)})" for pool in book.pools.values() if pool.waiting]
    if waiting:
        found.append(f"pending jobs of pools on hold: {_some(waiting)}")
    switched = [p.name for p in book.pools.values() if p.override and p.override.state is not None]
    if switched:
        found.append(f"ends of overrides that hold or open pools: {_some(switched)}")
    kept = [pool.name for pool in book.pools.values() if _lends_again(pool, 0.0) == inf]
    if kept:
        found.append(f"the end of lending bans of pools: {_some(kept)}")
    if book.seatless:
        found.append(f"started jobs that wait for GPUs to become free: {len(book.seatless)}")
    windows = [w.id for w in book.windows.values() if not _alone(book, w)]
    if windows:
        found.append(f"maintenance windows: {_some(windows)}")
    there = [w.id for w in book.windows.values() if w.id not in windows]
    if there and engine.core.state.places is None:
        found.append(f"jobs that wait for nodes in maintenance windows: {_some(there)}")
    return found


def _some(names: list[str]) -> str:
    more = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + (f" and {more} more" if more > 0 else "")


def _said(record: JobRecord) -> float:
    if record.expected < UNKNOWN_RUN_TIME:
        return record.expected
    return record.spec.run_time or UNKNOWN_RUN_TIME


def is_unknown(record: JobRecord) -> bool:
    """Return True if a job has neither an estimated run time nor a time limit."""
    return record.time_limit is None and _said(record) >= UNKNOWN_RUN_TIME


def overruns(record: JobRecord, now: float) -> bool:
    """Return True if a job has run longer than its estimate, or than follows from its reports."""
    if record.progress is not None and record.progress.end is not None:
        return record.progress.end < now
    return record.started is not None and now - record.started > _said(record)
