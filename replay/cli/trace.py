"""`sia trace`: convert, info, shape, slice, split, synth."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from math import fsum, inf
from pathlib import Path
from random import Random
from typing import Any

import click

from replay.cli.options import published_log
from replay.cli.trace_profile import classes, deadlines, shape, split
from replay.logs.importers import read_log
from replay.logs.importers.gavel import read_speeds
from replay.logs.importers.workload import draw_jobs, read_workload
from replay.logs.limits import MAX_DRAWN, MAX_LOAD, WIDTHS_SHOWN
from replay.logs.read import read_pools, read_trace
from replay.logs.regimes import parse_mode
from replay.logs.slice import merged, scaled_pools, shortened, slice_trace
from replay.logs.trace import PoolTable, Trace, largest_load
from replay.run.output import whole_folder, write_pools, write_trace
from replay.synthetic.cloud import make_cloud
from replay.synthetic.cloud_parameters import Cloud
from replay.synthetic.paper import PRESETS, synthesize
from replay.synthetic.training import MODES, make_training
from sia.console.as_json import json_option, print_json
from sia.console.errors import UserError
from sia.console.groups import Group
from sia.console.tables import show_table
from sia.console.text import SPAN, BoundedFloatType, Seconds
from sia.core.playout import Arrival
from sia.limits import MAX_QUOTA
from sia.wording import counted, decimal, duration

SUFFIX = {"csv": "trace.csv", "parquet": "trace.parquet"}


@click.group(cls=Group)
def trace() -> None:
    """Generate, convert, cut and describe job logs."""


trace.add_command(classes)
trace.add_command(deadlines)
trace.add_command(shape)
trace.add_command(split)


@trace.command()
@click.option(
    "--preset",
    type=click.Choice([*PRESETS, "cloud", "shockwave"]),
    default="base",
    show_default=True,
    help="Workload of the paper: base, a variation of it, a whole cloud, or training jobs that "
    "change their batch size.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of what is drawn.")
@click.option(
    "--days",
    type=BoundedFloatType(0, min_open=True),
    help="Length of the log in days.  [default: 3; for the cloud 28]",
)
@click.option(
    "--pools", type=click.IntRange(1), help="Number of pools of the cloud.  [default: 20]"
)
@click.option(
    "--speeds", type=Path, help="With shockwave: Gavel's throughput table, which is required."
)
@click.option(
    "--jobs", type=click.IntRange(1, MAX_DRAWN), help="With shockwave: jobs.  [default: 120]"
)
@click.option(
    "--gpus", type=click.IntRange(1, MAX_QUOTA), help="With shockwave: GPUs.  [default: 32]"
)
@click.option(
    "--every", type=SPAN, help="With shockwave: mean time between submissions.  [default: 42s]"
)
@click.option(
    "--modes",
    metavar="MODE=SHARE,…",
    help="With shockwave: shares of modes.  [default: static=1,accordion=1,gns=1]",
)
@click.option("--out", type=Path, required=True, help="Folder for trace.csv and pools.csv.")
@json_option()
def synth(
    preset: str, seed: int, days: float | None, pools: int | None, speeds: Path | None,
    jobs: int | None, gpus: int | None, every: float | None, modes: str | None, out: Path,
    as_json: bool,
) -> None:  # fmt: skip
    """Generate a synthetic workload of the paper (appendices A.1 and C), or a cloud (§2)."""
    training = {
        "--speeds": speeds, "--jobs": jobs, "--gpus": gpus, "--every": every, "--modes": modes,
    }  # fmt: skip
    given_to_others = [option for option, value in training.items() if value is not None]
    if preset != "shockwave" and given_to_others:
        raise UserError(f"{given_to_others[0]}: works only with --preset shockwave; leave it out")
    if preset == "shockwave":
        if speeds is None or days is not None or pools is not None:
            raise UserError(
                "--preset shockwave: give --speeds, Gavel's throughput table, and neither --days "
                "nor --pools"
            )
        made, table = make_training(
            read_speeds(speeds), seed, jobs=jobs or 120, gpus=gpus or 32, every=every or 42.0,
            modes=MODES if modes is None else _modes(modes),
        )  # fmt: skip
    elif preset == "cloud":
        given: dict[str, Any] = {"days": days, "pools": pools}
        cloud = Cloud(**{name: value for name, value in given.items() if value is not None})
        made, table = make_cloud(cloud, seed)
    elif pools is not None:
        raise UserError(
            f"--pools {pools}: works only with --preset cloud; leave it out for {preset}"
        )
    else:
        made, table = synthesize(PRESETS[preset], seed, days or 3.0)
    _write(out, "trace.csv", made, table)
    if as_json:
        print_json(written(out / "trace.csv", made, table))
        return
    click.echo(f"{_size(made, len(table.pools))}: {out / 'trace.csv'}")
    for note in made.notes:
        click.echo(f"note: {note}")


def _modes(text: str) -> dict[str, float]:
    """Parse `static=0.5,gns=0.5`. Raises UserError."""
    found: dict[str, float] = {}
    for part in text.split(","):
        mode, _, share = part.partition("=")
        try:
            found[parse_mode(mode)] = float(share)
        except ValueError as error:
            why = str(error) if "known mode" in str(error) else f"{share!r} is no share"
            raise UserError(f"--modes {text}: {why}; write MODE=SHARE,…") from None
    if not all(0 <= share < inf for share in found.values()) or not any(found.values()):
        raise UserError(f"--modes {text}: write shares of at least 0, one of them above 0")
    return found


@trace.command()
@published_log
@click.option(
    "--to",
    "target",
    type=click.Choice(list(SUFFIX)),
    default="csv",
    show_default=True,
    help="File type to write.",
)
@click.option(
    "--skip-invalid", is_flag=True, help="Leave out invalid rows; formats canonical and slurm only."
)
@click.option(
    "--workload",
    metavar="NAME",
    help="Draw jobs of this workload; LOG has its distributions: workload,quantity,value,cdf.",
)
@click.option(
    "--count",
    type=click.IntRange(1, MAX_DRAWN),
    default=1000,
    show_default=True,
    help="With --workload: the number of jobs.",
)
@click.option(
    "--gpus",
    type=click.IntRange(1, MAX_QUOTA),
    default=64,
    show_default=True,
    help="With --workload: the GPUs of the pool.",
)
@click.option(
    "--load",
    type=BoundedFloatType(0.001, MAX_LOAD),
    default=0.8,
    show_default=True,
    help="With --workload: the part of the GPUs that the jobs use on average.",
)
@click.option(
    "--seed", type=int, default=0, show_default=True, help="With --workload: seed of the jobs."
)
@click.option(
    "--out",
    type=Path,
    required=True,
    help="Folder for the job log, and for the pools file if quotas are known.",
)
@json_option()
def convert(
    log: Path, second: Path | None, form: str, target: str, skip_invalid: bool,
    workload: str | None, count: int, gpus: int, load: float, seed: int, out: Path,
    as_json: bool,
) -> None:  # fmt: skip
    """Convert a published job log into the canonical format, or draw one from distributions.

    Some formats have a SECOND file: cluster_gpu_number.csv for helios, pai_task_table.csv for
    alibaba, a throughput table for gavel, dnn_speedups.csv for pcs, a pools file for canonical.
    For google, LOG may be a folder of parts.
    """
    found: Trace
    table: PoolTable | None
    if workload is None:
        found, table = read_log(log, second, form, skip_invalid=skip_invalid)
    else:
        found, table = draw_jobs(read_workload(log, workload), count, gpus, load, seed)
    _write(out, SUFFIX[target], found, table, log, second)
    if as_json:
        print_json(written(out / SUFFIX[target], found, table))
        return
    click.echo(f"{counted(len(found.arrivals), 'job')}: {out / SUFFIX[target]}")
    for reason, jobs in sorted(found.dropped.items()):
        click.echo(f"dropped: {counted(jobs, 'job')} {reason}")
    for note in found.notes:
        click.echo(f"note: {note}")
    if table is None:
        click.echo("note: quotas are unknown; write a pools file with the columns pool,quota")


@trace.command("slice")
@click.option("--trace", "log", type=Path, required=True, help="Job log: CSV, .csv.gz or Parquet.")
@click.option("--pools", type=Path, required=True, help="Pools file.")
@click.option(
    "--from",
    "begin",
    type=Seconds(),
    default="0",
    show_default=True,
    help="Start of the piece, counted from the start of the log, like 3d.",
)
@click.option("--length", type=Seconds(), default="2w", show_default=True,
              help="Length of the piece.")  # fmt: skip
@click.option("--pick", default="", help="Pools to keep, separated by commas.  [default: all]")
@click.option(
    "--queues", type=click.IntRange(1), metavar="N", help="Keep N pools, drawn at random."
)
@click.option(
    "--load",
    "loads",
    metavar="L|L-H",
    help="Scale quotas to this load, or to a load drawn for each pool from L to H.",
)
@click.option("--longest", type=SPAN, default=None, help="Cut longer run times at this time.")
@click.option("--widest", type=click.IntRange(1), metavar="N", help="Leave out jobs of more GPUs.")
@click.option(
    "--merge",
    type=click.IntRange(1, MAX_QUOTA),
    metavar="N",
    help="Put all jobs into one pool, named all, of N GPUs.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of what is drawn.")
@click.option("--out", type=Path, required=True, help="Folder for trace.csv and pools.csv.")
@json_option()
def slice_(
    log: Path, pools: Path, begin: float, length: float, pick: str, queues: int | None,
    loads: str | None, longest: float | None, widest: int | None, merge: int | None, seed: int,
    out: Path, as_json: bool,
) -> None:  # fmt: skip
    """Cut a piece out of a job log, and scale its quotas to a load (§6.1)."""
    found, table = read_trace(log), read_pools(pools)
    random = Random(seed)  # noqa: S311  an experiment, no secret
    chosen = [name for name in pick.split(",") if name] or sorted(p.name for p in table.pools)
    if queues is not None:
        busy = {a.job.pool for a in found.arrivals if begin <= a.job.submit < begin + length}
        chosen = [name for name in chosen if name in busy]
        if queues > len(chosen):
            there = counted(len(chosen), "pool")
            raise UserError(
                f"--queues {queues}: only {there} have jobs in that time; use a smaller number"
            )
        chosen = sorted(random.sample(chosen, queues))
    scaled = None
    if loads is not None:
        low, high = load_bounds(loads)
        scaled = {name: random.uniform(low, high) for name in chosen}
    if merge is not None and loads is not None:
        raise UserError("--merge: gives the GPUs already; leave out --load")
    piece, small = slice_trace(found, table, begin=begin, end=begin + length, pools=chosen)
    piece = shortened(piece, inf if longest is None else longest, widest)
    if scaled is not None:  # to the jobs as they are now
        small = scaled_pools(piece, small, scaled, length)
    if merge is not None:
        piece, small = merged(piece, merge)
    _write(out, "trace.csv", piece, small, log, pools)
    if as_json:
        print_json(written(out / "trace.csv", piece, small, found.notes))
        return
    click.echo(f"{_size(piece, len(small.pools))}: {out / 'trace.csv'}")
    for note in (*found.notes, *piece.notes):
        click.echo(f"note: {note}")


@trace.command()
@click.option("--trace", "log", type=Path, required=True, help="Job log: CSV, .csv.gz or Parquet.")
@click.option("--pools", type=Path, help="Pools file, to show the quota and load of each pool.")
@click.option("--skip-invalid", is_flag=True, help="Leave out invalid rows, and count them.")
@json_option("Print all numbers as JSON.")
def info(log: Path, pools: Path | None, skip_invalid: bool, as_json: bool) -> None:  # fmt: skip
    """Describe a job log: jobs, run times, widths and load of each pool."""
    found = read_trace(log, skip_invalid=skip_invalid)
    facts = describe(found, None if pools is None else read_pools(pools))
    if as_json:
        print_json(facts)
        return
    first, last = facts["first_s"], facts["last_s"]
    jobs = counted(facts["jobs"], "job")
    click.echo(f"{jobs} from {first:,.0f} s to {last:,.0f} s ({duration(last - first)})")
    for reason, count in facts["dropped"].items():
        click.echo(f"dropped: {counted(count, 'job')} {reason}")
    for note in facts["notes"]:
        click.echo(f"note: {note}")
    header = ["pool", "GPUs", "jobs", "run p50", "run p99", "widths", "burst 5m", "% load"]
    rows = [
        [
            name,
            decimal(pool["quota"], 0),
            f"{pool['jobs']:,}",
            duration(pool["duration_p50_s"]),
            duration(pool["duration_p99_s"]),
            _widths(pool["widths_pct"]),
            f"{pool['burst_gpus']:,}",
            decimal(pool["load_pct"], 0),
        ]
        for name, pool in facts["pools"].items()
    ]
    show_table("Pools", header, rows)


def written(
    path: Path, trace: Trace, table: PoolTable | None, notes: Sequence[str] = ()
) -> dict[str, Any]:
    """Return what --json prints about a log and a pools file that were written."""
    return {
        "trace": str(path),
        "pools": None if table is None else str(path.parent / "pools.csv"),
        "jobs": len(trace.arrivals),
        "dropped": dict(sorted(trace.dropped.items())),
        "notes": [*notes, *trace.notes],
    }


def _size(trace: Trace, pools: int) -> str:
    return f"{counted(len(trace.arrivals), 'job')} in {counted(pools, 'pool')}"


def _widths(shares: Mapping[str, float]) -> str:
    """Return the most frequent widths with their shares, and how many more there are."""
    most = sorted(shares, key=lambda width: (-shares[width], int(width)))[:WIDTHS_SHOWN]
    rest = [f"+{len(shares) - len(most)}"] if len(shares) > len(most) else []
    return " ".join([*(f"{w}:{shares[w]:.0f}%" for w in sorted(most, key=int)), *rest])


def describe(found: Trace, table: PoolTable | None) -> dict[str, Any]:
    """Return facts about a log and each of its pools."""
    jobs = [arrival.job for arrival in found.arrivals]
    span = jobs[-1].submit - jobs[0].submit
    by_pool: dict[str, list[Arrival]] = {}
    for arrival in found.arrivals:
        by_pool.setdefault(arrival.job.pool, []).append(arrival)
    quotas = {} if table is None else {n: max(q for _, q in s) for n, s in table.quotas().items()}
    return {
        "jobs": len(jobs),
        "first_s": jobs[0].submit,
        "last_s": jobs[-1].submit,
        "dropped": dict(sorted(found.dropped.items())),
        "notes": found.notes,
        "pools": {
            name: _pool_facts(by_pool.get(name, []), quotas.get(name), span)
            for name in sorted(by_pool.keys() | quotas.keys())
        },
    }


def _pool_facts(arrivals: list[Arrival], quota: int | None, span: float) -> dict[str, Any]:
    lengths = sorted(arrival.duration for arrival in arrivals)
    widths = Counter(arrival.job.width for arrival in arrivals)
    work = fsum(arrival.job.width * arrival.duration for arrival in arrivals)
    return {
        "quota": quota,
        "jobs": len(arrivals),
        "duration_p50_s": lengths[len(lengths) // 2] if lengths else None,
        "duration_p99_s": lengths[int(len(lengths) * 0.99)] if lengths else None,
        "widths_pct": {
            str(width): 100 * count / len(arrivals) for width, count in sorted(widths.items())
        },
        "burst_gpus": largest_load([arrival.job for arrival in arrivals]),
        "load_pct": 100 * work / (quota * span) if quota and span else None,
    }


def load_bounds(text: str) -> tuple[float, float]:
    """Parse `0.9` or `0.6-1.1` as the lowest and highest load. Raises UserError."""
    low, dash, high = text.partition("-")
    try:
        bounds = float(low), float(high if dash else low)
    except ValueError:
        raise UserError(
            f"--load {text}: write one load, like 0.9, or a range, like 0.6-1.1"
        ) from None
    if not 0.001 <= bounds[0] <= bounds[1] <= MAX_LOAD:
        raise UserError(
            f"--load {text}: loads must be ascending, from 0.001 to {MAX_LOAD:g}; 0.6 is 60 %"
        )
    return bounds


def _write(
    out: Path, name: str, found: Trace, table: PoolTable | None, *inputs: Path | None
) -> None:
    given = [path for path in inputs if path is not None]
    with whole_folder(out, given, replace=False) as folder:
        write_trace(folder / name, found)
        if table is not None:
            write_pools(folder / "pools.csv", table)
