"""Parallel Workloads Archive: the Standard Workload Format (SWF), version 2.2.

Each row is a job of 18 fields separated by white space; -1 means unknown. The fields are: job
number, submit time, wait time, run time, allocated processors, average CPU time, used memory,
requested processors, requested time, requested memory, status, user, group, executable, queue,
partition, preceding job, think time. Lines that begin with `;` are comments; header comments look
like `; MaxProcs: 100`.

Processors are treated as GPUs. A job's width is its allocated processors, or the requested ones if
the former are unknown. Its pool is its partition, else its queue, else the whole machine.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from replay.logs.importers.selection import ImportedJobs
from replay.logs.read import (
    BadCellError,
    LogRow,
    bad_row,
    complete,
    number,
    open_lines,
    shown,
    whole,
)
from replay.logs.trace import PoolTable, Trace
from sia.console.errors import UserError
from sia.limits import MAX_QUOTA, UNKNOWN_RUN_TIME
from sia.model import Job, Pool
from sia.wording import counted

FIELDS = (
    "job number", "submit time", "wait time", "run time", "allocated processors",
    "average CPU time", "used memory", "requested processors", "requested time",
    "requested memory", "status", "user", "group", "executable", "queue", "partition",
    "preceding job", "think time",
)  # fmt: skip
AT = {name: i for i, name in enumerate(FIELDS)}
UNKNOWN = re.compile(r"-1(\.0*)?")
WHOLE = re.compile(r"[0-9]{1,18}")
HEADER = re.compile(r";\s*(MaxProcs|MaxNodes|UnixStartTime):\s*(.*)")
STATUSES = ("", "0", "1", "2", "3", "4", "5")
PARTS = ("2", "3", "4")
"""Statuses of rows that describe one part of a job that was checkpointed and swapped out."""
CANCELLED = "5"
MACHINE = "machine"
"""The pool of jobs whose partition and queue are unknown."""


def read(log: Path, pools: Path | None) -> tuple[Trace, PoolTable | None]:
    """Return the jobs that ran, in the log's own time, and the pool if there is exactly one.

    Raises UserError.
    """
    if pools is not None:
        raise UserError(f"{pools}: an SWF log is a single file; omit this argument")
    found = _Log(log)
    with open_lines(log) as lines:
        for line_number, line in enumerate(lines, 1):
            row = LogRow(line_number, line.split())
            try:
                if line.lstrip().startswith(";"):
                    found.comment(line)
                elif row.cells:
                    found.job(row.cells)
            except BadCellError as bad:
                raise bad_row(log, row, bad) from None
    return found.trace()


class _Log:
    """The jobs and header fields read so far from a log."""

    def __init__(self, log: Path) -> None:
        self._jobs_out = ImportedJobs(log, "job number", "state", "group", "wait")
        self._header: dict[str, str] = {}
        self._whole_job = ""
        self._requested = 0
        self._pools: dict[str, Counter[str]] = {}

    def comment(self, line: str) -> None:
        """Store the header fields that describe the machine. Raises BadCellError."""
        found = HEADER.match(line.strip())
        if found and self._header.setdefault(found[1], found[2]) != found[2]:
            raise BadCellError(
                found[1], "the header has two different values", "remove one of them", ""
            )

    def job(self, cells: Sequence[str]) -> None:
        """Add the job of a row, or count the reason for dropping it. Raises BadCellError."""
        complete(cells, len(FIELDS), FIELDS[0])
        job_id, status = _label(cells, "job number"), _label(cells, "status")
        if status not in STATUSES:
            raise BadCellError(
                "status", f"unknown status {shown(status)}", "write -1 or 0 to 5", ""
            )
        if status in PARTS:
            self._part(job_id)
            return
        self._whole_job = job_id
        submit, duration = _seconds(cells, "submit time"), _seconds(cells, "run time")
        allocated = _processors(cells, "allocated processors")
        width = allocated or _processors(cells, "requested processors")
        if submit is None:
            self._jobs_out.dropped["without a submission time"] += 1
        elif status == CANCELLED and not duration:
            self._jobs_out.dropped["cancelled before it ran"] += 1
        elif duration is None:
            self._jobs_out.dropped["without a run time"] += 1
        elif not width:
            self._jobs_out.dropped["without a number of processors"] += 1
        else:
            kind, pool = _pool(cells)
            user, name = _label(cells, "user"), _label(cells, "executable")
            asked = _seconds(cells, "requested time")
            estimate = min(asked, UNKNOWN_RUN_TIME) if asked else None
            job = Job(job_id, pool, submit, width, user, name, estimate=estimate)
            wait = _seconds(cells, "wait time")
            extras = (status, _label(cells, "group"), "" if wait is None else repr(wait))
            if self._jobs_out.add(job, duration, *extras):
                self._requested += not allocated
                self._pools.setdefault(kind, Counter())[pool] += 1

    def _part(self, job_id: str) -> None:
        """Count a row that describes a part of the job in the row before. Raises BadCellError."""
        if not job_id or job_id != self._whole_job:
            raise BadCellError(
                "status",
                f"a part of job {shown(job_id)} without a row of the whole job before it",
                "insert a row of the whole job with status 0, 1 or 5 before it",
                "",
            )
        self._jobs_out.dropped["part of a job that has a row of its own"] += 1

    def trace(self) -> tuple[Trace, PoolTable | None]:
        """Return the jobs, and the pool if there is exactly one and the header has its size."""
        trace = self._jobs_out.trace()
        begin = self._header.get("UnixStartTime", "")
        unix = f", Unix time {begin} according to its header" if WHOLE.fullmatch(begin) else ""
        trace.notes.append(f"second 0 is second 0 of the log{unix}")
        trace.notes.append("widths are numbers of processors, which are treated as GPUs")
        if self._requested:
            trace.notes.append(
                f"{counted(self._requested, 'job')} with the requested width: "
                "the allocated processors are unknown"
            )
        if len(self._pools) > 1:
            counts = ", ".join(f"{kind} {jobs.total()}" for kind, jobs in self._pools.items())
            trace.notes.append(f"jobs name their pool in different fields: {counts}")
        return trace, self._table(trace.notes)

    def _table(self, notes: list[str]) -> PoolTable | None:
        """Return the only pool, with the size of the machine from the header, or None."""
        names = [name for jobs in self._pools.values() for name in jobs]
        source = "MaxProcs" if _is_size(self._header.get("MaxProcs", "")) else "MaxNodes"
        size = self._header.get(source, "")
        if len(names) > 1 or not _is_size(size):
            return None
        notes.append(f"pool {names[0]} has {int(size)} processors ({source} of the header)")
        return PoolTable([Pool(names[0], int(size))])


def _is_size(text: str) -> bool:
    return WHOLE.fullmatch(text) is not None and 0 < int(text) <= MAX_QUOTA


def _pool(cells: Sequence[str]) -> tuple[str, str]:
    """Return the field that names the pool of a job, and the pool."""
    for kind in ("partition", "queue"):
        label = _label(cells, kind)
        if label:
            return kind, f"{kind}-{label}"
    return "neither partition nor queue", MACHINE


def _label(cells: Sequence[str], field: str) -> str:
    """Return a number that identifies something, empty if unknown. Raises BadCellError."""
    text = cells[AT[field]]
    if UNKNOWN.fullmatch(text):
        return ""
    if not WHOLE.fullmatch(text):
        fix = "write a whole number, or -1 if unknown"
        raise BadCellError(field, f"{shown(text)} is not a whole number", fix, "")
    return text


def _seconds(cells: Sequence[str], field: str) -> float | None:
    """Return a time in seconds, or None if it is unknown. Raises BadCellError."""
    if UNKNOWN.fullmatch(cells[AT[field]]):
        return None
    fix = "write seconds, 0 or more, or -1 if unknown"
    return number(cells, field, AT[field], zero=True, negative=fix)


def _processors(cells: Sequence[str], field: str) -> int:
    """Return a number of processors, or 0 if it is unknown. Raises BadCellError."""
    if UNKNOWN.fullmatch(cells[AT[field]]):
        return 0
    return whole(cells, field, AT[field], least=0)
