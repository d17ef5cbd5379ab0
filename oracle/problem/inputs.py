"""Read the oracle's inputs: job log and pools."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

import click

from oracle.problem.slots import shortened
from replay.logs.read import read_pools, read_trace
from replay.logs.trace import PoolTable, Trace, playable
from sia.console.errors import UserError
from sia.wording import as_typed, counted

FEW = 0.01
"""Share of the log's jobs in the window below which a note is printed: real logs often begin with
little load."""


class Inputs(NamedTuple):
    """The selected jobs, their pools, and the IDs of all jobs of the log."""

    trace: Trace
    table: PoolTable
    known: Collection[str]


def read_inputs(
    log: Path, pools: Path, window: float | None, *, skip_invalid: bool = False
) -> Inputs:
    """Return the jobs that can run in these pools and are in the window, if one is given.

    Print dropped jobs to stderr. Raises UserError if no job is left.
    """
    table = read_pools(pools)
    whole = read_trace(log, skip_invalid=skip_invalid)
    trace = playable(whole, table)
    if not trace.arrivals:
        why = ", ".join(_dropped(trace)) or "it has none"
        raise UserError(
            f"{log}: no job can run in the pools of {pools} ({why}); give the pools file of the log"
        )
    if window is not None:
        trace = _within(window, trace)
    for words in _dropped(trace):
        click.echo(f"dropped: {words}", err=True)
    return Inputs(trace, table, {arrival.job.id for arrival in whole.arrivals})


def _within(window: float, trace: Trace) -> Trace:
    """Return the jobs of the window; print a note if they are few. Raises UserError if none."""
    selected, jobs = shortened(trace, window), len(trace.arrivals)
    taken = len(selected.arrivals)
    if not taken:
        raise UserError(
            f"--window {as_typed(window)}: no job was submitted in that time; use a longer window"
        )
    if taken < jobs and (taken < 2 or taken <= FEW * jobs):
        click.echo(
            f"note: --window {as_typed(window)} selects {taken:,} of {counted(jobs, 'job')}: the "
            "window begins with the first job; cut a busier piece with sia trace slice --from",
            err=True,
        )
    return selected


def _dropped(trace: Trace) -> list[str]:
    """Return the dropped jobs by reason, like `9 jobs wider than their pool`."""
    return [
        f"{counted(count, 'job')} {reason if count == 1 else reason.replace(' its ', ' their ')}"
        for reason, count in sorted(trace.dropped.items())
    ]
