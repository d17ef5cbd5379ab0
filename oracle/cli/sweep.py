"""`sia oracle sweep`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from oracle.problem.inputs import read_inputs
from oracle.problem.problem import Goal
from oracle.run.console import ProgressReporter, end_interrupted
from oracle.run.folder import Results, own_folder
from oracle.run.run import instance_of
from oracle.search.answer import ProgressCallback
from oracle.study.sweep import described, sweep
from replay.cli.experiment import Numbers
from replay.logs.limits import ROWS_SHOWN
from replay.plotting.canvas import plain
from replay.run.output import write_json, write_rows
from sia import __version__
from sia.console.as_json import json_option, print_json
from sia.console.tables import show_table
from sia.console.text import Seconds
from sia.wording import counted, decimal, duration

BETAS = "0,0.3,1,3,10,30,100"

COMMAND = "sia oracle sweep"

RESULTS = Results((COMMAND,), "sweep.json", ("sweep.csv", "sweep.json", "sweep.svg", "sweep.png"))

BETAS_SHOWN = 7
"""Maximum number of prices in the terminal table of pools: more would exceed 80 columns."""

NAME = 20
"""Maximum characters of a pool's name in the table."""

HEADER = (
    "beta", "status", "gap_pct", "wait_s", "unfairness_slots", "speedup_mean", "speedup_geomean",
)  # fmt: skip


@click.command("sweep")
@click.option("--trace", "log", type=Path, required=True, help="Job log: CSV or Parquet.")
@click.option("--pools", type=Path, required=True, help="Pools file: pool,quota[,group,share].")
@click.option(
    "--beta", "betas", type=Numbers(float, 0, 1e6), default=BETAS, show_default=True,
    help="Prices of unfairness between pools (Fig. 19), separated by commas.",
)  # fmt: skip
@click.option(
    "--slot", type=Seconds(), default="5m", show_default=True, help="Length of a time slot."
)
@click.option(
    "--window", type=Seconds(), help="Use only jobs submitted in this time from the first job on."
)
@click.option(
    "--time-limit",
    "seconds",
    type=Seconds(),
    default="5m",
    show_default=True,
    help="Time limit for each price.",
)
@click.option("--skip-invalid", is_flag=True, help="Leave out invalid rows, and count them.")
@json_option("Print sweep.json instead of tables.")
@click.option("--out", type=Path, required=True, help="Folder for the results.")
def sweep_command(
    log: Path, pools: Path, betas: list[float], slot: float, window: float | None,
    seconds: float, skip_invalid: bool, as_json: bool, out: Path,
) -> None:  # fmt: skip
    """Solve the oracle for rising prices of unfairness, to show what fairness costs.

    Writes OUT/sweep.csv, sweep.json, sweep.svg and sweep.png. Ctrl-C keeps what was
    solved so far.
    """
    from oracle.study.sweep_figures import draw_sweep  # noqa: PLC0415  matplotlib is slow

    trace, table, _ = read_inputs(log, pools, window, skip_invalid=skip_invalid)
    instance = instance_of(trace, table, slot, Goal())
    with own_folder(out, [log, pools], RESULTS) as folder:
        found = sweep(instance, sorted(betas), seconds, _begin)
        points = [described(instance, point) for point in found]
        results = {
            "command": COMMAND,
            "version": __version__,
            "trace": log.name,
            "pools": pools.name,
            "slot_s": slot,
            "window_s": window,
            "betas": sorted(betas),
            "time_limit_s": seconds,
            "skip_invalid": skip_invalid,
            "jobs": len(trace.arrivals),
            "dropped": dict(sorted(trace.dropped.items())),
            "points": points,
        }
        write_rows(folder / "sweep.csv", HEADER, ([p[key] for key in HEADER] for p in points))
        write_json(folder / "sweep.json", results)
        picture = draw_sweep(points)
        (folder / "sweep.svg").write_bytes(picture.svg)
        (folder / "sweep.png").write_bytes(picture.png)
    if as_json:
        print_json(results)
    else:
        _show(points)
        click.echo(f"results: {out / 'sweep.png'}")
    if found[-1].status == "interrupted":
        done = len(found) - 1
        end_interrupted(
            f"{done} of {len(betas)} prices are done and kept, and the best schedule so far for "
            f"beta {found[-1].beta:g}"
        )


def _begin(beta: float) -> ProgressCallback:
    """Report progress in slots of waiting, so that prices can be compared."""
    click.echo(f"beta {beta:g}", err=True)
    return ProgressReporter(1.0, Goal(beta=1.0))


def _show(points: Sequence[Mapping[str, Any]]) -> None:
    """Print a table of prices, then one of pools with the jobs that gain at each price."""
    header = ["beta", "waiting", "unfairness", "mean", "gain", "least pool", "gap", "stopped by"]
    rows = []
    for point in points:
        pools = [pool for pool in point["pools"].values() if pool["jobs"]]
        rows.append([
            f"{point['beta']:g}",
            duration(point["wait_s"]),
            decimal(point["unfairness_slots"], 1),
            decimal(point["speedup_mean"]),
            f"{sum(pool['sooner'] for pool in pools):,}",
            f"{decimal(min(pool['sooner_pct'] for pool in pools), 1)} %",
            f"{decimal(point['gap_pct'])} %" if point["gap_pct"] else "0",
            point["status"],
        ])  # fmt: skip
    show_table("Efficiency against fairness", header, rows, ["stopped by"])
    jobs = sum(pool["jobs"] for pool in points[0]["pools"].values())
    click.echo(
        f"mean: mean speed-up; gain: how many of {counted(jobs, 'job')} start sooner than alone;\n"
        "least pool: lowest share of such jobs in a pool; gap: distance to the optimum\n"
        "of waiting in slots plus beta times unfairness"
    )
    for first in range(0, len(points), BETAS_SHOWN):
        _show_pools(points[first : first + BETAS_SHOWN])


def _show_pools(points: Sequence[Mapping[str, Any]]) -> None:
    pools = points[0]["pools"]
    most = sorted(pools, key=lambda name: (-pools[name]["jobs"], name))[:ROWS_SHOWN]
    rows = [
        [plain(name, NAME), f"{pools[name]['jobs']:,}",
         *(f"{point['pools'][name]['sooner']:,}" for point in points)]
        for name in sorted(most)
    ]  # fmt: skip
    header = ["pool", "jobs", *(f"{point['beta']:g}" for point in points)]
    cut = f" ({ROWS_SHOWN} of {len(pools)} pools)" if len(pools) > ROWS_SHOWN else ""
    show_table(
        f"Jobs of each pool that start earlier than in the baseline, by beta{cut}", header, rows
    )
