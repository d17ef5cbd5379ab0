"""The job log and the pools that the oracle is given."""

from __future__ import annotations

from pathlib import Path

import click

from oracle.slots import shortened
from replay.errors import UserError
from replay.read import read_pools, read_trace
from replay.text import counted
from replay.trace import PoolTable, Trace, playable


def read_inputs(log: Path, pools: Path, window: float | None) -> tuple[Trace, PoolTable]:
    """The jobs that can run in these pools, those of the window alone if there is one.

    What is dropped is said on stderr. Raises UserError where no job is left.
    """
    table = read_pools(pools)
    trace = playable(read_trace(log), table)
    if not trace.arrivals:
        raise UserError(f"{log}: no job can run in the pools of {pools}; give those it belongs to")
    trace = trace if window is None else shortened(trace, window)
    for reason, count in sorted(trace.dropped.items()):
        click.echo(f"dropped: {counted(count, 'job')} {reason}", err=True)
    return trace, table
