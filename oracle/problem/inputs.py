"""The job log and the pools that the oracle is given."""

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
"""The part of a log's jobs in a window up to which it is said where there may be more: real logs
often begin slowly."""


class Inputs(NamedTuple):
    """The jobs that are taken, their pools, and the ids of all jobs of the log."""

    trace: Trace
    table: PoolTable
    known: Collection[str]


def read_inputs(
    log: Path, pools: Path, window: float | None, *, skip_invalid: bool = False
) -> Inputs:
    """The jobs that can run in these pools, those of the window alone if there is one.

    What is dropped is said on stderr. Raises UserError where no job is left.
    """
    table = read_pools(pools)
    whole = read_trace(log, skip_invalid=skip_invalid)
    trace = playable(whole, table)
    if not trace.arrivals:
        why = ", ".join(_dropped(trace)) or "it has none"
        raise UserError(f"{log}: no job can run in the pools of {pools} ({why}); give those it "
                        "belongs to")  # fmt: skip
    if window is not None:
        trace = _within(window, trace)
    for words in _dropped(trace):
        click.echo(f"dropped: {words}", err=True)
    return Inputs(trace, table, {arrival.job.id for arrival in whole.arrivals})


def _within(window: float, trace: Trace) -> Trace:
    """The jobs of the window. Raises UserError where there is none, says where there are few."""
    kept, jobs = shortened(trace, window), len(trace.arrivals)
    taken = len(kept.arrivals)
    if not taken:
        raise UserError(
            f"--window {as_typed(window)}: no job was submitted in that time; give a longer one"
        )
    if taken < jobs and (taken < 2 or taken <= FEW * jobs):
        click.echo(
            f"note: --window {as_typed(window)} takes {taken:,} of {counted(jobs, 'job')}: it "
            "begins with the first of them; cut a busier piece (sia trace slice --from)",
            err=True,
        )
    return kept


def _dropped(trace: Trace) -> list[str]:
    """How many jobs were left out, and why, like `9 jobs wider than their pool`."""
    return [
        f"{counted(count, 'job')} {reason if count == 1 else reason.replace(' its ', ' their ')}"
        for reason, count in sorted(trace.dropped.items())
    ]
