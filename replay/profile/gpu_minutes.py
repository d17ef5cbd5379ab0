"""Reads files that record a pool's GPUs minute by minute, like those of the Helios cluster Earth.

A folder has one file per virtual cluster: time (YYYY-MM-DD HH:MM:SS), GPUs owned, running and
pending, and the number of GPU jobs. There are no rows of jobs, so durations, widths and times
between arrivals are unknown. Arrivals and ends are visible only as changes of the number of jobs
from one minute to the next, so bursts are lower bounds.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

from replay.logs.importers.local_time import seconds
from replay.logs.limits import MAX_HOURS
from replay.logs.read import BadCellError, bad_row, columns_of, number, open_table, shown
from replay.plotting.canvas import FloatArray
from replay.profile.profile import BURST, ProfileRow, soon_after_an_end, utilisation
from sia.console.errors import UserError
from sia.wording import HOUR, MINUTE

COUNTED = ("total_gpu_num", "running_gpu_num", "pending_gpu_num", "total_gpujob_num")
COLUMNS = ("time", *COUNTED)

NOTE = (
    "no row a job: durations, widths and times between arrivals are not known; "
    "bursts, arrivals and ends are net changes from minute to minute, so at least these"
)


class _Pool(NamedTuple):
    """One file, a value per row: epoch seconds, GPUs, pending and running GPU jobs."""

    times: FloatArray
    owned: FloatArray
    running: FloatArray
    pending: FloatArray
    jobs: FloatArray


def shape_of_minutes(folder: Path) -> ProfileRow:
    """Return the measures of a log's shape that such a folder allows. Raises UserError."""
    if not folder.is_dir():
        raise UserError(
            f"{folder}: is not a folder; give one with one file of minutes for each pool"
        )
    found = {}
    for path in sorted(folder.iterdir()):
        if path.name.endswith((".csv", ".csv.gz")) and (pool := _read(path)) is not None:
            found[path.name.partition(".")[0]] = pool
    if not found:
        raise UserError(f"{folder}: no file with columns {', '.join(COLUMNS)} in it")
    first = min(pool.times[0] for pool in found.values()) // HOUR
    hours = int(max(pool.times[-1] for pool in found.values()) // HOUR - first) + 1
    if hours > MAX_HOURS:
        raise UserError(f"{folder}: spans {hours:,} hours; check column time")
    pools: dict[str, ProfileRow] = {}
    used, owned = [], []
    for name, pool in found.items():
        hour = (pool.times // HOUR - first).astype(np.int64)
        used.append(np.bincount(hour, pool.running, hours).astype(np.float64))
        owned.append(np.bincount(hour, pool.owned, hours).astype(np.float64))
        use = utilisation(used[-1], owned[-1])
        pools[name] = {"gpus": int(pool.owned.max()), **use, **_changes(pool)}
    return {
        "utilisation": "as recorded",
        "notes": [NOTE],
        **utilisation(np.sum(used, axis=0), np.sum(owned, axis=0)),
        "pools": pools,
    }


def _changes(pool: _Pool) -> ProfileRow:
    """Return the largest net rise of demand within five minutes, and whether rises follow falls."""
    rises = np.diff(pool.running + pool.pending).clip(min=0.0)
    rises[np.diff(pool.times) > MINUTE] = 0.0  # jobs may have arrived at any time in a gap
    before = np.concatenate([[0.0], np.cumsum(rises)])  # cumulative rises up to each row
    begin = np.searchsorted(pool.times, pool.times - BURST, "right") - 1
    sums = before - before[begin.clip(min=0)]
    largest = pool.owned.max()
    steps = np.diff(pool.jobs)
    up, down = steps > 0, steps < 0
    soon, control = soon_after_an_end(pool.times[1:][up], steps[up], pool.times[1:][down])
    return {
        "burst_pct": round(float(100 * sums.max() / largest), 4) if largest else None,
        "soon_pct": soon,
        "soon_control_pct": control,
    }


def _read(path: Path) -> _Pool | None:
    """Read a pool's minutes; None if the header shows that the file has another content."""
    rows: list[tuple[float, ...]] = []
    with open_table(path) as table:
        if "time" not in table.header:
            return None
        at = columns_of(path, table.header, COLUMNS)
        for row in table.rows:
            try:
                if len(row.cells) != len(table.header):
                    raise BadCellError("time", f"the row has {len(row.cells)} cells", "fix it", "")
                time = _time(row.cells[at["time"]])
                if rows and time <= rows[-1][0]:
                    raise BadCellError("time", "times must ascend", "sort the rows by time", "")
                counted = (
                    number(row.cells, name, at[name], zero=True, negative="write 0 or more")
                    for name in COUNTED
                )
                rows.append((time, *counted))
            except BadCellError as bad:
                raise bad_row(path, row, bad) from None
    if not rows:
        raise UserError(f"{path}: no minute in it; remove the file, or fetch it again")
    return _Pool(*np.array(rows).T)


def _time(text: str) -> float:
    try:
        time = seconds(text)
    except ValueError:
        time = None
    if time is None:
        raise BadCellError("time", f"{shown(text)} is not a time", "write YYYY-MM-DD HH:MM:SS", "")
    return time
