"""`sia oracle`."""

from __future__ import annotations

from pathlib import Path

import click

from oracle.forms import FORMS
from oracle.run import Task, run
from oracle.write import PLANNED, write_outcome
from replay.errors import UserError
from replay.output import whole_folder
from replay.read import read_pools, read_trace
from replay.text import Seconds, decimal, duration
from replay.trace import playable


@click.group()
def oracle() -> None:
    """What anyone could gain who knew the future: the least waiting that slows nobody."""


@oracle.command("solve")
@click.option("--trace", "log", type=Path, required=True, help="Job log: CSV, .csv.gz or Parquet.")
@click.option("--pools", type=Path, required=True, help="Pools file: pool,quota[,group,share].")
@click.option(
    "--slot", type=Seconds(), default="5m", show_default=True, help="Jobs start on such a grid."
)
@click.option(
    "--time-limit",
    "seconds",
    type=Seconds(),
    default="5m",
    show_default=True,
    help="For the whole command.",
)
@click.option("--form", type=click.Choice(list(FORMS)), default="step", show_default=True)
@click.option("--out", type=Path, required=True, help="Folder for the results.")
def solve(
    log: Path, pools: Path, slot: float, seconds: float, form: str, out: Path
) -> None:  # fmt: skip
    """Find the schedule with the least waiting in which no job starts later than alone.

    Writes OUT/trace.csv (the jobs on the grid), pools.csv, jobs.csv, loans.csv and oracle.json.
    """
    table = read_pools(pools)
    trace = playable(read_trace(log), table)
    if not trace.arrivals:
        raise UserError(f"{log}: no job can run in the pools of {pools}; give those it belongs to")
    outcome = run(trace, table, Task(slot, seconds, form))
    with whole_folder(out, [log, pools], (), PLANNED) as folder:
        write_outcome(folder, table, outcome)
    click.echo(
        f"{outcome.status}: total waiting {duration(outcome.wait)}, "
        f"no schedule has less than {duration(outcome.wait_bound)}; "
        f"gap {decimal(100 * outcome.gap)} %; alone {duration(outcome.alone)}"
    )
    click.echo(f"results: {out / 'oracle.json'}")
