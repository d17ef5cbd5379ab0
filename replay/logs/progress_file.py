"""A file with what jobs report while they run: `job_id,done,speed[,regime]`, a row a report."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from replay.logs.progress import following, parse_progress
from replay.logs.read import BadCellError, bad_row, columns_of, complete, open_table
from replay.logs.trace import PROGRESS, Trace
from sia.console.errors import UserError
from sia.core.playout import ProgressPoint
from sia.wording import counted

COLUMNS = ("job_id", "done", "speed")


def with_progress(trace: Trace, path: Path) -> Trace:
    """Return the log with the reports of a file as its column `progress`. Raises UserError.

    Reports of jobs that are not in the log are left out, and counted in a note.
    """
    if PROGRESS in trace.columns:
        raise UserError(
            f"--progress {path}: the log itself has a column {PROGRESS}; leave one of them out"
        )
    jobs = {job.id for job, _ in trace.arrivals}
    reports: dict[str, list[str]] = {}
    last: dict[str, ProgressPoint] = {}
    foreign = 0
    with open_table(path) as table:
        at = columns_of(path, table.header, COLUMNS)
        places = [at.get(name) for name in (*COLUMNS, "regime", "gpus")]
        for row in table.rows:
            try:
                complete(row.cells, len(table.header), "job_id")
                job_id, *parts = ("" if i is None else row.cells[i].strip() for i in places)
                cell = ":".join(parts).rstrip(":")
                last[job_id] = _following(cell, last.get(job_id))
            except BadCellError as bad:
                raise bad_row(path, row, bad) from None
            if job_id in jobs:
                reports.setdefault(job_id, []).append(cell)
            else:
                foreign += 1
    if not reports:
        raise UserError(
            f"{path}: no report is of a job of the log; column job_id must have the log's IDs"
        )
    notes = list(trace.notes)
    if foreign:
        notes.append(f"{counted(foreign, 'report')} of progress left out: no such job is replayed")
    blank = ("",) * len(trace.columns)
    extras = {
        job.id: (*trace.extras.get(job.id, blank), ";".join(reports.get(job.id, ())))
        for job, _ in trace.arrivals
    }
    return replace(trace, columns=(*trace.columns, PROGRESS), extras=extras, notes=notes)


def _following(cell: str, last: ProgressPoint | None) -> ProgressPoint:
    """Call `following` for a cell. Raises BadCellError."""
    column = "done"
    try:
        (point,) = parse_progress(cell)
        column = "regime" if last is not None and point.done > last.done else column
        return following(point, last)
    except ValueError as error:
        problem, _, fix = str(error).partition("; ")
        raise BadCellError(column, problem, fix, "") from None
