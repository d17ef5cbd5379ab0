"""Read cutoffs (latest starts) from a schedule."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from replay.logs.read import BadCellError, columns_of, number, open_table, shown, take_rows
from replay.logs.trace import Trace
from sia.console.errors import UserError

COLUMNS = ("job_id", "start")

SUBMISSION = "give the jobs.csv of a schedule of the same log"


def read_cutoffs(path: Path, trace: Trace, known: Collection[str]) -> dict[str, float]:
    """Return the start (seconds) of each job of `trace` in a `jobs.csv`, by job ID.

    `known` are the IDs of all jobs of the log. Raises UserError for an unknown or duplicate job, a
    start before the submission, or a file without a job of `trace`.
    """
    starts: dict[str, float] = {}
    submits = {arrival.job.id: arrival.job.submit for arrival in trace.arrivals}
    with open_table(path) as table:
        at = columns_of(path, table.header, COLUMNS)

        def take(cells: Sequence[str]) -> None:
            name = cells[at["job_id"]]
            start = number(cells, "start", at["start"], zero=True)
            if name not in known:
                _refuse("job_id", f"{shown(name)} is not a job of the log", SUBMISSION)
            if name in starts:
                _refuse("job_id", f"duplicate {shown(name)}", "remove one of the rows")
            if start < submits.get(name, 0.0):
                words = f"{shown(name)} starts at {start:g} s, before its submission at "
                _refuse("start", f"{words}{submits[name]:g} s", SUBMISSION)
            starts[name] = start

        take_rows(path, table, take)
    return _selected(path, starts, submits)


def _refuse(column: str, problem: str, fix: str) -> None:
    raise BadCellError(column, problem, fix, problem)


def _selected(
    path: Path, starts: Mapping[str, float], submits: Mapping[str, float]
) -> dict[str, float]:
    """Return the starts of jobs in `submits`. Raises UserError if there are none."""
    selected = {name: start for name, start in starts.items() if name in submits}
    if not selected:
        raise UserError(
            f"{path}: contains none of the {len(submits):,} selected jobs; {SUBMISSION}"
        )
    return selected
