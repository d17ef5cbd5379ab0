"""Read canonical job logs and pools files: CSV, gzipped CSV or Parquet. Every row is validated.

A reader rejects a file with an error that names file, row, column and fix. On request it skips
invalid rows instead and counts them by reason.
"""

from __future__ import annotations

import csv
import glob
import gzip
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from io import TextIOWrapper
from itertools import chain
from math import isfinite
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from msgspec.structs import replace

from replay.logs.limits import MAX_LINE, MIN_DURATION
from replay.logs.parquet import duckdb_for
from replay.logs.progress import parse_progress
from replay.logs.regimes import check_whole, notes_on_regimes, parse_mode, parse_regimes
from replay.logs.trace import CHECKPOINT, KNOWN, PROGRESS, REQUIRED, WISHES, PoolTable, Trace
from sia.console.errors import OtherFormatError, UserError
from sia.core.playout import Arrival
from sia.events import PoolChanged
from sia.limits import MAX_GROUP, MAX_JOB_BUDGET, MAX_QUOTA, MAX_TIME
from sia.model import STOP_WORDS, Job, Pool, Regime, StopCost
from sia.state.bounds import JobFieldError, check_fields
from sia.state.checkpoint import parse_checkpoint
from sia.state.steps import parse_steps
from sia.state.strl import quickest
from sia.wording import some

GZIP_MAGIC = b"\x1f\x8b"
PARQUET_MAGIC = b"PAR1"
CELLS = "wrong number of cells"
YES = ("", "yes", "true", "1")
NO = ("no", "false", "0")


class BadCellError(Exception):
    """A row is invalid: the column, the problem, the fix, and the reason to count it under."""

    def __init__(self, column: str, problem: str, fix: str, reason: str) -> None:
        """`problem` and `fix` are texts for people; `reason` groups rows with the same problem."""
        super().__init__(problem)
        self.column, self.problem, self.fix, self.reason = column, problem, fix, reason


class LogRow(NamedTuple):
    """A row's number in its file (the line number for text) and its cells as text."""

    number: int
    cells: Sequence[str]


def bad_row(path: Path, row: LogRow, bad: BadCellError, *, skip: bool = False) -> UserError:
    """Return a one-line error with the location of a bad cell and the fix.

    With `skip` the fix mentions the option that skips such rows.
    """
    kind = OtherFormatError if bad.reason == CELLS else UserError
    fix = bad.fix
    if skip:
        otherwise = " Or" if fix.endswith("?") else ", or"
        fix += f"{otherwise} skip such rows with --skip-invalid"
    return kind(f"{path}: row {row.number}, column {bad.column}: {bad.problem}; {fix}")


class LogTable(NamedTuple):
    """A file's header, and an iterator that reads its rows."""

    header: list[str]
    rows: Iterator[LogRow]


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn errors of reading `path` into a UserError of one line."""
    try:
        yield
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; check the path") from None
    except (IsADirectoryError, PermissionError) as error:
        raise UserError(
            f"{path}: cannot be read ({error.strerror}); give a readable file"
        ) from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UserError(
            f"{path}: the compressed file is truncated or damaged ({error}); download it again"
        ) from None
    except UnicodeDecodeError:
        raise UserError(
            f"{path}: row {_first_bad_row(path)}: the text is not UTF-8; save "
            "the CSV file as UTF-8, or use a Parquet file"
        ) from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error})") from None


def _first_bad_row(path: Path) -> int:
    """Return the number of the first line that is not UTF-8."""
    with path.open("rb") as file:
        zipped = file.read(2) == GZIP_MAGIC
        file.seek(0)
        lines: BinaryIO = gzip.GzipFile(fileobj=file) if zipped else file  # type: ignore[assignment]
        number = 0
        try:
            for line in lines:
                number += 1
                line.decode()
        except (UnicodeDecodeError, EOFError, OSError, zlib.error):
            pass
    return number


@contextmanager
def open_table(path: Path, *layouts: Sequence[str]) -> Iterator[LogTable]:
    """Open CSV, gzipped CSV or Parquet, recognised by content, not by name. Raises UserError.

    If `layouts` are given, the first layout names the columns of a CSV file without a header. The
    first row counts as a header if it contains at least two names of one layout.
    """
    with reading(path), path.open("rb") as file:
        magic = file.read(4)
        file.seek(0)
        if magic == PARQUET_MAGIC:
            yield _parquet(path)
        else:
            yield from _open_csv(path, file, layouts)


def _open_csv(path: Path, file: BinaryIO, layouts: Sequence[Sequence[str]]) -> Iterator[LogTable]:
    with _text(file) as text:
        rows = _csv_rows(path, text)
        first = next(rows, None)
        if first is None:
            fix = "give a file with rows" if layouts else "the first line must name the columns"
            raise UserError(f"{path}: the file is empty; {fix}")
        header = [name.strip() for name in first.cells]
        if not layouts or any(len(set(names).intersection(header)) > 1 for names in layouts):
            yield LogTable(header, rows)
        else:
            yield LogTable(list(layouts[0]), chain([first], rows))


@contextmanager
def open_lines(path: Path) -> Iterator[Iterator[str]]:
    """Open text, gzipped or not, and iterate over its lines. Raises UserError.

    Bytes that are not UTF-8 are replaced, because old logs have comments in other encodings. A
    number that contains such bytes fails to parse later.
    """
    with reading(path), path.open("rb") as file, _text(file, errors="replace") as text:
        yield _lines(path, text)


def _text(file: BinaryIO, errors: str = "strict") -> TextIOWrapper:
    """Wrap a file, gzipped or not, as text."""
    zipped = file.read(2) == GZIP_MAGIC
    file.seek(0)
    binary = gzip.GzipFile(fileobj=file) if zipped else file
    return TextIOWrapper(binary, encoding="utf-8-sig", errors=errors, newline="")


def _csv_rows(path: Path, text: TextIOWrapper) -> Iterator[LogRow]:
    reader = csv.reader(_lines(path, text), strict=True)
    first = 1  # first line of the current row: an unclosed quote can span many lines
    try:
        for cells in reader:
            line = reader.line_num
            if cells:
                yield LogRow(line, cells)
            first = line + 1
    except csv.Error as error:
        raise UserError(
            f"{path}: row {first}: invalid CSV ({error}); fix or remove the row"
        ) from None


def _lines(path: Path, text: TextIOWrapper) -> Iterator[str]:
    number = 0
    while line := text.readline(MAX_LINE):
        number += 1
        if len(line) == MAX_LINE and not line.endswith("\n"):
            raise UserError(
                f"{path}: row {number}: the line exceeds {MAX_LINE} characters; give a job log"
            )
        yield line


def _parquet(path: Path) -> LogTable:
    duckdb = duckdb_for(path, "reading")

    @contextmanager
    def querying() -> Iterator[None]:
        try:
            yield
        except duckdb.Error as error:
            problem = str(error).splitlines()[0]
            raise UserError(
                f"{path}: the Parquet file cannot be read ({problem}); write it again"
            ) from None

    query = "SELECT COLUMNS(*)::VARCHAR FROM read_parquet(?)"  # all columns as text
    with querying():
        result = duckdb.connect().execute(query, [glob.escape(str(path))])
    header = [column[0] for column in result.description or ()]

    def rows() -> Iterator[LogRow]:
        number = 0
        while True:
            with querying():
                chunk = result.fetchmany(10_000)
            if not chunk:
                return
            for cells in chunk:
                number += 1
                yield LogRow(number, [cell or "" for cell in cells])

    return LogTable(header, rows())


def columns_of(path: Path, header: Sequence[str], required: Iterable[str]) -> dict[str, int]:
    """Return the index of each column. Raises UserError if one is missing or duplicated."""
    missing = [name for name in required if name not in header]
    if missing:
        there = some([shown(name) for name in header])
        raise OtherFormatError(
            f"{path}: row 1: column {', '.join(missing)} is missing, found {there}; the "
            f"header must name {','.join(required)}, separated by commas, in lower case"
        )
    twice = [name for name, count in Counter(header).items() if count > 1 and name]
    if twice:
        raise UserError(f"{path}: row 1: duplicate column {twice[0]}; remove one")
    return {name: i for i, name in enumerate(header)}


def complete(cells: Sequence[str], columns: int, first: str) -> None:
    """Check that a row has `columns` cells. Raises BadCellError for column `first`."""
    if len(cells) != columns:
        problem = f"the row has {len(cells)} cells, but the table has {columns} columns"
        raise BadCellError(first, problem, "write one cell for each column", CELLS)


def take_rows(path: Path, table: LogTable, take: Callable[[Sequence[str]], object]) -> None:
    """Call `take` with each row's cells. Raises UserError, also for a BadCellError of `take`."""
    for row in table.rows:
        try:
            complete(row.cells, len(table.header), table.header[0])
            take(row.cells)
        except BadCellError as bad:
            raise bad_row(path, row, bad) from None


SHIFT = "shift all times so that the first is at least 0"
COSTS = "write seconds of at least 0, restart, never, or leave it empty"


def number(
    cells: Sequence[str],
    column: str,
    at: int,
    *,
    zero: bool,
    negative: str = SHIFT,
    unit: str = "seconds",
) -> float:
    """Parse a finite number of at least 0, or above 0 unless `zero`. Raises BadCellError.

    `negative` is the fix shown for a negative number, `unit` the unit named in fixes.
    """
    text = cells[at]
    try:
        value = float(_plain(text))
    except ValueError:
        raise BadCellError(
            column, f"{shown(text)} is not a number", f"write {unit}", f"{column} is no number"
        ) from None
    if not isfinite(value):
        raise BadCellError(
            column, f"{shown(text)} is not finite", f"write {unit}", f"{column} is not finite"
        )
    if value >= MAX_TIME:
        large = f"{column} is too large"
        raise BadCellError(
            column, f"{shown(text)} is too large", f"write a number below {MAX_TIME:g}", large
        )
    if value < 0:
        raise BadCellError(
            column,
            f"{shown(text)} is negative",
            negative if zero else f"write {unit} above 0",
            f"{column} is negative",
        )
    if value < MIN_DURATION and not zero:
        fix = f"write {unit} above 0, at least {MIN_DURATION:g}"
        raise BadCellError(column, f"{shown(text)} is too small", fix, f"{column} is zero")
    return value


def whole(cells: Sequence[str], column: str, at: int, *, least: int) -> int:
    """Parse a whole number from `least` to MAX_QUOTA. Raises BadCellError."""
    text = cells[at]
    fix = f"write a whole number from {least} to {MAX_QUOTA}"
    try:
        value = float(_plain(text))
    except ValueError:
        raise BadCellError(
            column, f"{shown(text)} is not a number", fix, f"{column} is no number"
        ) from None
    if not least <= value <= MAX_QUOTA or value != int(value):
        raise BadCellError(
            column,
            f"{shown(text)} is not allowed",
            fix,
            f"{column} is no whole number from {least} up",
        )
    return int(value)


def _plain(text: str) -> str:
    """Reject underscores, because Python reads 1_0 as 10. Raises ValueError."""
    if "_" in text:
        raise ValueError(text)
    return text


def shown(text: str) -> str:
    """Return a cell as an error message shows it: quoted, shortened, in ASCII."""
    return ascii(text if len(text) <= 40 else text[:37] + "...")


def read_trace(path: Path, *, skip_invalid: bool = False) -> Trace:
    """Read a canonical job log. Raises UserError.

    With `skip_invalid`, the reader skips invalid rows and counts them in `Trace.dropped`.
    """
    with open_table(path) as table:
        at = _columns_of_log(path, table.header)
        parse = _JobParser(at, len(table.header))
        extra_columns = tuple(
            name for name in table.header if name and name not in REQUIRED + KNOWN + WISHES
        )
        spots = [at[name] for name in extra_columns]
        arrivals: list[Arrival] = []
        extras: dict[str, tuple[str, ...]] = {}
        dropped: Counter[str] = Counter()
        seen: set[str] = set()
        for row in table.rows:
            try:
                arrival = parse(row.cells)
                job_id = arrival.job.id
                if job_id in seen:
                    raise BadCellError(
                        "job_id",
                        f"duplicate {shown(job_id)}",
                        "give every job a unique ID",
                        "job_id stands twice",
                    )
            except BadCellError as bad:
                if not skip_invalid:
                    raise bad_row(path, row, bad, skip=True) from None
                dropped[f"invalid: {bad.reason}"] += 1
                continue
            seen.add(job_id)
            arrivals.append(arrival)
            if spots:
                extras[job_id] = tuple([row.cells[i] for i in spots])
    if not arrivals:
        raise UserError(f"{path}: the log has no valid job; add rows, or fix those skipped")
    notes = []
    submits = [arrival.job.submit for arrival in arrivals]
    if submits != sorted(submits):
        arrivals.sort(key=lambda arrival: arrival.job.submit)
        notes.append("rows were not in order of submission and were sorted")
    if "regimes" in at:
        notes.extend(notes_on_regimes(arrivals))
    return Trace(arrivals, extra_columns, extras, dropped, notes)


def _columns_of_log(path: Path, header: Sequence[str]) -> dict[str, int]:
    try:
        return columns_of(path, header, REQUIRED)
    except OtherFormatError as error:
        raise OtherFormatError(
            f"{error.message}; to convert a published log, use sia trace convert --format"
        ) from None


class _JobParser:
    """Turn the cells of a row into an arrival.

    Valid plain rows take a fast path; all others are parsed again with full checks.
    """

    def __init__(self, at: dict[str, int], width: int) -> None:
        self._cells = width
        self._required = [at[name] for name in REQUIRED]
        self._user, self._name = (at.get(name, -1) for name in KNOWN)
        self._wishes = {name: at[name] for name in (*WISHES, CHECKPOINT, PROGRESS) if name in at}

    def __call__(self, cells: Sequence[str]) -> Arrival:
        job_id, _, submit, width, duration = self._required
        try:
            if len(cells) == self._cells:
                begin, gpus = float(cells[submit]), int(cells[width])
                seconds = float(cells[duration])
                if (
                    0 <= begin < MAX_TIME
                    and 0 < gpus <= MAX_QUOTA
                    and MIN_DURATION <= seconds < MAX_TIME
                    and cells[job_id]
                    and "_" not in cells[submit] + cells[width] + cells[duration]
                ):
                    return self._arrival(cells, begin, gpus, seconds)
        except ValueError:
            pass
        return self._validated(cells)

    def _validated(self, cells: Sequence[str]) -> Arrival:
        job_id, _, submit, width, duration = self._required
        complete(cells, self._cells, "job_id")
        if not cells[job_id]:
            raise BadCellError("job_id", "empty", "give the job an ID", "job_id is empty")
        return self._arrival(
            cells,
            number(cells, "submit", submit, zero=True),
            whole(cells, "width", width, least=1),
            number(cells, "duration", duration, zero=False),
        )

    def _arrival(self, cells: Sequence[str], begin: float, gpus: int, seconds: float) -> Arrival:
        user = cells[self._user] if self._user >= 0 else ""
        name = cells[self._name] if self._name >= 0 else ""
        job = Job(cells[self._required[0]], cells[self._required[1]], begin, gpus, user, name)
        if self._wishes:
            given = {key: cells[at] for key, at in self._wishes.items() if cells[at].strip()}
            if given:
                job = _with_wishes(job, given)
                if job.regimes:
                    _checked("regimes", check_whole, job.regimes, seconds)
        return Arrival(job, seconds)


def _with_wishes(job: Job, given: dict[str, str]) -> Job:
    """Set the fields of a job from its cells in the columns `WISHES`. Raises BadCellError."""
    for column, parse in _CHECKED.items():
        _checked(column, parse, given.pop(column, ""))
    wished = replace(job, **{name: _WISHES[name](text, name) for name, text in given.items()})
    try:
        check_fields(wished)
    except JobFieldError as error:
        why = f"{error.field} is not allowed"
        raise BadCellError(error.field, error.problem, error.fix, why) from None
    if wished.strl and wished.estimate is None:
        return replace(wished, estimate=quickest(wished.strl))
    return wished


def _checked(column: str, parse: Callable[..., Any], *given: object) -> Any:
    """Call a parser, and turn its ValueError, a problem and a fix, into a BadCellError."""
    try:
        return parse(*given)
    except ValueError as error:
        problem, _, fix = str(error).partition("; ")
        raise BadCellError(column, problem, fix, f"{column} is not allowed") from None


def _width(text: str, column: str) -> int:
    return whole([text], column, 0, least=1)


def _seconds(text: str, column: str) -> float:
    return number([text], column, 0, zero=False)


def _moment(text: str, column: str) -> float:
    """Parse the time of a deadline, which may be negative; such a deadline is missed."""
    sign, text = (-1.0, text.strip()[1:]) if text.strip().startswith("-") else (1.0, text)
    return sign * number([text], column, 0, zero=True)


def _amount(text: str, column: str) -> float:
    return number([text], column, 0, zero=True, negative="write 0 or more", unit="a number")


def _budget(text: str, column: str) -> float:
    bounds = f"write a number from {1 / MAX_JOB_BUDGET:g} to {MAX_JOB_BUDGET:g}"
    return number([text], column, 0, zero=True, negative=bounds, unit="a number")


def _word(text: str, _: str) -> str:
    return text.strip()


def _mode(text: str, column: str) -> str:
    found: str = _checked(column, parse_mode, text)
    return found


def _regimes(text: str, column: str) -> tuple[Regime, ...]:
    found: tuple[Regime, ...] = _checked(column, parse_regimes, text)
    return found


def _cost(text: str, column: str) -> StopCost:
    """Parse the cost of a stop: seconds, `restart` or `never`."""
    word = STOP_WORDS.get(text.strip())
    if word is not None:
        return word
    try:
        return number([text], column, 0, zero=True, negative=COSTS)
    except BadCellError as bad:
        raise BadCellError(column, bad.problem, COSTS, bad.reason) from None


def _steps(text: str, column: str) -> tuple[tuple[float, float], ...]:
    try:
        return parse_steps(text)
    except ValueError as error:
        problem, _, fix = str(error).partition("; ")
        raise BadCellError(column, problem, fix, f"{column} is not allowed") from None


def _demand(text: str, column: str) -> tuple[tuple[int, float], ...]:
    """Parse `1:3600;2:1900` as points (GPUs, seconds)."""
    points = (part.partition(":") for part in text.split(";"))
    return tuple((_width(gpus, column), _seconds(seconds, column)) for gpus, _, seconds in points)


_CHECKED: dict[str, Callable[[str], object]] = {
    CHECKPOINT: parse_checkpoint,
    PROGRESS: parse_progress,
}
"""Functions that check the cells of extra columns, by column."""

_WISHES: dict[str, Callable[[str, str], object]] = {
    "min_width": _width, "max_width": _width, "demand": _demand, "deadline": _moment,
    "soft": _steps,
    "value": _amount, "budget": _budget, "estimate": _seconds, "prefers": _word,
    "slowdown": _amount, "strl": _word, "preemptible": _cost, "min_run_time": _seconds,
    "mode": _mode, "model": _word, "regimes": _regimes, "sched_class": _word,
}  # fmt: skip
"""Functions that parse the cells of the columns in `WISHES`, by column."""


def read_pools(path: Path) -> PoolTable:
    """Read a pools file: pool,quota[,from][,group][,share][,…]. Raises UserError."""
    steps: dict[str, list[tuple[float, int]]] = {}
    pools: dict[str, Pool] = {}
    extras: dict[tuple[str, float], tuple[str, ...]] = {}
    with open_table(path) as table:
        at = columns_of(path, table.header, ("pool", "quota"))
        extra_columns = tuple(
            n for n in table.header if n not in ("", "pool", "quota", "from", "group", "share")
        )
        for row in table.rows:
            try:
                pool, begin = _pool(row.cells, at, len(table.header))
                if pool.name in pools and (begin is None or begin in dict(steps[pool.name])):
                    raise BadCellError(
                        "pool",
                        f"duplicate {shown(pool.name)}",
                        "give each row of a pool a different time in column from",
                        "",
                    )
                before = pools.get(pool.name, pool)
                if (before.group, before.share) != (pool.group, pool.share):
                    raise BadCellError(
                        "group",
                        f"{shown(pool.name)} changes its group or share",
                        "give all rows of a pool the same group and share; only quotas may change",
                        "",
                    )
            except BadCellError as bad:
                raise bad_row(path, row, bad) from None
            pools[pool.name] = pool
            steps.setdefault(pool.name, []).append((begin or 0.0, pool.quota))
            extras[pool.name, begin or 0.0] = tuple(row.cells[at[name]] for name in extra_columns)
    if not pools:
        raise UserError(f"{path}: the file has no pools; write one row per pool: pool,quota")
    changes = []
    for name, rows in steps.items():
        rows.sort()
        first = max((quota for quota in rows if quota[0] <= 0), default=(0.0, 0))
        pools[name] = Pool(name, first[1], pools[name].group, pools[name].share)
        changes += [PoolChanged(time, name, quota) for time, quota in rows if time > 0]
    changes.sort(key=lambda change: (change.time, change.pool))
    most: Counter[tuple[bool, str]] = Counter()
    for name, rows in steps.items():
        own = pools[name]
        most[own.share, own.group if own.share else name] += max(quota for _, quota in rows)
    if max(most.values()) > MAX_GROUP:
        raise UserError(
            f"{path}: column quota: a sharing group has more than {MAX_GROUP} GPUs; "
            "split it with column group"
        )
    return PoolTable(list(pools.values()), changes, extra_columns, extras)


def _pool(cells: Sequence[str], at: dict[str, int], width: int) -> tuple[Pool, float | None]:
    complete(cells, width, "pool")
    name = cells[at["pool"]]
    if not name:
        raise BadCellError("pool", "empty", "name the pool", "")
    share = cells[at["share"]].strip().lower() if "share" in at else ""
    if share not in YES + NO:
        raise BadCellError("share", f"unknown value {shown(share)}", "write yes or no", "")
    begin = None
    if "from" in at and cells[at["from"]]:
        begin = number(cells, "from", at["from"], zero=True)
    quota = whole(cells, "quota", at["quota"], least=0)
    group = cells[at["group"]] if "group" in at else ""
    return Pool(name, quota, group, share not in NO), begin
