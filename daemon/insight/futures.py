"""What may come of the daemon's present, as `sia.playout.play` takes it. Pure.

Nobody knows how long jobs will run: a `Thought` says so, of each. What the core is not told of is
not in it, and named: jobs that are held, pools on hold, overrides that put a pool on hold or end
that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from daemon.book import Book, JobRecord, PoolRecord, Window, job_of
from daemon.engine import Engine
from daemon.jobs import ON_GPUS, JobPhase
from sia.events import NodeBack, NodeOut, PoolChanged
from sia.limits import UNKNOWN_RUN_TIME
from sia.playout import Fact

SHOWN = 8
"""Names of a kind that are said; how many more there are is said too."""

Thought = Callable[[JobRecord], float]
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


def thought(now: float) -> Thought:
    """How long the daemon thinks that jobs run.

    That is what it foresees, and no more than the time limit. One that has run longer than that is
    thought to run as long again; one of which nothing is known runs on (`UNKNOWN_RUN_TIME`).
    """

    def think(record: JobRecord) -> float:
        ran = now - began(record, now) if record.phase in ON_GPUS else 0.0
        run_time = record.run_time if record.run_time > ran else 2.0 * ran
        if record.time_limit is None:
            return run_time
        return max(ran, min(run_time, record.time_limit))

    return think


def ends(book: Book, now: float, think: Thought) -> Iterator[tuple[float, JobRecord]]:
    """When each job on GPUs ends, none in the past; one that was told to does so now. O(jobs)."""
    for record in book.jobs.values():
        if record.phase is JobPhase.ENDING:
            yield now, record
        elif record.phase in ON_GPUS:
            yield max(now, began(record, now) + think(record)), record


def future_of(engine: Engine, now: float, think: Thought) -> Future:
    """What comes of the present, were jobs to run as thought and no more to come. O(jobs).

    Args:
        engine: Of which it is; it is not changed.
        now: From when on, at or after the engine's last step.
        think: How long jobs run.
    """
    book = engine.book
    running = [(end, record.core) for end, record in ends(book, now, think)]
    return Future(running, _Durations(book, think), _facts(engine, now), _left_out(engine))


class _Durations(dict[str, float]):
    """How long jobs run, thought of when they start."""

    def __init__(self, book: Book, think: Thought) -> None:
        super().__init__()
        self._jobs, self._think = book.jobs, think

    def __missing__(self, core_id: str) -> float:
        return self._think(self._jobs[job_of(core_id)])


def _facts(engine: Engine, now: float) -> list[Fact]:
    """Overrides that end; with cells, nodes that go and come."""
    book, facts = engine.book, list[Fact]()
    for pool in book.pools.values():
        if pool.override is not None:
            facts.append(_back(pool, now))
    if engine.core.state.places is not None:
        for window in book.windows.values():
            facts += _maintained(book, window, now)
    return sorted(facts, key=lambda fact: fact.time)


def _back(pool: PoolRecord, now: float) -> PoolChanged:
    over = pool.override
    assert over is not None, "what has no override does not end one"
    return PoolChanged(
        max(now, over.until), pool.name, pool.quota if over.quota is None else over.quota,
        pool.cells if over.cells is None else over.cells,
        over.lend_limit, over.borrow_limit, over.weight,
    )  # fmt: skip


def _maintained(book: Book, window: Window, now: float) -> list[Fact]:
    """A node that goes, for one window alone, and comes back."""
    if not _alone(book, window):
        return []
    back = NodeBack(max(now, window.end), window.node)
    if window.begun:
        return [back]
    return [NodeOut(max(now, window.start), window.node, window.why), back]


def _alone(book: Book, window: Window) -> bool:
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
    if book.seatless:
        found.append(f"that GPUs of jobs that were started are not free yet: {len(book.seatless)}")
    cells = engine.core.state.places is not None
    windows = [w.id for w in book.windows.values() if not (cells and _alone(book, w))]
    if windows:
        found.append(f"maintenance: {_some(windows)}")
    return found


def _some(names: list[str]) -> str:
    more = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + (f" and {more} more" if more > 0 else "")


def is_unknown(record: JobRecord) -> bool:
    """Whether nobody has any idea how long a job runs."""
    limit = record.time_limit
    return record.run_time >= UNKNOWN_RUN_TIME and limit is None
