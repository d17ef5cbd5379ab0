"""Write results atomically: write into a temporary folder, then rename."""

from __future__ import annotations

import csv
import filecmp
import gzip
import os
import shutil
import signal
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from io import StringIO, TextIOWrapper
from itertools import chain, islice
from pathlib import Path
from typing import Any, TextIO

import msgspec

from replay.deadlines.rewards import DEADLINES, HEADER, deadline_rows
from replay.logs.parquet import duckdb_for
from replay.logs.regimes import regimes_text
from replay.logs.trace import KNOWN, REQUIRED, WISHES, PoolTable, Trace
from replay.run.schedule import Schedule, Segment, nodes_text
from sia.console.errors import UserError
from sia.model import Job
from sia.state.steps import steps_text

UNSAID = {name: getattr(Job("", "", 0.0, 1), name) for name in WISHES}
"""The default of each field in `WISHES`."""

SEGMENTS, PREDICTIONS = "segments.csv", "predictions.csv"

TABLES = {
    "profiling": ("job_id", "start", "end", "gpus"),
    "capacity": ("at", "profiling", "guaranteed", "spot"),
    "late_turns": ("job_id", "pool", "turn", "start", "in_the_way", "behind"),
}
"""Columns of the tables that policies keep (`sia.contract.proposals.Record`), by table name."""

RESULTS = {
    "jobs.csv", "loans.csv", DEADLINES, SEGMENTS, PREDICTIONS, "trace.csv",
    *(f"{name}.csv" for name in TABLES),
}  # fmt: skip
"""Files in a policy's results folder. A folder that contains other files is not replaced."""

ROWS_AT_ONCE = 1000
"""Rows formatted in one call: a call for each row would take a quarter of the time."""


@contextmanager
def whole_folder(
    out: Path,
    inputs: Sequence[Path] = (),
    stale: Sequence[str] = (),
    planned: Sequence[str] = (),
    *,
    replace: bool = True,
) -> Iterator[Path]:
    """Yield a temporary folder; move all of its entries into `out` when the block ends.

    Either all entries appear in `out` or none. They replace earlier results of the same names, and
    the earlier results named in `stale` are removed. If the block fails, nothing is changed.

    Raises UserError if `out` cannot be written, or if a result would replace one of the `inputs` or
    a file that is not a result. For names in `planned` (folders end in a slash) this is checked
    before the block. Without `replace`, an existing file must have the same bytes as the new one.
    """
    if str(out) == "." or (out.exists() and not out.is_dir()):
        raise UserError(f"{out}: not a folder for results; give --out a folder of its own")
    for name in planned:
        _refuse_to_replace(out / name, inputs, folder=name.endswith("/"))
    made = None
    try:
        if not out.exists():
            made = next(p for p in (*reversed(out.parents), out) if not p.exists())
            out.mkdir(parents=True)
        aside = out / f".partial-{os.getpid()}"
        aside.mkdir()
    except OSError as error:
        raise UserError(
            f"{out}: cannot be written ({error.strerror}); give --out a writable folder"
        ) from None
    done = False
    try:
        new, old = aside / "new", aside / "old"
        new.mkdir()
        old.mkdir()
        yield new
        removed = [out / name for name in stale if (out / name).exists() and _is_result(out / name)]
        for entry in sorted(new.iterdir()):
            _refuse_to_replace(out / entry.name, inputs, folder=entry.is_dir())
            if not replace:
                _require_equal(out / entry.name, entry)
        _swap(out, new, old, removed)
        done = True
    except OSError as error:
        where = error.filename or out
        raise UserError(
            f"{where}: cannot be written ({error.strerror}); fix this and repeat the command"
        ) from None
    finally:
        shutil.rmtree(aside, ignore_errors=True)
        if made is not None and not done:
            shutil.rmtree(made, ignore_errors=True)


def _refuse_to_replace(place: Path, inputs: Sequence[Path], *, folder: bool) -> None:
    """Raise UserError if a result (a file or folder) must not replace what is at `place`."""
    if not place.exists():
        return
    for given in inputs:
        if given.exists() and (place.samefile(given) or place.resolve() in given.resolve().parents):
            raise UserError(f"{given}: would be replaced by a result; change --out")
    if place.is_dir() != folder or not _is_result(place):
        raise UserError(f"{place}: not an earlier result, but would be replaced; change --out")


def _require_equal(place: Path, entry: Path) -> None:
    """Delete the new `entry` if the file at `place` is equal, else raise UserError."""
    if not place.exists():
        return
    if not filecmp.cmp(place, entry, shallow=False):
        raise UserError(f"{place}: already exists with other contents; remove it or change --out")
    entry.unlink()


def _is_result(place: Path) -> bool:
    return place.is_file() or {path.name for path in place.iterdir()} <= RESULTS


def _swap(out: Path, new: Path, old: Path, removed: Sequence[Path]) -> None:
    """Move the entries of `new` into `out` and replaced ones into `old`; undo if a move fails."""
    moves = [(place, old / place.name) for place in removed]
    for entry in sorted(new.iterdir()):
        place = out / entry.name
        if place.exists() and place not in removed:
            moves.append((place, old / entry.name))
        moves.append((entry, place))
    signals = {signal.SIGINT, signal.SIGTERM}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)  # an interruption would leave half the moves
    undo: list[tuple[Path, Path]] = []
    try:
        for here, there in moves:
            here.rename(there)
            undo.append((there, here))
    except OSError:
        for there, here in reversed(undo):
            there.rename(here)
        raise
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)


def write_rows(path: Path, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Write CSV. Floats are written with enough digits to be read back exactly."""
    left = chain([header], rows)
    with _open_text(path) as file:
        while some := list(islice(left, ROWS_AT_ONCE)):
            file.write(_lines(some))


def _lines(rows: Sequence[Sequence[Any]]) -> str:
    """Return CSV whose rows end with a line feed.

    With a line feed as line terminator, the csv module would not quote a carriage return in a cell.
    """
    text = _csv(rows)
    if text.count("\r") == len(rows):
        return text.replace("\r\n", "\n")
    return "".join(_csv([row])[:-2] + "\n" for row in rows)


def _csv(rows: Iterable[Sequence[Any]]) -> str:
    text = StringIO(newline="")
    csv.writer(text, lineterminator="\r\n").writerows(rows)
    return text.getvalue()


@contextmanager
def _open_text(path: Path) -> Iterator[TextIO]:
    if path.suffix != ".gz":
        with path.open("w", newline="", encoding="utf-8") as file:
            yield file
        return
    # Without name and time in the gzip header, the same rows give the same bytes.
    with (
        path.open("wb") as raw,
        gzip.GzipFile("", "wb", fileobj=raw, mtime=0) as packed,
        TextIOWrapper(packed, newline="", encoding="utf-8") as file,
    ):
        yield file


def write_json(path: Path, value: Any) -> None:
    """Write indented JSON; the same value gives the same bytes."""
    text = msgspec.json.format(msgspec.json.encode(value), indent=1)
    path.write_bytes(text + b"\n")


def write_schedule(folder: Path, trace: Trace, schedule: Schedule) -> None:
    """Write `jobs.csv`, `loans.csv` and `deadlines.csv`.

    Also write `segments.csv` if jobs are preempted or resized, and `predictions.csv` if there are
    predicted ends.
    """
    folder.mkdir()
    rows = []
    places = schedule.nodes or [()] * len(trace.arrivals)
    for (job, _), start, end, spare, nodes in zip(
        trace.arrivals, schedule.starts, schedule.ends, schedule.spare, places, strict=True
    ):
        if start is not None and end is not None:
            stream = "spare" if spare else "dedicated"
            rows.append(
                (job.id, job.pool, job.submit, job.width, start, end, stream, nodes_text(nodes))
            )
    header = ("job_id", "pool", "submit", "width", "start", "end", "stream", "nodes")
    write_rows(folder / "jobs.csv", header, rows)
    ended = {row[0] for row in rows}  # omit loans and segments of jobs that never ended
    loans = [loan for loan in schedule.loans if loan.job_id in ended]
    write_rows(folder / "loans.csv", ("job_id", "donor", "gpus", "start", "end"), loans)
    write_rows(folder / DEADLINES, HEADER, deadline_rows(trace, schedule.ends, schedule.promises))
    for table, rows_of in schedule.tables.items():
        write_rows(folder / f"{table}.csv", TABLES[table], rows_of)
    if schedule.segments is not None:
        write_segments(
            folder / SEGMENTS, [each for each in schedule.segments if each.job_id in ended]
        )
    if schedule.predictions is not None:
        _write_predictions(folder / PREDICTIONS, trace, schedule)


def _write_predictions(path: Path, trace: Trace, schedule: Schedule) -> None:
    """Write the predicted and the actual end of each job; empty for never."""
    assert schedule.predictions is not None, "the caller checks this"
    rows = [
        (job.id, job.submit, _or_empty(told), _or_empty(end))
        for (job, _), told, end in zip(
            trace.arrivals, schedule.predictions, schedule.ends, strict=True
        )
        if end is not None or told is not None
    ]
    write_rows(path, ("job_id", "submit", "pred_end", "end"), rows)


def _or_empty(time: float | None) -> float | str:
    return "" if time is None else time


def write_segments(path: Path, segments: Sequence[Segment]) -> None:
    """Write when and with which width jobs ran, and the GPU-seconds lost at each end."""
    rows = [(*segment[:4], nodes_text(segment.nodes), segment.lost) for segment in segments]
    write_rows(path, ("job_id", "start", "end", "width", "nodes", "lost"), rows)


def write_trace(path: Path, trace: Trace) -> None:
    """Write a canonical job log with its extra columns; the suffix selects CSV, .gz or .parquet."""
    wishes = [
        name
        for name, unsaid in UNSAID.items()
        if any(getattr(job, name) != unsaid for job, _ in trace.arrivals)
    ]
    header = (*REQUIRED, *KNOWN, *wishes, *trace.columns)
    blank = ("",) * len(trace.columns)
    rows = (
        (
            *(j.id, j.pool, j.submit, j.width, d, j.user, j.name),
            *(_cell(j, name) for name in wishes),
            *trace.extras.get(j.id, blank),
        )
        for j, d in trace.arrivals
    )
    if path.suffix == ".parquet":
        _write_parquet(path, header, rows)
    else:
        write_rows(path, header, rows)


def _cell(job: Job, wish: str) -> object:
    """Return the cell of a column in `WISHES`; it is empty if the job has the default."""
    value = getattr(job, wish)
    if wish == "demand":
        return ";".join(f"{gpus}:{seconds!r}" for gpus, seconds in job.demand)
    if wish == "soft":
        return steps_text(job.soft)
    if wish == "regimes":
        return regimes_text(job.regimes)
    return "" if value == UNSAID[wish] else value


def _write_parquet(path: Path, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    duckdb = duckdb_for(path, "writing")
    text = path.with_suffix(".partial.csv")
    try:
        write_rows(text, header, rows)
        types = {"submit": "DOUBLE", "width": "BIGINT", "duration": "DOUBLE"}
        columns = {name: types.get(name, "VARCHAR") for name in header}
        table = duckdb.connect().read_csv(
            str(text),
            header=True,
            columns=columns,
            auto_detect=False,
            delimiter=",",
            quotechar='"',
            escapechar='"',
        )
        table.write_parquet(str(path))
    finally:
        text.unlink(missing_ok=True)


def write_pools(path: Path, table: PoolTable) -> None:
    """Write a pools file; it has column `from` only if a quota changes."""
    varies = bool(table.changes)
    named = any(pool.group or not pool.share for pool in table.pools)
    header = ["pool", "quota"]
    header += ["from"] if varies else []
    header += ["group", "share"] if named else []
    blank = ("",) * len(table.columns)
    rows = []
    steps = table.quotas()
    for pool in table.pools:
        for time, quota in steps[pool.name]:
            begin = max(0.0, time)
            row: list[Any] = [pool.name, quota]
            row += [begin] if varies else []
            row += [pool.group, "yes" if pool.share else "no"] if named else []
            rows.append([*row, *table.extras.get((pool.name, begin), blank)])
    write_rows(path, [*header, *table.columns], rows)
