"""Gavel's and Shockwave's logs (tab-separated, without a header), and Gavel's throughput tables.

A log has one row per job: type such as `LM (batch size 10)`, command, folder, name of the option
for steps, whether it needs data, steps, GPUs, mode, weight, SLO, duration, submission in seconds.
Older logs lack the duration, or the mode and the duration. The duration is not used, because it
was computed from another throughput table.

The second file has the speed of each type: Gavel's JSON, of which only the rows of jobs that run
alone on V100s are read, or a table `model,config,width,steps_per_second`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from math import ceil, fsum, log2
from pathlib import Path
from typing import Any

import msgspec

from replay.logs.importers.gavel_models import SAMPLES, JobModel, batch_runs
from replay.logs.importers.selection import ImportedJobs
from replay.logs.limits import MAX_JSON
from replay.logs.read import (
    BadCellError,
    LogRow,
    bad_row,
    columns_of,
    number,
    open_lines,
    open_table,
    shown,
    take_rows,
    whole,
)
from replay.logs.regimes import parse_mode
from replay.logs.trace import PoolTable, Trace
from sia.console.errors import OtherFormatError, UserError
from sia.limits import MAX_JOB_BUDGET
from sia.model import Job, Regime
from sia.wording import did_you_mean

TYPE = re.compile(r"(?P<model>[^()]+) \(batch size (?P<batch>[0-9]{1,9})\)")
KEY = re.compile(r"\('(?P<type>[^']*)', (?P<width>[0-9]{1,6})\)")
"""A key of Gavel's JSON: `('LM (batch size 10)', 1)`."""

GPU = "v100"

COLUMNS = (
    "type", "command", "folder", "option", "data", "steps", "width", "mode", "weight", "slo",
    "duration", "submit",
)  # fmt: skip
OLDER = {len(COLUMNS) - 1: ("duration",), len(COLUMNS) - 2: ("mode", "duration")}
"""The columns that older logs lack, by their number of columns."""

Speeds = Mapping[JobModel, float]
"""Steps a second."""


def read(log: Path, speeds: Path | None) -> tuple[Trace, PoolTable | None]:
    """Return the jobs with their regimes; ids are line numbers from 0. Raises UserError."""
    rows = [*_rows(log)]
    if speeds is None:
        raise UserError(
            f"{log}: how fast its jobs are is missing; give Gavel's throughput table as the second "
            "file, JSON or model,config,width,steps_per_second"
        )
    table = read_speeds(speeds)
    jobs_out = ImportedJobs(log, "type")
    notes: dict[str, None] = {}
    for row in rows:
        try:
            job, duration = _job(row, table, notes)
            jobs_out.add(job, duration)
        except BadCellError as bad:
            raise bad_row(log, row, bad) from None
    jobs_out.notes.extend(notes)
    return jobs_out.trace(), None


def _rows(log: Path) -> Iterator[LogRow]:
    with open_lines(log) as lines:
        for place, line in enumerate(lines, 1):
            cells = line.rstrip("\r\n").split("\t")
            if not line.strip():
                continue
            lacks = OLDER.get(len(cells), () if len(cells) == len(COLUMNS) else None)
            if lacks is None:
                raise OtherFormatError(
                    f"{log}: row {place}: {len(cells)} columns separated by tabs, where logs of "
                    f"Gavel have {len(COLUMNS)}; give such a log"
                )
            given = iter(cells)
            yield LogRow(place, ["" if name in lacks else next(given) for name in COLUMNS])


def _job(row: LogRow, speeds: Speeds, notes: dict[str, None]) -> tuple[Job, float]:
    """Return a job and its duration. Raises BadCellError."""
    at = {name: place for place, name in enumerate(COLUMNS)}
    cells = row.cells
    width = whole(cells, "width", at["width"], least=1)
    kind = _model(cells[at["type"]], width)
    steps = number(cells, "steps", at["steps"], zero=False, unit="steps")
    try:
        mode = parse_mode(cells[at["mode"]]) if cells[at["mode"]].strip() else "static"
    except ValueError as error:
        problem, _, fix = str(error).partition("; ")
        raise BadCellError("mode", problem, fix, "") from None
    epochs = ceil(steps / ceil(SAMPLES[kind.model] / kind.batch))
    regimes = []
    for batch, count in batch_runs(mode, kind, epochs):
        speed = _speed(speeds, kind._replace(batch=batch), notes)
        seconds = SAMPLES[kind.model] / batch / speed
        regimes.append(Regime(str(batch), float(count), seconds, speed))
    submit = number(cells, "submit", at["submit"], zero=True)
    job = Job(
        str(row.number - 1), "all", submit, width,
        mode=mode, model=kind.model, regimes=tuple(regimes), budget=_budget(cells, at["weight"]),
    )  # fmt: skip
    return job, fsum(regime.epochs * regime.seconds for regime in regimes)


def _model(text: str, width: int) -> JobModel:
    found = TYPE.fullmatch(text.strip())
    if found is None or not int(found["batch"]):
        raise BadCellError("type", f"{shown(text)} is no type", "write MODEL (batch size N)", "")
    model = found["model"]
    if model not in SAMPLES:
        close = did_you_mean(model, SAMPLES) or f" The models are {', '.join(SAMPLES)}."
        raise BadCellError("type", f"unknown model {shown(model)}", f"use a known one.{close}", "")
    return JobModel(model, int(found["batch"]), width)


def _budget(cells: Sequence[str], at: int) -> float | None:
    """Return the weight, or None for the usual one."""
    weight = number(cells, "weight", at, zero=True, unit="a weight", negative="write a weight")
    if not 1 / MAX_JOB_BUDGET <= weight <= MAX_JOB_BUDGET:
        bounds = f"write a weight from {1 / MAX_JOB_BUDGET:g} to {MAX_JOB_BUDGET:g}"
        raise BadCellError("weight", f"{weight:g} is not allowed", bounds, "")
    return None if weight == 1 else weight


def _speed(speeds: Speeds, kind: JobModel, notes: dict[str, None]) -> float:
    """Return a job's speed; that of the nearest batch size and width if its own are not listed."""
    exact = speeds.get(kind)
    if exact is not None:
        return exact
    known = [other for other in speeds if other.model == kind.model]
    if not known:
        raise BadCellError(
            "type", f"no speed of {kind.model}", "add its rows to the throughput table", ""
        )
    near = min(
        known,
        key=lambda other: (
            abs(log2(other.width / kind.width)), abs(log2(other.batch / kind.batch)), other
        ),
    )  # fmt: skip
    notes[
        f"the speed of {kind.model} {kind.batch} on {kind.width} GPUs is unknown, so that of "
        f"{near.batch} on {near.width} counts"
    ] = None
    # Assume that the samples per second do not depend on the batch size.
    return speeds[near] * near.batch / kind.batch


def read_speeds(path: Path) -> dict[JobModel, float]:
    """Return the speeds of a throughput table, JSON or CSV, zipped or not. Raises UserError."""
    with open_lines(path) as lines:
        first = next((line for line in lines if line.strip()), "")
        if not first.lstrip().startswith("{"):
            return _table(path)
        text = first + "".join(lines)
    if len(text) > MAX_JSON:
        raise UserError(f"{path}: the file is larger than {MAX_JSON} bytes; give a smaller table")
    try:
        whole_table = msgspec.json.decode(text, type=dict[str, dict[str, dict[str, Any]]])
    except msgspec.DecodeError as error:
        raise UserError(f"{path}: {error}; give Gavel's throughput table") from None
    if GPU not in whole_table:
        raise UserError(
            f"{path}: no rows of {GPU}, only of {', '.join(whole_table) or 'nothing'}; "
            "give Gavel's throughput table"
        )
    found = {}
    for key, row in whole_table[GPU].items():
        parts, speed = KEY.fullmatch(key), row.get("null")
        kind = parts and TYPE.fullmatch(parts["type"])
        if parts is None or not kind or speed == 0:
            continue  # other models have no batch size, and 0 means that it does not fit
        if not isinstance(speed, int | float) or not speed > 0:
            raise UserError(
                f"{path}: {key}: speed {speed!r} is invalid; write steps per second, above 0"
            )
        found[JobModel(kind["model"], int(kind["batch"]), int(parts["width"]))] = float(speed)
    return found


def _table(path: Path) -> dict[JobModel, float]:
    names = ("model", "config", "width", "steps_per_second")
    found: dict[JobModel, float] = {}

    def take(cells: Sequence[str]) -> None:
        batch = whole(cells, "config", at["config"], least=1)
        width = whole(cells, "width", at["width"], least=1)
        speed = number(cells, names[3], at[names[3]], zero=False, unit="steps a second")
        kind = JobModel(cells[at["model"]].strip(), batch, width)
        if kind in found:
            raise BadCellError("config", "a second row of this model", "remove one", "")
        found[kind] = speed

    with open_table(path) as table:
        at = columns_of(path, table.header, names)
        take_rows(path, table, take)
    return found
