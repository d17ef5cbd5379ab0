"""`sia oracle sweep`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import msgspec

from oracle.inputs import read_inputs
from oracle.problem import Goal
from oracle.run import instance_of
from oracle.solve import Tell
from oracle.sweep import described, sweep
from oracle.tell import Teller
from replay.experiment_commands import Numbers
from replay.limits import ROWS_SHOWN
from replay.output import whole_folder, write_json, write_rows
from replay.tables import show_table
from replay.text import Seconds, decimal, duration

BETAS = "0,0.3,1,3,10,30,100"

PLANNED = ("sweep.csv", "sweep.json", "sweep.svg", "sweep.png")

HEADER = (
    "beta", "status", "gap_pct", "wait_s", "unfairness_slots", "speedup_mean", "speedup_geomean",
)  # fmt: skip


@click.command("sweep")
@click.option("--trace", "log", type=Path, required=True, help="Job log: CSV or Parquet.")
@click.option("--pools", type=Path, required=True, help="Pools file: pool,quota[,group,share].")
@click.option(
    "--beta", "betas", type=Numbers(float, 0, 1e6), default=BETAS, show_default=True,
    help="Prices of unequal shares (Fig. 19), separated by commas.",
)  # fmt: skip
@click.option(
    "--slot", type=Seconds(), default="5m", show_default=True, help="Jobs start on such a grid."
)
@click.option("--window", type=Seconds(), help="Take the jobs of so long only, from the first.")
@click.option(
    "--time-limit", "seconds", type=Seconds(), default="5m", show_default=True, help="For each."
)
@click.option("--json", "as_json", is_flag=True, help="Print sweep.json instead of tables.")
@click.option("--out", type=Path, required=True, help="Folder for the results.")
def sweep_command(
    log: Path, pools: Path, betas: list[float], slot: float, window: float | None,
    seconds: float, as_json: bool, out: Path,
) -> None:  # fmt: skip
    """Let the oracle pay ever more for equal shares: what fairness costs, and who gains by it.

    Writes OUT/sweep.csv, sweep.json, sweep.svg and sweep.png. Ctrl-C keeps what was found so far.
    """
    from oracle.sweep_figures import draw_sweep  # noqa: PLC0415  matplotlib is slow

    trace, table = read_inputs(log, pools, window)
    instance = instance_of(trace, table, slot, Goal())
    with whole_folder(out, [log, pools], (), PLANNED) as folder:
        found = sweep(instance, sorted(betas), seconds, _begin)
        points = [described(instance, point) for point in found]
        write_rows(folder / "sweep.csv", HEADER, ([p[key] for key in HEADER] for p in points))
        write_json(folder / "sweep.json", points)
        picture = draw_sweep(points)
        (folder / "sweep.svg").write_bytes(picture.svg)
        (folder / "sweep.png").write_bytes(picture.png)
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(points), indent=1))
        return
    _show(points)
    click.echo(f"results: {out / 'sweep.png'}")


def _begin(beta: float) -> Tell:
    """Progress in the objective's own unit, a slot of waiting, so that prices can be compared."""
    click.echo(f"beta {beta:g}", err=True)
    return Teller(1.0, Goal(beta=1.0))


def _show(points: Sequence[Mapping[str, Any]]) -> None:
    """A row a price, then a row a pool: how many of its jobs gain at each price."""
    header = ["beta", "waiting", "unfairness", "mean", "geo", "gain", "fewest of a pool", "gap",
              "stopped by"]  # fmt: skip
    rows = []
    for point in points:
        pools = [pool for pool in point["pools"].values() if pool["jobs"]]
        sooner, jobs = (sum(pool[key] for pool in pools) for key in ("sooner", "jobs"))
        rows.append([
            f"{point['beta']:g}",
            duration(point["wait_s"]),
            decimal(point["unfairness_slots"], 1),
            decimal(point["speedup_mean"]),
            decimal(point["speedup_geomean"]),
            f"{sooner:,} of {jobs:,}",
            f"{decimal(min(pool['sooner_pct'] for pool in pools), 1)} %",
            f"{decimal(point['gap_pct'])} %",
            point["status"],
        ])  # fmt: skip
    show_table("Efficiency against fairness, and the jobs that gain", header, rows, ["stopped by"])
    names = sorted(points[0]["pools"])[:ROWS_SHOWN]
    rows = [
        [name, f"{points[0]['pools'][name]['jobs']:,}",
         *(f"{point['pools'][name]['sooner']:,}" for point in points)]
        for name in names
    ]  # fmt: skip
    header = ["pool", "jobs", *(f"{point['beta']:g}" for point in points)]
    show_table("Jobs of each pool that start sooner than alone, by beta", header, rows)
