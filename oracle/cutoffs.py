"""Cutoffs from any schedule."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from replay.read import columns_of, number, open_table, take_rows

COLUMNS = ("job_id", "start")


def read_cutoffs(path: Path) -> dict[str, float]:
    """The starts (seconds) of a `jobs.csv`, by job. Raises UserError for what it cannot be."""
    starts: dict[str, float] = {}
    with open_table(path) as table:
        at = columns_of(path, table.header, COLUMNS)

        def take(cells: Sequence[str]) -> None:
            starts[cells[at["job_id"]]] = number(cells, "start", at["start"], zero=True)

        take_rows(path, table, take)
    return starts
