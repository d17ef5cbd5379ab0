"""Convert a journal to a job log and a pools file for `sia replay`, and the real schedule.

A job's row is its last stay in the queue: from joining the queue, through its start, to its end. A
job that was requeued after it had run has one more row per earlier run, named `ID#1` and so on, so
the log contains all GPU time. A job that was stopped and started again keeps its place in the
queue, so it has one row, with all of its work; its runs are segments of the real schedule.

What a job log cannot express is counted (`Export.counted`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import floor, fsum, inf
from typing import Any, NamedTuple

from msgspec import json
from msgspec.structs import replace

from daemon.engine.jobs import core_job
from daemon.export.notices import KINDS, NoticeHistory, QueueSpan
from daemon.journal.journal import Journal
from daemon.journal.recovery import recover
from daemon.model.book import Book, JobRecord
from daemon.model.job import JobPhase
from daemon.model.setup import Setup
from replay.logs.limits import MIN_DURATION
from replay.logs.regimes import TOLERANCE
from replay.logs.trace import CHECKPOINT, PoolTable, Trace
from replay.run.schedule import LoanSpan, Segment
from sia.console.errors import UserError
from sia.core.playout import Arrival
from sia.events import PoolChanged
from sia.limits import MAX_TIME, UNKNOWN_RUN_TIME
from sia.model import Nodes, Pool, Regime, Stream
from sia.policies.chronus.profiler import TrialRow
from sia.wording import DAY

PAGE = 5000
"""Number of ended jobs read at a time: a few MB."""

AGAIN = "#"
"""Separates a job's id and the number of an earlier run; ids from HTTP do not contain it."""


class Done(NamedTuple):
    """A row of the real schedule; times are seconds of the log."""

    job: str
    pool: str
    submit: float
    width: int
    start: float
    end: float
    spare: bool
    nodes: Nodes


@dataclass
class Export:
    """The result of an export; `begin` is the time of second 0 of the log."""

    begin: float
    end: float
    """The daemon's time of the newest event in the export."""
    setup: Setup
    trace: Trace
    table: PoolTable
    done: list[Done]
    loans: list[LoanSpan]
    segments: list[Segment] | None = None
    """Runs of all jobs that ended; None if no job was stopped, resized or tried. Of a trial only
    that in which its job ended."""
    trials: list[TrialRow] = field(default_factory=list)
    """All trials of jobs that ended."""
    counted: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)


def export(journal: Journal, *, alive: bool = True) -> Export:
    """Export a journal; with `alive`, also pending and running jobs with estimated run times.

    O(jobs + notices); keeps all jobs in memory. Raises UserError if no job has run yet.
    """
    engine = recover(journal, Setup(()))  # the journal has its own setup
    book = engine.book
    records = {record.spec.id: record for record in _history(journal)}
    records |= book.jobs
    if not records:
        raise UserError(
            f"{journal.where}: nothing to export: the journal has no jobs; try again when some "
            "have run, or bring a history along with sia journal import"
        )
    begin = floor(min(record.submitted for record in records.values()) / DAY) * DAY
    past = NoticeHistory(records, begin)
    past.hear(journal.notices_of(KINDS))
    ends = (record.ended or 0.0 for record in records.values())
    end = max(engine.core.state.now, *ends)
    made = Export(begin, end, book.setup, Trace([]), _table(book, journal, past, begin), [], [])
    if past.changed:
        made.segments = []
    _Rows(made, past, end, alive=alive).add(records.values())
    _add_loans(made, past)
    _add_trials(made, past)
    made.notes += _notes(book, past)
    if not made.trace.arrivals:
        raise UserError(
            f"{journal.where}: nothing to export: no job has {'run' if alive else 'ended'} yet; "
            "try again when some have"
        )
    return made


def _history(journal: Journal) -> Iterator[JobRecord]:
    """Yield ended jobs in the order of their ends."""
    pages, before = [], 0
    while page := journal.history(before, PAGE):
        pages.append([record for _, record in page][::-1])
        before = page[-1][0]
    for records in reversed(pages):
        yield from records


class _Rows:
    """Create the rows of jobs, and count what a job log cannot express."""

    def __init__(self, made: Export, past: NoticeHistory, now: float, *, alive: bool) -> None:
        self._made, self._past, self._now, self._alive = made, past, now, alive
        self._rows: list[tuple[float, int, Arrival, tuple[str, str]]] = []

    def add(self, records: Iterable[JobRecord]) -> None:
        for record in records:
            self._add(record)
        self._rows.sort(key=lambda row: row[:2])
        columns = ("state", CHECKPOINT) if any(row[1] for *_, row in self._rows) else ("state",)
        self._made.trace = Trace(
            [arrival for _, _, arrival, _ in self._rows],
            columns,
            {arrival.job.id: row[: len(columns)] for _, _, arrival, row in self._rows},
        )

    def _add(self, record: JobRecord) -> None:
        past, counted = self._past, self._made.counted
        life = past.lives.get(record.spec.id)
        stay = QueueSpan(record.submitted, past.orders.get(record.spec.id, 0))
        if life is not None:
            stay = QueueSpan(life.joined, life.order)
            for number, earlier in enumerate(life.stays):
                self._ran(record, earlier, number)
                counted["runs of jobs that were queued again: rows of their own"] += 1
            if stay.joined > record.submitted:
                counted["jobs whose row begins when they last joined their queue"] += 1
        if record.priority:
            counted["jobs with a priority, which no log carries"] += 1
        started = record.decided
        if life is not None and life.started is not None:  # otherwise its notices have been pruned
            started = life.started
        if record.ended is None:
            self._add_alive(record, stay)
        elif started is None:
            counted["jobs left out: they left their queue without having run"] += 1
        else:
            own = stay._replace(started=started, ended=record.ended)
            self._ran(record, own)

    def _add_alive(self, record: JobRecord, stay: QueueSpan) -> None:
        counted = self._made.counted
        if not self._alive:
            counted["jobs left out: they have not ended"] += 1
            return
        expected = record.run_time
        if expected >= UNKNOWN_RUN_TIME and record.spec.regimes:
            expected = fsum(regime.epochs * regime.seconds for regime in record.spec.regimes)
        known = expected < UNKNOWN_RUN_TIME
        if record.decided is not None:
            so_far = self._lasted(record, record.decided, self._now)
            lasts = max(so_far, expected) if known else so_far
            counted["jobs that still run, with their estimated run time, or the time so far"] += 1
        elif known and record.phase is not JobPhase.HELD:
            lasts = expected
            counted["pending jobs, with their estimated run time"] += 1
        else:
            why = "are held" if known else "their run time is unknown"
            counted[f"jobs left out: they are pending, and {why}"] += 1
            return
        self._row(record, stay, record.spec.id, lasts, record.phase.value)

    def _ran(self, record: JobRecord, stay: QueueSpan, number: int | None = None) -> None:
        """Add a row for a stay in the queue that led to a run: the last one, or an earlier one."""
        assert stay.started is not None, "the job ran"
        assert stay.ended is not None, "the run has ended"
        begin, spec, made = self._made.begin, record.spec, self._made
        name, state, nodes = spec.id, record.phase.value, record.nodes
        lasted = self._lasted(record, stay.started, stay.ended)
        spare = record.stream is Stream.SPARE
        if number is not None:
            name, state, nodes, spare = f"{name}{AGAIN}{number + 1}", "requeued", (), False
            lasted = stay.ended - stay.started
        if not self._row(record, stay, name, lasted, state):
            return
        made.done.append(
            Done(
                name, spec.pool, stay.joined - begin, spec.gpus, stay.started - begin,
                stay.ended - begin, spare, nodes,
            )
        )  # fmt: skip
        if made.segments is not None:
            last = self._past.number(spec.id)
            runs = self._past.segments(spec.id, last if number is None else number, stay.ended)
            made.segments += [
                Segment(name, start - begin, end - begin, width, spare)
                for start, end, width in runs
            ]

    def _lasted(self, record: JobRecord, started: float, ended: float) -> float:
        """Return how long the job would have run at its own width without a stop."""
        if record.stops or record.width or record.speed != 1:
            return record.work(ended)
        return ended - started

    def _row(self, record: JobRecord, stay: QueueSpan, name: str, lasts: float, state: str) -> bool:
        if lasts < MIN_DURATION:
            self._made.counted["runs left out: they took no time"] += 1
            return False
        job = core_job(record, stay.joined, self._made.setup).submitted_at(
            stay.joined - self._made.begin
        )
        regimes = self._scaled(job.regimes, lasts)
        plain = replace(job, id=name, priority=0, regimes=regimes)
        row = state, record.spec.checkpoint
        self._rows.append((job.submit, stay.order, Arrival(plain, lasts), row))
        return True

    def _scaled(self, regimes: Sequence[Regime], lasts: float) -> tuple[Regime, ...]:
        """Return regimes that take the job's run time in total, as a job log requires."""
        stated = fsum(regime.epochs * regime.seconds for regime in regimes)
        if not regimes or abs(stated - lasts) <= TOLERANCE:
            return tuple(regimes)
        factor = lasts / stated if stated else inf
        scaled = [regime._replace(seconds=regime.seconds * factor) for regime in regimes]
        if not all(0 < regime.seconds <= MAX_TIME for regime in scaled):  # too few epochs for it
            self._made.counted["jobs whose regimes were left out: they do not fit"] += 1
            return ()
        self._made.counted["jobs whose regimes were scaled to their run time"] += 1
        return tuple(scaled)


def _table(book: Book, journal: Journal, past: NoticeHistory, begin: float) -> PoolTable:
    """Return the pools and the changes of their quotas; the audit log has their first quotas."""
    firsts: dict[str, int] = {}
    changes: list[PoolChanged] = []
    changed = _quotas_before(journal)
    for time, pool, quota in past.quotas:
        if time <= begin:
            firsts[pool] = quota
        elif pool in book.pools:
            configured = {each.name: each.quota for each in book.setup.pools}
            firsts.setdefault(pool, changed.get((pool, time), configured[pool]))
            changes.append(PoolChanged(time - begin, pool, quota))
    last = {(c.pool, c.time): c for c in changes}  # the last change of each moment
    pools = [
        Pool(record.name, firsts.get(record.name, record.quota), record.group, record.share)
        for record in book.pools.values()
    ]
    return PoolTable(pools, list(last.values()))


def _quotas_before(journal: Journal) -> dict[tuple[str, float], int]:
    """Return the quota of a pool before each command that changed it, by pool and time."""
    found: dict[tuple[str, float], int] = {}
    after = 0
    while rows := journal.audit(after, PAGE):
        for row in rows:
            if '"pool set"' in row.body:
                audited: dict[str, Any] = json.decode(row.body)
                if "quota" in audited.get("before", {}):
                    found[audited["target"], audited["time"]] = audited["before"]["quota"]
        after = rows[-1].number
    return found


def _add_loans(made: Export, past: NoticeHistory) -> None:
    """Add the loans of ended runs, under the names of their rows."""
    there = {done.job for done in made.done}
    for job, number, loan in past.loans:
        name = job if number == past.number(job) else f"{job}{AGAIN}{number + 1}"
        if name in there:
            start, end = loan.start - made.begin, loan.end - made.begin
            made.loans.append(LoanSpan(name, loan.donor, loan.gpus, start, end))
        else:
            made.counted["loans left out: their runs have not ended, or were left out"] += 1


def _add_trials(made: Export, past: NoticeHistory) -> None:
    """Add the trials of ended runs, under the names of their rows."""
    there = {done.job for done in made.done}
    for job, number, start, end, gpus in past.trials:
        name = job if number == past.number(job) else f"{job}{AGAIN}{number + 1}"
        if name in there:
            made.trials.append(TrialRow(name, start - made.begin, end - made.begin, gpus))
        else:
            made.counted["trials left out: their jobs have not ended, or were left out"] += 1


def _notes(book: Book, past: NoticeHistory) -> Iterator[str]:
    """Yield notes on what a pools file cannot express."""
    limited = [
        p.name for p in book.pools.values() if (p.lend_limit, p.borrow_limit) != (None, None)
    ]
    if limited or past.limits:
        yield "limits and weights are not in the pools file: the replay ignores them"
    if past.modes:
        yield f"pools changed their state {past.modes.total()} times: the replay ignores this"
    if past.switched:
        yield f"lending was turned on or off {len(past.switched)} times: the replay always lends"
    if any(node.reasons for node in book.nodes.values()) or book.windows:
        yield "nodes are or will be out of service: the replay uses all GPUs at all times"
    if book.setup.cells is not None:
        yield "cells are not exported: pass the daemon's cells file to sia replay with --cells"
