"""Google's cluster trace of 2011 (clusterdata-2011): `job_events`.

The table comes in parts, `part-00000-of-00500.csv.gz` and so on, without headers: time in
microseconds, missing info, job ID, event type, user, scheduling class, job name, logical job name.
Time 0 stands for what was before the trace, 2⁶³ − 1 for what came after it. LOG is one part or the
folder of all.

A job is submitted at its first SUBMIT and runs from its first SCHEDULE to its last end, an EVICT,
FAIL, FINISH, KILL or LOST. What is between, when it was evicted or failed and was scheduled again,
counts as run time: the table tells nothing of the tasks that a job is made of, some of which may
have gone on. The seconds before its first SCHEDULE are kept as `wait`.

The same jobs joined, a row a job in seconds, are read as well, told by their header:
job_id,submit_s,schedule_s,end_s,end_event,user,sched_class,logical_job_name.

Neither tells how wide a job is: every job has width 1. All run in one pool, `google`.
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
"""2⁶³ − 1 microseconds, or as seconds: the time of what came after the trace."""
MICROSECONDS = 1e6
"""Of a second."""
PART = re.compile(r"part-([0-9]+)-of-([0-9]+)(\.csv)?(\.gz)?")
POOL = "google"


def read(log: Path, pools: Path | None) -> tuple[Trace, PoolTable | None]:
    """Jobs that ran inside the trace, by its own clock. Pool sizes are not in it."""
    if pools is not None:
        raise UserError(f"{pools}: Google's trace has no file of pools; leave this file out")
    kept = ImportedJobs(log, "job_id", "state", "sched_class", "wait")
    kept.notes.append("second 600 is 2011-05-01 19:00:00, local time of the cluster")
    kept.notes.append("the width of every job is 1: the trace does not tell it")
    events = _Events()
    for part in _parts(log, kept.notes):
        with open_table(part, EVENTS, JOINED) as table:
            if "submit_s" in table.header and part == log:
                _joined(part, table, kept)
            else:
                events.read(part, table)
    events.into(kept)
    return kept.trace(), None


def _parts(log: Path, notes: list[str]) -> Sequence[Path]:
    """The file, or the parts of the table that a folder holds."""
    if not log.is_dir():
        return [log]
    with reading(log):
        files = sorted(log.iterdir())
    found = {path: match for path in files if (match := PART.fullmatch(path.name))}
    if not found:
        raise UserError(
            f"{log}: cannot be read as job_events, as no part-*-of-* is in this folder; "
            "name the folder that has them, or a file"
        )
    numbers: dict[int, Path] = {}
    for path, match in found.items():
        if numbers.setdefault(int(match[1]), path) != path:
            raise UserError(f"{path}: {numbers[int(match[1])].name} is the same part; keep one")
    parts = max(int(match[2]) for match in found.values())
    if len(found) < parts:
        notes.append(f"{len(found)} of {parts} parts are there: events of the others are missing")
    return [path for _, path in sorted(numbers.items())]


class _Story(Struct, gc=False):
    """What is known of a job; times in seconds, infinite after the trace."""

    id: str
    submit: float | None = None
    start: float | None = None
    end: float | None = None
    state: str = ""
    user: str = ""
    sched_class: str = ""
    name: str = ""
    last: float = 0.0
    """When it was last submitted or scheduled or ended."""
    schedules: int = 0

    def describe(self, user: str, sched_class: str, name: str) -> None:
        """Take what a row says of the job; a row may leave it out."""
        # The same few texts stand in hundreds of thousands of rows.
        self.user = intern(user) or self.user
        self.sched_class = intern(sched_class) or self.sched_class
        self.name = intern(name) or self.name

    def goes_on(self, kind: str, time: float) -> None:
        """Hear of an event; of two at one time the later row is the later event."""
        if kind == "SUBMIT":
            self.submit = time if self.submit is None else min(self.submit, time)
        elif kind == "SCHEDULE":
            self.start = time if self.start is None else min(self.start, time)
            self.schedules += 1
        if time >= self.last:
            self.last = time
            # A job that is submitted or scheduled again has not ended yet.
            self.end, self.state = (time, kind) if kind in ENDS else (None, "")

    def into(self, kept: ImportedJobs) -> bool:
        """Keep the job, or count why not. Raises BadCellError."""
        if self.submit is None:
            kept.dropped["without a submission"] += 1
        elif 0 in (self.submit, self.start):
            kept.dropped["from before the trace"] += 1
        elif inf in (self.submit, self.start, self.end):
            kept.dropped["going on after the trace"] += 1
        elif self.start is None:
            kept.dropped["never scheduled"] += 1
        elif self.end is None:
            kept.dropped["without an end"] += 1
        else:
            job = Job(self.id, POOL, self.submit, 1, self.user, self.name)
            # To the microsecond, as the times are: their difference in floats is not.
            wait = round(self.start - self.submit, 6)
            told = (self.state, self.sched_class, repr(wait) if wait >= 0 else "")
            return kept.add(job, round(self.end - self.start, 6), *told)
        return False


def _joined(log: Path, table: LogTable, kept: ImportedJobs) -> None:
    """Keep the jobs of the joined form, or count why not."""
    at = columns_of(log, table.header, JOINED)

    def take(cells: Sequence[str]) -> None:
        submit, start, end = (_time(cells, name, at[name]) for name in JOINED[1:4])
        story = _Story(cells[at["job_id"]], submit, start, end, intern(cells[at["end_event"]]))
        story.describe(*(cells[at[name]] for name in JOINED[5:]))
        story.into(kept)

    take_rows(log, table, take)


class _Events:
    """Jobs by what the events so far tell of them."""

    def __init__(self) -> None:
        self._stories: dict[str, _Story] = {}

    def read(self, part: Path, table: LogTable) -> None:
        """Hear the events of a part, in order."""
        at = columns_of(part, table.header, EVENTS)
        take_rows(part, table, lambda cells: self._event(cells, at))

    def _event(self, cells: Sequence[str], at: dict[str, int]) -> None:
        job_id, kind = cells[at["job ID"]], _type(cells[at["event type"]])
        time = _time(cells, "time", at["time"], MICROSECONDS)
        if not job_id:
            raise BadCellError("job ID", "it is empty", "give the job an id", "")
        if time is None:
            raise BadCellError("time", "it is empty", "write microseconds", "")
        story = self._stories.get(job_id)
        if story is None:
            story = self._stories[job_id] = _Story(job_id)
        story.describe(
            cells[at["user"]], cells[at["scheduling class"]], cells[at["logical job name"]]
        )
        if kind not in UPDATES:
            story.goes_on(kind, time)

    def into(self, kept: ImportedJobs) -> None:
        """Keep the jobs, or count why not."""
        again = 0
        for story in self._stories.values():
            again += story.into(kept) and story.schedules > 1
        if again:
            kept.notes.append(
                f"{counted(again, 'job')} scheduled again after being evicted or failing; "
                "what was between is in the duration"
            )


def _type(cell: str) -> str:
    """The name of an event's type. Raises BadCellError."""
    if cell not in CODES:
        mend = f"write a whole number from 0 to {len(TYPES) - 1}"
        raise BadCellError("event type", f"it is {shown(cell)}", mend, "")
    return CODES[cell]


def _time(cells: Sequence[str], column: str, at: int, a_second: float = 1.0) -> float | None:
    """Seconds, infinite after the trace, None where the cell is empty. Raises BadCellError."""
    if not cells[at]:
        return None
    if AFTER.fullmatch(cells[at]):
        return inf
    unit = "seconds" if a_second == 1.0 else "microseconds"
    mend = f"write {unit} since the trace began"
    return number(cells, column, at, zero=True, negative=mend, unit=unit) / a_second
