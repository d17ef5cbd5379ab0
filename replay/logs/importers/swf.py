"""Parallel Workloads Archive: the Standard Workload Format (SWF), version 2.2.

A row a job, 18 fields between white space, -1 where one is not known: job number, submit time, wait
time, run time, allocated processors, average CPU time, used memory, requested processors, requested
time, requested memory, status, user, group, executable, queue, partition, preceding job, think
time. Lines that begin with `;` are comments, those of the header like `; MaxProcs: 100`.

A processor is what other logs call a GPU. A job's width is the processors it was allocated, else
those it requested; its pool is its partition, else its queue, else the machine.
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
from sia.limits import MAX_QUOTA
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
"""Statuses of rows that tell of one stretch of a job that was swapped out and in again."""
CANCELLED = "5"
MACHINE = "machine"
"""The pool of jobs whose partition and queue are not known."""


def read(log: Path, pools: Path | None) -> tuple[Trace, PoolTable | None]:
    """Jobs that ran, by the log's own clock; the pool's size where there is one pool."""
    if pools is not None:
        raise UserError(f"{pools}: an SWF log is one file; leave this file out")
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
    """What has been read of a log so far."""

    def __init__(self, log: Path) -> None:
        self._kept = ImportedJobs(log, "job number", "state", "group", "wait")
        self._header: dict[str, str] = {}
        self._whole_job = ""
        self._requested = 0
        self._pools: dict[str, Counter[str]] = {}

    def comment(self, line: str) -> None:
        """Note what the header says of the machine."""
        found = HEADER.match(line.strip())
        if found and self._header.setdefault(found[1], found[2]) != found[2]:
            raise BadCellError(found[1], "the header says two things of it", "keep one", "")

    def job(self, cells: Sequence[str]) -> None:
        """Keep the job of a row, or count why not."""
        complete(cells, len(FIELDS), FIELDS[0])
        job_id, status = _label(cells, "job number"), _label(cells, "status")
        if status not in STATUSES:
            raise BadCellError("status", f"it is {shown(status)}", "write -1, or 0 to 5", "")
        if status in PARTS:
            self._part(job_id)
            return
        self._whole_job = job_id
        submit, duration = _seconds(cells, "submit time"), _seconds(cells, "run time")
        got = _processors(cells, "allocated processors")
        width = got or _processors(cells, "requested processors")
        if submit is None:
            self._kept.dropped["without a submission time"] += 1
        elif status == CANCELLED and not duration:
            self._kept.dropped["cancelled before it ran"] += 1
        elif duration is None:
            self._kept.dropped["without a run time"] += 1
        elif not width:
            self._kept.dropped["without a number of processors"] += 1
        else:
            kind, pool = _pool(cells)
            user, name = _label(cells, "user"), _label(cells, "executable")
            job = Job(job_id, pool, submit, width, user, name)
            wait = _seconds(cells, "wait time")
            told = (status, _label(cells, "group"), "" if wait is None else repr(wait))
            if self._kept.add(job, duration, *told):
                self._requested += not got
                self._pools.setdefault(kind, Counter())[pool] += 1

    def _part(self, job_id: str) -> None:
        """Count a row that tells of a part of the job in the row before."""
        if not job_id or job_id != self._whole_job:
            raise BadCellError(
                "status",
                f"it is a part of job {shown(job_id)}, which has no row of its own before",
                "put a row with the whole job there, status 0, 1 or 5",
                "",
            )
        self._kept.dropped["part of a job that has a row of its own"] += 1

    def trace(self) -> tuple[Trace, PoolTable | None]:
        """The jobs, and the pool if there is one and the header tells its size."""
        trace = self._kept.trace()
        begin = self._header.get("UnixStartTime", "")
        says = f", Unix time {begin} by its header" if WHOLE.fullmatch(begin) else ""
        trace.notes.append(f"second 0 is that of the log{says}")
        trace.notes.append("widths are processors, each in the place of a GPU")
        if self._requested:
            trace.notes.append(
                f"{counted(self._requested, 'job')} as wide as requested: "
                "what was given is not known"
            )
        if len(self._pools) > 1:
            counts = ", ".join(f"{kind} {jobs.total()}" for kind, jobs in self._pools.items())
            trace.notes.append(f"jobs tell their pool in different ways: {counts}")
        return trace, self._table(trace.notes)

    def _table(self, notes: list[str]) -> PoolTable | None:
        """The only pool, as large as the header says the machine is."""
        names = [name for jobs in self._pools.values() for name in jobs]
        source = "MaxProcs" if _is_size(self._header.get("MaxProcs", "")) else "MaxNodes"
        size = self._header.get(source, "")
        if len(names) > 1 or not _is_size(size):
            return None
        notes.append(f"pool {names[0]} has {int(size)} processors, as {source} of the header says")
        return PoolTable([Pool(names[0], int(size))])


def _is_size(text: str) -> bool:
    return WHOLE.fullmatch(text) is not None and 0 < int(text) <= MAX_QUOTA


def _pool(cells: Sequence[str]) -> tuple[str, str]:
    """By what the pool of a job is told, and its name."""
    for kind in ("partition", "queue"):
        label = _label(cells, kind)
        if label:
            return kind, f"{kind}-{label}"
    return "neither partition nor queue", MACHINE


def _label(cells: Sequence[str], field: str) -> str:
    """A number that stands for a name, empty where it is not known. Raises BadCellError."""
    text = cells[AT[field]]
    if UNKNOWN.fullmatch(text):
        return ""
    if not WHOLE.fullmatch(text):
        mend = "write a whole number, or -1 where it is not known"
        raise BadCellError(field, f"{shown(text)} is no number of this kind", mend, "")
    return text


def _seconds(cells: Sequence[str], field: str) -> float | None:
    """A time, None where it is not known. Raises BadCellError."""
    if UNKNOWN.fullmatch(cells[AT[field]]):
        return None
    mend = "write seconds, 0 or more, or -1 where they are not known"
    return number(cells, field, AT[field], zero=True, negative=mend)


def _processors(cells: Sequence[str], field: str) -> int:
    """A number of processors, 0 where it is not known. Raises BadCellError."""
    if UNKNOWN.fullmatch(cells[AT[field]]):
        return 0
    return whole(cells, field, AT[field], least=0)
