"""What may come of the daemon's present, as `sia.playout.play` takes it. Pure.

Nobody knows how long jobs will run: a `RunTimeOf` says so, of each. What the core is not told of is
not in it, and named: jobs that are held, pools on hold, overrides that put a pool on hold or end
that.
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
from daemon.model.job import JobPhase
from sia.core.playout import Fact
from sia.events import NodeBack, NodeOut, PoolChanged
from sia.limits import UNKNOWN_RUN_TIME, UNLIMITED

SHOWN = 8
"""Names of a kind that are said; how many more there are is said too."""

FEW = 4
"""Of a fourth of the pools or fewer, jobs are found by pool: to merge those of all takes longer."""

_Value = TypeVar("_Value")

RunTimeOf = Callable[[JobRecord], float]
"""How long a job runs in all (seconds), and no less than it has run."""


class Future(NamedTuple):
    """Arguments of `play` for a copy of the engine's core, and what they leave out."""

    running: list[tuple[float, str]]
    durations: Mapping[str, float]
    """Of jobs that wait, by their ids in the core."""
    facts: list[Fact]
    left_out: list[str]
    """What is not in it, in words."""


def began(record: JobRecord, now: float) -> float:
    """When a job came to run; one that was not seen to yet does so now."""
    return now if record.started is None else record.started


def thought(now: float) -> RunTimeOf:
    """How long the daemon thinks that jobs run.

    That is what it foresees, or else what the owner says, and no more than the time limit. One that
    has run longer than that is thought to run as long again; one of which nothing is known runs on
    (`UNKNOWN_RUN_TIME`).
    """

    def think(record: JobRecord) -> float:
        ran = 0.0 if record.started is None else now - record.started
        run_time = _said(record)
        if run_time <= ran:
            run_time = 2.0 * ran
        limit = record.time_limit
        return run_time if limit is None else max(ran, min(run_time, limit))

    return think


def alive(book: Book, pools: Collection[str] | None = None) -> Iterable[JobRecord]:
    """Jobs that are not over, of some pools or of all (None), in order of submission."""
    if pools is None:
        return book.jobs.values()
    if len(pools) * FEW > len(book.pools):
        return (record for record in book.jobs.values() if record.spec.pool in pools)
    newest = takewhile(lambda record: record.ended is None, book.newest(pools))
    return reversed([*newest])


def ends(
    jobs: Iterable[JobRecord], now: float, think: RunTimeOf
) -> Iterator[tuple[float, JobRecord]]:
    """When each of these on GPUs ends, none in the past; one that was told to does so now."""
    for record in jobs:
        phase = record.phase  # not looked up in a set: enumerations hash slowly, jobs are many
        if phase is JobPhase.RUNNING or phase is JobPhase.STARTING:
            end = began(record, now) + think(record)
            yield (max(now, end)), record
        elif phase is JobPhase.ENDING:
            yield now, record


def future_of(engine: Engine, now: float, think: RunTimeOf) -> Future:
    """What comes of the present, were jobs to run as thought and no more to come. O(jobs).

    Args:
        engine: Of which it is; it is not changed.
        now: From when on, at or after the engine's last step.
        think: How long jobs run.
    """
    book = engine.book
    running = [(end, record.core) for end, record in ends(book.jobs.values(), now, think)]
    return Future(running, _Durations(book, think), _facts(engine, now), _left_out(engine))


class _Durations(dict[str, float]):
    """How long jobs run, thought of when they start."""

    def __init__(self, book: Book, think: RunTimeOf) -> None:
        super().__init__()
        self._jobs, self._think = book.jobs, think

    def __missing__(self, core_id: str) -> float:
        return self._think(self._jobs[job_of(core_id)])


def _facts(engine: Engine, now: float) -> list[Fact]:
    """Overrides that end, pools that lend again, nodes that go and come."""
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
    """What a pool is when its override ends, and when it lends again after what is kept from it."""
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
    """When it lends as its limits say: -inf for one that does, inf where nobody knows."""
    if not pool.told:
        return -inf
    if pool.told.keys() - {HOURS, LATE}:
        return inf
    ends = month_of(now)[1] if HOURS in pool.told else now
    return max(ends, pool.rests_until if LATE in pool.told else now)


def _other(then: _Value | None, now: _Value) -> _Value:
    return now if then is None else then


def _maintained(book: Book, window: MaintenanceWindow, now: float) -> list[Fact]:
    """A node that goes, for one window alone, and comes back."""
    if not _alone(book, window):
        return []
    back = NodeBack(max(now, window.end), window.node)
    if window.begun:
        return [back]
    return [NodeOut(max(now, window.start), window.node, window.why), back]


def _counted(engine: Engine, now: float) -> Iterator[Fact]:
    """Without cells: how many GPUs are out as such nodes go and come back, and quotas with them."""
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
    """Whether nobody else takes its node out: who does keeps it out."""
    others = [w for w in book.windows.values() if w.node == window.node and w is not window]
    return not others and len(book.nodes[window.node].reasons) == window.begun


def _left_out(engine: Engine) -> list[str]:
    book, found = engine.book, list[str]()
    held = sum(record.phase is JobPhase.HELD for record in book.jobs.values())
    if held:
        found.append(f"jobs that are held: {held}")
    waiting = [f"{pool.name} ({len(pool.waiting)})" for pool in book.pools.values() if pool.waiting]
    if waiting:
        found.append(f"jobs of pools on hold: {_some(waiting)}")
    switched = [p.name for p in book.pools.values() if p.override and p.override.state is not None]
    if switched:
        found.append(f"that overrides end which hold or open pools: {_some(switched)}")
    kept = [pool.name for pool in book.pools.values() if _lends_again(pool, 0.0) == inf]
    if kept:
        found.append(f"that pools lend again which are kept from it: {_some(kept)}")
    if book.seatless:
        found.append(f"that GPUs of jobs that were started are not free yet: {len(book.seatless)}")
    windows = [w.id for w in book.windows.values() if not _alone(book, w)]
    if windows:
        found.append(f"maintenance: {_some(windows)}")
    there = [w.id for w in book.windows.values() if w.id not in windows]
    if there and engine.core.state.places is None:
        found.append(f"that jobs wait for GPUs of nodes in maintenance: {_some(there)}")
    return found


def _some(names: list[str]) -> str:
    more = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + (f" and {more} more" if more > 0 else "")


def _said(record: JobRecord) -> float:
    if record.run_time < UNKNOWN_RUN_TIME:
        return record.run_time
    return record.spec.run_time or UNKNOWN_RUN_TIME


def is_unknown(record: JobRecord) -> bool:
    """Whether nobody has any idea how long a job runs."""
    return record.time_limit is None and _said(record) >= UNKNOWN_RUN_TIME


def overruns(record: JobRecord, now: float) -> bool:
    """Whether a job has run longer than it was thought to."""
    return record.started is not None and now - record.started > _said(record)
