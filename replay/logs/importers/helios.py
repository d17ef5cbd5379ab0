"""SenseTime Helios: `cluster_log.csv` and `cluster_gpu_number.csv`.

The log has one row per job: job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,
end_time,duration,queue. Times are local; duration and queue are in seconds. The second file has one
row per day and one column per virtual cluster with its number of GPUs, 0 if it does not exist. A
virtual cluster becomes a pool.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from replay.logs.importers.local_time import EMPTY, day, midnight, seconds
from replay.logs.importers.selection import ImportedJobs
from replay.logs.read import (
    BadCellError,
    bad_row,
    columns_of,
    complete,
    number,
    open_table,
    shown,
    take_rows,
    whole,
)
from replay.logs.trace import PoolTable, Trace
from sia.console.errors import UserError
from sia.events import PoolChanged
from sia.model import Job, Pool

COLUMNS = ("job_id", "user", "vc", "gpu_num", "state", "submit_time", "start_time", "duration")


def read(log: Path, pools: Path | None) -> tuple[Trace, PoolTable | None]:
    """Return the GPU jobs that ran, and the pools day by day if `pools` is given.

    Second 0 is the midnight before the first submission. Raises UserError.
    """
    jobs_out = ImportedJobs(log, "job_id", "state", what="GPU job")
    with open_table(log) as table:
        at = columns_of(log, table.header, COLUMNS)
        take_rows(log, table, lambda cells: _job(cells, at, jobs_out))
    origin = midnight(jobs_out.first())
    jobs_out.notes.append(f"second 0 is {day(origin)} 00:00:00, local time of the cluster")
    return jobs_out.trace(origin), None if pools is None else _pools(pools, origin)


def _job(cells: Sequence[str], at: dict[str, int], jobs_out: ImportedJobs) -> None:
    """Add the job of a row, or count the reason for dropping it. Raises BadCellError."""
    gpus = whole(cells, "gpu_num", at["gpu_num"], least=0)
    if gpus == 0:
        jobs_out.dropped["CPU job"] += 1
        return
    submit = _time(cells, "submit_time", at)
    if submit is None:
        raise BadCellError("submit_time", "empty", "write YYYY-MM-DD HH:MM:SS", "")
    if _time(cells, "start_time", at) is None:
        jobs_out.dropped["never started"] += 1
        return
    if cells[at["duration"]].strip() in EMPTY:
        jobs_out.dropped["without a duration"] += 1
        return
    fix = "write seconds, 0 or more"
    duration = number(cells, "duration", at["duration"], zero=True, negative=fix)
    job = Job(cells[at["job_id"]], cells[at["vc"]], submit, gpus, cells[at["user"]])
    jobs_out.add(job, duration, cells[at["state"]])


def _time(cells: Sequence[str], column: str, at: dict[str, int]) -> float | None:
    try:
        return seconds(cells[at[column]])
    except ValueError:
        text = shown(cells[at[column]])
        raise BadCellError(
            column, f"{text} is not a time", "write YYYY-MM-DD HH:MM:SS", ""
        ) from None


def _pools(path: Path, origin: float) -> PoolTable:
    """Return the pools, with a PoolChanged for each day on which a virtual cluster changes size."""
    sizes: dict[str, int] = {}
    first: dict[str, int] = {}
    changes: list[PoolChanged] = []
    before = float("-inf")
    with open_table(path) as table:
        at = columns_of(path, table.header, ("date",))
        clusters = [name for name in table.header if name not in ("date", "total", "")]
        for row in table.rows:
            try:
                date, quotas = _day(row.cells, at, clusters, before)
            except BadCellError as bad:
                raise bad_row(path, row, bad) from None
            before = date
            for name, quota in quotas.items():
                if date <= origin or name not in first:
                    first[name] = sizes[name] = quota if date <= origin else 0
                if sizes[name] != quota:
                    changes.append(PoolChanged(date - origin, name, quota))
                    sizes[name] = quota
    if not first:
        raise UserError(
            f"{path}: the file has no day or no virtual cluster; give cluster_gpu_number.csv"
        )
    return PoolTable([Pool(name, quota) for name, quota in first.items()], changes)


def _day(
    cells: Sequence[str], at: dict[str, int], clusters: Sequence[str], before: float
) -> tuple[float, dict[str, int]]:
    """Return the time at which a row's day begins, and the GPUs of each virtual cluster."""
    complete(cells, len(at), "date")
    date = _time(cells, "date", at)
    if date is None or date <= before:
        raise BadCellError("date", "the days do not ascend", "sort the rows by date", "")
    return date, {name: whole(cells, name, at[name], least=0) for name in clusters}
