"""Google's cluster trace of 2011 (clusterdata-2011): `job_events`.

The table is split into parts, `part-00000-of-00500.csv.gz` and so on, without headers: time in
microseconds, missing info, job ID, event type, user, scheduling class, job name, logical job name.
Time 0 means before the trace, and 2⁶³ − 1 means after it. LOG is one part or the folder that
contains all parts.

A job is submitted at its first SUBMIT and runs from its first SCHEDULE to its last end event
(EVICT, FAIL, FINISH, KILL or LOST). If a job was evicted or failed and was scheduled again, the
time between counts as run time: the table does not list tasks, and some of them may have continued
to run. Column `wait` holds the seconds from submission to the first SCHEDULE.

The importer also reads a joined form with one row per job and times in seconds. It recognises the
form by its header: job_id,submit_s,schedule_s,end_s,end_event,user,sched_class,logical_job_name.

Neither form contains widths: every job has width 1. All jobs run in one pool, `google`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import inf
from pathlib import Path
from sys import intern

from msgspec import Struct

from replay.logs.importers.selection import ImportedJobs
from replay.logs.read import (
    BadCellError,
    LogTable,
    columns_of,
    number,
    open_table,
    reading,
    shown,
    take_rows,
)
from replay.logs.trace import PoolTable, Trace
from sia.console.errors import UserError
from sia.model import Job
from sia.wording import counted

EVENTS = (
    "time", "missing info", "job ID", "event type", "user", "scheduling class", "job name",
    "logical job name",
)  # fmt: skip
TYPES = (
    "SUBMIT", "SCHEDULE", "EVICT", "FAIL", "FINISH", "KILL", "LOST", "UPDATE_PENDING",
    "UPDATE_RUNNING",
)  # fmt: skip
CODES = {str(code): name for code, name in enumerate(TYPES)}
ENDS = frozenset(("EVICT", "FAIL", "FINISH", "KILL", "LOST"))
UPDATES = frozenset(("UPDATE_PENDING", "UPDATE_RUNNING"))
JOINED = (
    "job_id", "submit_s", "schedule_s", "end_s", "end_event", "user", "sched_class",
    "logical_job_name",
)  # fmt: skip
AFTER = re.compile(r"9223372036854\.?775[0-9]*")
"""2⁶³ − 1 microseconds, or the same in seconds: the time of events after the trace."""
MICROSECONDS = 1e6
"""Microseconds per second."""
PART = re.compile(r"part-([0-9]+)-of-([0-9]+)(\.csv)?(\.gz)?")
POOL = "google"


def read(log: Path, pools: Path | None) -> tuple[Trace, PoolTable | None]:
    """Return the jobs that started and ended within the trace, in its own time.

    The trace has no pool sizes. Raises UserError.
    """
    if pools is not None:
        raise UserError(f"{pools}: Google's trace has no pools file; omit this argument")
    jobs_out = ImportedJobs(log, "job_id", "state", "wait")
    jobs_out.notes.append("second 600 is 2011-05-01 19:00:00, local time of the cluster")
    jobs_out.notes.append("every job has width 1: the trace does not contain widths")
    events = _Events()
    for part in _parts(log, jobs_out.notes):
        with open_table(part, EVENTS, JOINED) as table:
            if "submit_s" in table.header and part == log:
                _joined(part, table, jobs_out)
            else:
                events.read(part, table)
    events.add_to(jobs_out)
    return jobs_out.trace(), None


def _parts(log: Path, notes: list[str]) -> Sequence[Path]:
    """Return the file, or the parts of the table in a folder. Raises UserError."""
    if not log.is_dir():
        return [log]
    with reading(log):
        files = sorted(log.iterdir())
    found = {path: match for path in files if (match := PART.fullmatch(path.name))}
    if not found:
        raise UserError(
            f"{log}: cannot be read as job_events: no part-*-of-* in this folder; "
            "give the folder that contains the parts, or one file"
        )
    numbers: dict[int, Path] = {}
    for path, match in found.items():
        if numbers.setdefault(int(match[1]), path) != path:
            raise UserError(f"{path}: {numbers[int(match[1])].name} is the same part; keep one")
    parts = max(int(match[2]) for match in found.values())
    if len(found) < parts:
        notes.append(f"{len(found)} of {parts} parts found: the events of the others are missing")
    return [path for _, path in sorted(numbers.items())]


class _JobRecord(Struct, gc=False):
    """The history of one job. Times are in seconds, infinite if after the trace."""

    id: str
    submit: float | None = None
    start: float | None = None
    end: float | None = None
    state: str = ""
    user: str = ""
    sched_class: str = ""
    name: str = ""
    last: float = 0.0
    """Time of the latest submission, scheduling or end."""
    schedules: int = 0

    def describe(self, user: str, sched_class: str, name: str) -> None:
        """Set the attributes that a row gives; a row may leave cells empty."""
        # Interning saves memory: the same few texts occur in hundreds of thousands of rows.
        self.user = intern(user) or self.user
        self.sched_class = intern(sched_class) or self.sched_class
        self.name = intern(name) or self.name

    def apply(self, kind: str, time: float) -> None:
        """Apply an event. Of two events at the same time, the later row is the later event."""
        if kind == "SUBMIT":
            self.submit = time if self.submit is None else min(self.submit, time)
        elif kind == "SCHEDULE":
            self.start = time if self.start is None else min(self.start, time)
            self.schedules += 1
        if time >= self.last:
            self.last = time
            # A job that is submitted or scheduled again has not ended.
            self.end, self.state = (time, kind) if kind in ENDS else (None, "")

    def add_to(self, jobs_out: ImportedJobs) -> bool:
        """Add the job, or count the reason for dropping it. Raises BadCellError."""
        if self.submit is None:
            jobs_out.dropped["without a submission"] += 1
        elif 0 in (self.submit, self.start):
            jobs_out.dropped["from before the trace"] += 1
        elif inf in (self.submit, self.start, self.end):
            jobs_out.dropped["going on after the trace"] += 1
        elif self.start is None:
            jobs_out.dropped["never scheduled"] += 1
        elif self.end is None:
            jobs_out.dropped["without an end"] += 1
        else:
            job = Job(
                self.id, POOL, self.submit, 1, self.user, self.name, sched_class=self.sched_class
            )
            # Times are whole microseconds; rounding removes the error of the subtraction.
            wait = round(self.start - self.submit, 6)
            extras = (self.state, repr(wait) if wait >= 0 else "")
            return jobs_out.add(job, round(self.end - self.start, 6), *extras)
        return False


def _joined(log: Path, table: LogTable, jobs_out: ImportedJobs) -> None:
    """Add the jobs of the joined form, or count the reasons for dropping them."""
    at = columns_of(log, table.header, JOINED)

    def take(cells: Sequence[str]) -> None:
        submit, start, end = (_time(cells, name, at[name]) for name in JOINED[1:4])
        record = _JobRecord(cells[at["job_id"]], submit, start, end, intern(cells[at["end_event"]]))
        record.describe(*(cells[at[name]] for name in JOINED[5:]))
        record.add_to(jobs_out)

    take_rows(log, table, take)


class _Events:
    """The history of each job, built from events in order."""

    def __init__(self) -> None:
        self._records: dict[str, _JobRecord] = {}

    def read(self, part: Path, table: LogTable) -> None:
        """Apply the events of one part, in order. Raises UserError."""
        at = columns_of(part, table.header, EVENTS)
        take_rows(part, table, lambda cells: self._event(cells, at))

    def _event(self, cells: Sequence[str], at: dict[str, int]) -> None:
        job_id, kind = cells[at["job ID"]], _type(cells[at["event type"]])
        time = _time(cells, "time", at["time"], MICROSECONDS)
        if not job_id:
            raise BadCellError("job ID", "empty", "give the job an ID", "")
        if time is None:
            raise BadCellError("time", "empty", "write microseconds", "")
        record = self._records.get(job_id)
        if record is None:
            record = self._records[job_id] = _JobRecord(job_id)
        record.describe(
            cells[at["user"]], cells[at["scheduling class"]], cells[at["logical job name"]]
        )
        if kind not in UPDATES:
            record.apply(kind, time)

    def add_to(self, jobs_out: ImportedJobs) -> None:
        """Add the jobs, or count the reasons for dropping them."""
        rescheduled = 0
        for record in self._records.values():
            rescheduled += record.add_to(jobs_out) and record.schedules > 1
        if rescheduled:
            jobs_out.notes.append(
                f"{counted(rescheduled, 'job')} scheduled again after an eviction or failure; "
                "the duration includes the time between"
            )


def _type(cell: str) -> str:
    """Return the name of an event type. Raises BadCellError."""
    if cell not in CODES:
        fix = f"write a whole number from 0 to {len(TYPES) - 1}"
        raise BadCellError("event type", f"unknown type {shown(cell)}", fix, "")
    return CODES[cell]


def _time(cells: Sequence[str], column: str, at: int, per_second: float = 1.0) -> float | None:
    """Return seconds, infinite if after the trace, None if the cell is empty.

    `per_second` is the number of the cell's units in a second. Raises BadCellError.
    """
    if not cells[at]:
        return None
    if AFTER.fullmatch(cells[at]):
        return inf
    unit = "seconds" if per_second == 1.0 else "microseconds"
    fix = f"write {unit} since the start of the trace"
    return number(cells, column, at, zero=True, negative=fix, unit=unit) / per_second
