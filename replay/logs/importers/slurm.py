"""Slurm accounting: the output of `sacct --parsable2` (or `--parsable`), with its header.

The columns JobID, Submit, Start, End and one of AllocTRES, ReqTRES, AllocGRES, ReqGRES are
required. User, Partition, Account, JobName, State, Timelimit and NNodes are used if they are there.
Rows of job steps (`12.batch`) describe parts of jobs. A job's pool is its partition. Times are as
Slurm prints them, `2026-03-01T09:30:00`, or seconds since the epoch (`SLURM_TIME_FORMAT=%s`).
sacct does not escape a `|` in a job's name: such a row has more cells than the header. The header
may be repeated, as in several outputs that were joined.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from replay.logs.importers.local_time import EMPTY, day, midnight, seconds
from replay.logs.importers.selection import ImportedJobs
from replay.logs.read import BadCellError, LogRow, bad_row, complete, open_lines, shown
from replay.logs.trace import PoolTable, Trace
from sia.console.errors import OtherFormatError, UserError
from sia.limits import UNKNOWN_RUN_TIME
from sia.model import Job

REQUIRED = ("JobID", "Submit", "Start", "End")
RESOURCES = ("AllocTRES", "ReqTRES", "AllocGRES", "ReqGRES")
"""Columns with the GPUs of a job; the first that names any counts."""

UNKNOWN = (*EMPTY, "Unknown", "N/A")
FREE = ("AdminComment", "Comment", "Container", "Extra", "Reason", "SubmitLine", "SystemComment",
        "WorkDir")  # fmt: skip
"""Columns other than JobName whose text may contain a `|`."""

PARTITION = "machine"
"""The pool of jobs without a partition."""

_EPOCH = re.compile(r"[0-9]{1,11}")
_TRES = re.compile(r"gres/gpu(?::[^=,]+)?=([0-9]{1,18})")
_UNTYPED = re.compile(r"gres/gpu=([0-9]{1,18})")
_GRES = re.compile(r"(?:^|,)gpu(?::[^:,(]+)?:([0-9]{1,18})")
_LIMIT = re.compile(r"(?:([0-9]{1,18})-)?([0-9]{1,18}):([0-9]{2}):([0-9]{2})")


def read(
    log: Path, pools: Path | None, *, skip_invalid: bool = False
) -> tuple[Trace, PoolTable | None]:
    """Return the GPU jobs that ran. Second 0 is the midnight before the first submission.

    Of several rows of one job, which a requeued job has, the last one counts. With `skip_invalid`
    rows that are invalid are skipped and counted. Raises UserError.
    """
    found = ImportedJobs(log, "JobID", "state", "account", "wait", what="GPU job")

    def refuse(row: LogRow, bad: BadCellError) -> None:
        if not skip_invalid:
            raise bad_row(log, row, bad, skip=True) from None
        found.dropped[f"invalid: {bad.reason or bad.column}"] += 1

    if pools is not None:
        raise UserError(f"{pools}: a sacct log is a single file; omit this argument")
    rows: dict[str, LogRow] = {}
    with open_lines(log) as lines:
        header = _cells(next(lines, ""))
        at = _columns(log, header)
        for row in _rows(lines, header):
            try:
                complete(row.cells, len(header), "JobID")
            except BadCellError as bad:
                refuse(row, bad)
                continue
            job_id = row.cells[at["JobID"]]
            if "." in job_id:
                found.dropped["step of a job"] += 1
                continue
            if job_id in rows:
                found.dropped["earlier run of a requeued job"] += 1
            rows[job_id] = row
    for row in rows.values():
        try:
            _job(row.cells, at, found)
        except BadCellError as bad:
            refuse(row, bad)
    origin = midnight(found.first())
    found.notes.append(f"second 0 is {day(origin)} 00:00:00, local time of the cluster")
    return found.trace(origin), None


def _cells(line: str) -> list[str]:
    return line.rstrip("\r\n").split("|")


def _rows(lines: Iterable[str], header: list[str]) -> Iterator[LogRow]:
    """Return the rows after the header, without empty lines and further headers."""
    for number, line in enumerate(lines, 2):
        cells = _cells(line)
        if line.strip() and cells != header:
            yield LogRow(number, _with_whole_name(cells, header))


def _with_whole_name(cells: list[str], header: Sequence[str]) -> list[str]:
    """Return the cells of a row, those of a job's name that contains `|` joined.

    Without a column JobName, or with other columns that may contain `|`, they are returned as they
    are.
    """
    more = len(cells) - len(header)
    if more <= 0 or header.count("JobName") != 1 or not set(FREE).isdisjoint(header):
        return cells
    begin = header.index("JobName")
    end = begin + more + 1
    return [*cells[:begin], "|".join(cells[begin:end]), *cells[end:]]


def _columns(log: Path, header: Sequence[str]) -> dict[str, int]:
    """Return the index of each column of the header. Raises UserError."""
    at = {name.strip(): i for i, name in enumerate(header)}
    missing = [name for name in REQUIRED if name not in at]
    if not missing and not any(name in at for name in RESOURCES):
        missing = ["AllocTRES"]
    if missing:
        raise OtherFormatError(
            f"{log}: row 1: column {', '.join(missing)} is missing; write the log with sacct "
            "--parsable2 --allusers "
            "--format=JobID,User,Partition,JobName,State,Submit,Start,End,AllocTRES,Timelimit"
        )
    return at


def _job(cells: Sequence[str], at: dict[str, int], found: ImportedJobs) -> None:
    """Add the job of a row, or count the reason for dropping it. Raises BadCellError."""
    gpus = _gpus(cells, at)
    submit, start, end = (_time(cells, at, name) for name in ("Submit", "Start", "End"))
    if submit is None:
        found.dropped["without a submission time"] += 1
    elif start is None:
        found.dropped["never started"] += 1
    elif not gpus:
        found.dropped["CPU job"] += 1
    elif end is None:
        found.dropped["without an end"] += 1
    else:

        def text(column: str) -> str:
            return cells[at[column]].strip() if column in at else ""

        pool = text("Partition").partition(",")[0] or PARTITION
        # Slurm updates the submission time of a requeued job, but not of a job that it migrates.
        submit = min(submit, start)
        estimate = _limit(text("Timelimit"))
        job = Job(
            text("JobID"), pool, submit, gpus, text("User"), text("JobName"), estimate=estimate
        )
        state = text("State").partition(" ")[0]
        found.add(job, end - start, state, text("Account"), repr(start - submit))


def _gpus(cells: Sequence[str], at: dict[str, int]) -> int:
    """Return the GPUs of a job, 0 if no column names any."""
    nodes = cells[at["NNodes"]].strip() if "NNodes" in at else "1"
    for column in RESOURCES:
        text = cells[at[column]] if column in at else ""
        if column.endswith("TRES"):
            # The GPUs of a typed entry, gres/gpu:a100=4, are included in the untyped one.
            untyped = _UNTYPED.findall(text)
            gpus = sum(map(int, untyped or _TRES.findall(text)))
        else:
            gpus = sum(map(int, _GRES.findall(text))) * (
                int(nodes) if nodes.isdecimal() and len(nodes) <= 18 else 1
            )
        if gpus:
            return gpus
    return 0


def _time(cells: Sequence[str], at: dict[str, int], column: str) -> float | None:
    """Return a time as Unix time, treating local times as UTC. Raises BadCellError."""
    text = cells[at[column]].strip()
    if text in UNKNOWN:
        return None
    if _EPOCH.fullmatch(text):
        return float(text)
    try:
        return seconds(text)
    except ValueError:
        raise BadCellError(
            column,
            f"{shown(text)} is not a time",
            "write YYYY-MM-DDTHH:MM:SS",
            f"{column} is not a time",
        ) from None


def _limit(text: str) -> float | None:
    """Return a time limit in seconds; None if the job has none."""
    found = _LIMIT.fullmatch(text)
    if found is None:
        return None
    days, hours, minutes, secs = (int(part or 0) for part in found.groups())
    limit = days * 86400.0 + hours * 3600.0 + minutes * 60.0 + secs
    return min(limit, UNKNOWN_RUN_TIME) or None
