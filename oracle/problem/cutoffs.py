"""Cutoffs from any schedule."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from replay.logs.read import BadCellError, columns_of, number, open_table, shown, take_rows
from replay.logs.trace import Trace
from sia.console.errors import UserError

COLUMNS = ("job_id", "start")

SUBMISSION = "give the jobs.csv of a schedule of the same log"


def read_cutoffs(path: Path, trace: Trace, known: Collection[str]) -> dict[str, float]:
    """The starts (seconds) of a `jobs.csv`, of those jobs that are taken, by id.

    `known` are the ids of all jobs of the log. Raises UserError for what no schedule of it says:
    another job, one that stands twice or starts before it is submitted, none at all.
    """
    starts: dict[str, float] = {}
    submits = {arrival.job.id: arrival.job.submit for arrival in trace.arrivals}
    with open_table(path) as table:
        at = columns_of(path, table.header, COLUMNS)

        def take(cells: Sequence[str]) -> None:
            name = cells[at["job_id"]]
            start = number(cells, "start", at["start"], zero=True)
            if name not in known:
                _refuse("job_id", f"{shown(name)} is no job of the log", SUBMISSION)
            if name in starts:
                _refuse("job_id", f"{shown(name)} stands twice", "remove one of the rows")
            if start < submits.get(name, 0.0):
                words = f"{shown(name)} starts at {start:g} s, before its submission at "
                _refuse("start", f"{words}{submits[name]:g} s", SUBMISSION)
            starts[name] = start

        take_rows(path, table, take)
    return _taken(path, starts, submits)


def _refuse(column: str, problem: str, mend: str) -> None:
    raise BadCellError(column, problem, mend, problem)


def _taken(
    path: Path, starts: Mapping[str, float], submits: Mapping[str, float]
) -> dict[str, float]:
    """Those of the jobs that are taken. Raises UserError where there is none."""
    taken = {name: start for name, start in starts.items() if name in submits}
    if not taken:
        raise UserError(f"{path}: names none of the {len(submits):,} jobs taken; {SUBMISSION}")
    return taken
