"""Read when jobs ran: `job_id,start,end,width`, of a replay or of any other scheduler."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from replay.fairness.measures import RunSegment
from replay.logs.read import (
    BadCellError,
    bad_row,
    columns_of,
    complete,
    number,
    open_table,
    shown,
    whole,
)
from replay.logs.trace import Trace
from sia.console.errors import UserError

COLUMNS = ("job_id", "start", "end", "width")


def read_segments(path: Path, trace: Trace, gpus: int) -> dict[str, list[RunSegment]]:
    """Return the segments of each job of a log by id, each in order of time. Raises UserError.

    A segment must be of a job of the log, must not begin before its submission or be wider than all
    `gpus`, and must not overlap another one of its job.
    """
    submitted = {job.id: job.submit for job, _ in trace.arrivals}
    found: dict[str, list[RunSegment]] = {}
    with open_table(path) as table:
        at = columns_of(path, table.header, COLUMNS)
        for row in table.rows:
            try:
                complete(row.cells, len(table.header), "job_id")
                job_id, segment = _segment(row.cells, at, submitted, gpus)
            except BadCellError as bad:
                raise bad_row(path, row, bad) from None
            found.setdefault(job_id, []).append(segment)
    for job_id, segments in found.items():
        segments.sort()
        for before, after in pairwise(segments):
            if after.start < before.end:
                raise UserError(
                    f"{path}: job {job_id} runs twice at {after.start:g} s; "
                    "write segments that do not overlap"
                )
    return found


def _segment(
    cells: Sequence[str], at: Mapping[str, int], submitted: Mapping[str, float], gpus: int
) -> tuple[str, RunSegment]:
    job_id = cells[at["job_id"]]
    if job_id not in submitted:
        raise BadCellError(
            "job_id", f"no job {shown(job_id)} in the log", "give the log of these segments", ""
        )
    start, end = (number(cells, name, at[name], zero=True) for name in ("start", "end"))
    width = whole(cells, "width", at["width"], least=1)
    if width > gpus:
        problem = f"{width} GPUs, but the pools have {gpus}"
        raise BadCellError("width", problem, "give the pools of these segments", "")
    if end < start:
        raise BadCellError("end", f"{end:g} is before the start", "write an end after start", "")
    if start < submitted[job_id]:
        problem = f"{start:g} is before the submission at {submitted[job_id]:g} s"
        raise BadCellError("start", problem, "give the log of these segments", "")
    return job_id, RunSegment(start, end, width)
