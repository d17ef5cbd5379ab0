"""`sia fairness`."""

from __future__ import annotations

from pathlib import Path

import click

from replay.fairness.measures import MEASURES, gpus_of
from replay.fairness.measures import fairness as measure
from replay.fairness.segments import read_segments
from replay.logs.read import read_pools, read_trace
from replay.logs.trace import playable
from sia.console.as_json import json_option, print_json
from sia.console.errors import UserError
from sia.console.tables import show_table
from sia.wording import counted, decimal, duration, percent

SHOWN = 10
"""Jobs in the table of those that were treated worst."""


@click.command()
@click.option("--trace", "log", type=Path, required=True, help="Job log: CSV, .csv.gz or Parquet.")
@click.option("--pools", type=Path, required=True, help="Pools file.")
@click.option(
    "--segments",
    "runs",
    type=Path,
    required=True,
    help="When jobs ran: job_id,start,end,width, like segments.csv or jobs.csv of a replay.",
)
@json_option("Print all numbers as JSON.")
def fairness(log: Path, pools: Path, runs: Path, as_json: bool) -> None:
    """Measure how fairly a schedule treated each job, and how efficient it was.

    Finish-time fairness is a job's completion time divided by that on an even share of the GPUs:
    of all jobs (ftf_jobs), of those present during its life (ftf_life), or of those by their widths
    (ftf_share). Above 1 is unfair.
    """
    table = read_pools(pools)
    trace = playable(read_trace(log), table)
    if not trace.arrivals:
        raise UserError(
            f"{log}: no job can run in the pools of {pools}; give the pools of this log"
        )
    found = measure(trace, table, read_segments(runs, trace, gpus_of(table)))
    if as_json:
        print_json(found)
        return
    jobs = found["jobs"]
    takes, average = duration(found["makespan"]), duration(found["avg_jct"])
    click.echo(
        f"{counted(len(jobs), 'job')} ended on {counted(found['gpus'], 'GPU')}: makespan {takes}, "
        f"average completion time {average}, utilisation {decimal(found['utilisation'])}, "
        f"{counted(found['starts'], 'start')}"
    )
    if found["never_ended"]:
        click.echo(f"note: {counted(found['never_ended'], 'job')} never ended")
    header = ["measure", "worst", "% over 1", "% over 1.05"]
    rows = [
        [
            name,
            decimal(found[f"worst_{name}"]),
            percent(found[f"unfair_{name}"]),
            percent(found[f"unfair_{name}_1.05"]),
        ]
        for name in MEASURES
    ]
    show_table("Finish-time fairness", header, rows)
    worst = sorted(jobs, key=lambda job_id: -jobs[job_id]["ftf_jobs"])[:SHOWN]
    rows = [[job_id, *(decimal(jobs[job_id][name]) for name in MEASURES)] for job_id in worst]
    show_table("Treated worst", ["job", *MEASURES], rows)
