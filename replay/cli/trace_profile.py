"""`sia trace shape`, `split`, `deadlines` and `classes`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from replay.deadlines.classes import RackCluster, classes_of, composition, draw_workload
from replay.deadlines.workloads import WORKLOADS, Mix, chosen_jobs, with_deadlines
from replay.logs.limits import ROWS_SHOWN
from replay.logs.nodes import write_nodes
from replay.logs.read import read_pools, read_trace
from replay.logs.split import split_by_width
from replay.logs.trace import PoolTable
from replay.run.output import whole_folder, write_json, write_pools, write_trace
from sia.console.errors import UserError
from sia.console.tables import show_table
from sia.console.text import SPAN, BoundedFloatType
from sia.limits import MAX_GROUP
from sia.model import Pool
from sia.wording import NONE, counted, decimal, duration

if TYPE_CHECKING:
    from replay.profile.profile import ProfileRow
from sia.console.as_json import json_option, print_json


@click.command()
@click.argument("logs", nargs=-1, metavar="LOG:POOLS...")
@click.option(
    "--minutes",
    "folders",
    type=Path,
    multiple=True,
    metavar="FOLDER",
    help="Folder with use by the minute, a file for each pool, like Helios' Earth; repeatable.",
)
@click.option(
    "--out", type=Path, required=True, help="Folder for shape.svg, shape.png and shape.json."
)
@json_option("Print shape.json instead of tables.")
def shape(logs: tuple[str, ...], folders: tuple[Path, ...], out: Path, as_json: bool) -> None:
    """Draw the utilisation, bursts and run times of logs, pool by pool (§2, Figs. 2 and 3).

    Each LOG is given with its POOLS file after a colon, and is replayed first come, first served.
    """
    from replay.profile.figures import draw_shapes  # noqa: PLC0415  matplotlib's numpy takes a while

    if not logs and not folders:
        raise UserError(
            "no log given; name a log and its pools file, like jobs.csv:pools.csv, or use --minutes"
        )
    pairs = [_pair(text) for text in logs]
    shapes: dict[str, ProfileRow] = {}
    for log, pools in pairs:
        _add(shapes, name_of(log), log, _shape_of_log(log, pools))
    for folder in folders:
        from replay.profile.gpu_minutes import shape_of_minutes  # noqa: PLC0415  as above

        _add(shapes, folder.resolve().name, folder, shape_of_minutes(folder))
    inputs = [*(path for pair in pairs for path in pair), *folders]
    with whole_folder(out, inputs) as made:
        for form in ("svg", "png"):
            (made / f"shape.{form}").write_bytes(draw_shapes(shapes, form))
        write_json(made / "shape.json", shapes)
    if as_json:
        print_json(shapes)
        return
    _show(shapes)
    click.echo(f"\n{out / 'shape.png'}")


def _pair(text: str) -> tuple[Path, Path]:
    log, _, pools = text.rpartition(":")
    if not log or not pools:
        raise UserError(f"{text}: has no pools file; write LOG:POOLS, like jobs.csv:pools.csv")
    return Path(log), Path(pools)


def name_of(log: Path) -> str:
    """Return the file name without suffixes; for `trace.csv`, the name of its folder."""
    stem = log.name.partition(".")[0]
    return log.resolve().parent.name or stem if stem == "trace" else stem


def _shape_of_log(log: Path, pools: Path) -> ProfileRow:
    from replay.profile.profile import shape_of  # noqa: PLC0415  as above

    trace, table = read_trace(log), read_pools(pools)
    try:
        return shape_of(trace, table)
    except UserError as error:
        raise UserError(f"{log}: {error}") from None


def _add(shapes: dict[str, ProfileRow], name: str, path: Path, facts: ProfileRow) -> None:
    if name in shapes:
        raise UserError(f"{path}: two logs have the name {name!r}; rename one")
    shapes[name] = facts


def _show(shapes: Mapping[str, ProfileRow]) -> None:
    from replay.profile.profile import in_short  # noqa: PLC0415  as above

    header = [
        "log", "pools", "jobs", "% used", "p5", "p50", "p95 of hours", "burst > pool",
        "p99 > 10 p50", "one width", "gaps' CV", "% soon", "by chance",
    ]  # fmt: skip
    rows = []
    for name, facts in shapes.items():
        m = in_short(facts)
        rows.append([
            name,
            f"{len(facts['pools'])}",
            decimal(facts.get("jobs"), 0),
            decimal(facts["utilisation_pct"], 0),
            *(decimal(m.get(f"hourly_p{p}"), 0) for p in (5, 50, 95)),
            *(_share(m[key]) for key in
              ("burst_over_100_pct", "ratio_over_10_pct", "one_width_pct")),
            *(decimal(m[key], digits) for key, digits in
              (("gap_cv", 1), ("soon_pct", 0), ("soon_control_pct", 0))),
        ])  # fmt: skip
    show_table("Logs: shares of pools, and medians over pools", header, rows)
    for name, facts in shapes.items():
        _show_pools(name, facts)
        for reason, count in facts.get("dropped", {}).items():
            click.echo(f"dropped: {counted(count, 'job')} {reason}")
        for note in facts["notes"]:
            click.echo(f"note: {note}")


def _show_pools(name: str, facts: ProfileRow) -> None:
    pools = facts["pools"]
    shown = sorted(pools, key=lambda pool: (-pools[pool].get("jobs", 0), pool))[:ROWS_SHOWN]
    header = [
        "pool", "GPUs", "jobs", "% used", "% in 5 m", "run p50", "p99 / p50", "widths",
        "gaps' CV", "% soon", "by chance",
    ]  # fmt: skip
    rows = [_row(pool, pools[pool]) for pool in pools if pool in shown]
    cut = f" ({ROWS_SHOWN} of {len(pools)} pools)" if len(pools) > ROWS_SHOWN else ""
    show_table(f"{name}: utilisation {facts['utilisation']}{cut}", header, rows)


def _row(name: str, pool: Mapping[str, Any]) -> list[str]:
    return [
        name,
        f"{pool['gpus']:,}",
        decimal(pool.get("jobs"), 0),
        decimal(pool["utilisation_pct"], 0),
        decimal(pool["burst_pct"], 0),
        duration(pool.get("duration_p50_s")),
        decimal(pool.get("duration_ratio"), 1),
        decimal(pool.get("widths"), 0),
        decimal(pool.get("gap_cv"), 1),
        decimal(pool["soon_pct"], 0),
        decimal(pool["soon_control_pct"], 0),
    ]


def _share(value: float | None) -> str:
    return NONE if value is None else f"{value:.0f} %"


@click.command()
@click.option("--trace", "log", type=Path, required=True, help="Job log: CSV, .csv.gz or Parquet.")
@click.option(
    "--by",
    type=click.Choice(["width"]),
    required=True,
    help="Property of jobs that separates the new pools.",
)
@click.option("--out", type=Path, required=True, help="Folder for trace.csv.")
@json_option()
def split(log: Path, by: str, out: Path, as_json: bool) -> None:
    """Split each pool of a log by the width of its jobs: POOL-w1, POOL-w2, POOL-w4 and so on.

    The new pools have no quotas. sia experiment scales them to a load; sia replay needs a
    pools file.
    """
    assert by == "width", "the only choice"
    found = split_by_width(read_trace(log))
    with whole_folder(out, [log], replace=False) as folder:
        write_trace(folder / "trace.csv", found)
    if as_json:
        print_json(
            {
                "trace": str(out / "trace.csv"),
                "pools": None,
                "jobs": len(found.arrivals),
                "dropped": dict(sorted(found.dropped.items())),
                "notes": found.notes,
            }
        )
        return
    pools = {arrival.job.pool for arrival in found.arrivals}
    size = f"{counted(len(found.arrivals), 'job')} in {counted(len(pools), 'pool')}"
    click.echo(f"{size}: {out / 'trace.csv'}")
    for note in found.notes:
        click.echo(f"note: {note}")
    click.echo(
        "note: the new pools have no quotas; sia experiment scales them to a load, for sia replay "
        "write a pools file with the columns pool,quota"
    )


LOGS = (".csv", ".gz", ".parquet")
MAX_DENSITY = 1000.0
"""Percent. A log of ten times its jobs is another log."""


class MixType(click.ParamType[Mix]):
    """Three percentages like 30/60/10."""

    name = "strict/soft/best effort"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> Mix:
        """Return the percentages, which add up to 100."""
        try:
            parts = [float(part) for part in str(value).split("/")]
        except ValueError:
            parts = []
        if len(parts) != 3 or not all(0 <= part <= 100 for part in parts) or sum(parts) != 100:
            self.fail(f"{value}: write three percentages that add up to 100, like 30/60/10",
                      param, ctx)  # fmt: skip
        return Mix(*parts)


class SlackType(click.ParamType[tuple[float, float]]):
    """Two multiples of the run time like 1.2:2."""

    name = "low:high"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[float, float]:
        """Return the bounds, in order."""
        if isinstance(value, tuple):
            return value
        low, colon, high = str(value).partition(":")
        try:
            bounds = float(low), float(high) if colon else float(low)
        except ValueError:
            bounds = 0.0, 0.0
        if not 0 < bounds[0] <= bounds[1] <= 1e6:
            self.fail(f"{value}: write two multiples of the run time above 0, like 1.2:2",
                      param, ctx)  # fmt: skip
        return bounds


@click.command()
@click.option("--trace", "log", type=Path, required=True, help="Job log: CSV, .csv.gz or Parquet.")
@click.option("--mix", type=MixType(), metavar="S/F/B",
              help="Percentages of jobs with a strict, with a soft and without a deadline.  "
              "[default: 30/60/10]")  # fmt: skip
@click.option("--workload", type=click.Choice([*WORKLOADS]), metavar="NAME",
              help=f"A workload of Table 1: {', '.join(WORKLOADS)}.")  # fmt: skip
@click.option("--slack", type=SlackType(), default="1.2:2", show_default=True, metavar="L:H",
              help="Draw deadlines of L to H run times after the submission.")  # fmt: skip
@click.option("--density", type=BoundedFloatType(0, MAX_DENSITY, min_open=True), default=100.0,
              show_default=True, metavar="PERCENT",
              help="Number of jobs, in percent of those of the log.")  # fmt: skip
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of what is drawn.")
@click.option("--skip-invalid", is_flag=True, help="Leave out invalid rows, and count them.")
@json_option()
@click.option("--out", type=Path, required=True,
              help="Job log to write, or a folder for trace.csv.")  # fmt: skip
def deadlines(
    log: Path, mix: Mix | None, workload: str | None, slack: tuple[float, float], density: float,
    seed: int, skip_invalid: bool, as_json: bool, out: Path,
) -> None:  # fmt: skip
    """Draw deadlines for the jobs of a log."""
    if mix is not None and workload is not None:
        raise UserError("--mix: --workload says the mix; leave one out")
    trace = read_trace(log, skip_invalid=skip_invalid)
    if workload is not None:
        trace = chosen_jobs(trace, WORKLOADS[workload])
        mix = WORKLOADS[workload].mix
        if not trace.arrivals:
            raise UserError(f"{log}: no job is of workload {workload}; give the log that it is of")
    found = with_deadlines(trace, mix or Mix(30, 60, 10), slack, density, seed)
    if not found.arrivals:
        raise UserError(f"--density {density:g}: leaves no job; give more")
    name = out.name if out.suffix in LOGS else "trace.csv"
    folder = out.parent if out.suffix in LOGS else out
    if folder == Path():
        write_trace(out, found)
    else:
        with whole_folder(folder, [log], planned=[name]) as made:
            write_trace(made / name, found)
    jobs = [arrival.job for arrival in found.arrivals]
    soft = sum(bool(job.soft) for job in jobs)
    slo = sum(job.deadline is not None for job in jobs)
    counts = {
        "jobs": len(jobs), "strict": slo - soft, "soft": soft, "best_effort": len(jobs) - slo,
        "trace": str(folder / name),
    }  # fmt: skip
    if as_json:
        print_json(counts)
        return
    click.echo(f"{counted(len(jobs), 'job')}: {slo - soft:,} strict, {soft:,} soft, "
               f"{len(jobs) - slo:,} without a deadline: {folder / name}")  # fmt: skip


@click.command()
@click.option("--trace", "log", type=Path, required=True, help="Job log: CSV, .csv.gz or Parquet.")
@click.option(
    "--workload",
    required=True,
    metavar="NAME",
    help="A row of Table 3: EXP1, EXP2, EXP3, or DEADLINE-n with n percent of slack.",
)
@click.option("--widths", "second", type=Path, metavar="LOG",
              help="Job log whose widths are drawn.  [default: the log itself]")  # fmt: skip
@click.option("--classes", "count", type=click.IntRange(1, 100), default=8, show_default=True,
              help="Classes of run times (k-means).")  # fmt: skip
@click.option("--nodes", type=click.IntRange(1, MAX_GROUP), default=256, show_default=True,
              help="Nodes of one GPU.")  # fmt: skip
@click.option("--racks", type=click.IntRange(1), default=8, show_default=True, help="Equal racks.")
@click.option("--load", type=BoundedFloatType(0, 10_000, min_open=True), default=100.0,
              show_default=True, metavar="PERCENT",
              help="GPU-time that jobs request, in percent of the cluster's.")  # fmt: skip
@click.option("--length", type=SPAN, default="2h", show_default=True,
              help="Time in which jobs are submitted; longer jobs are left out.")  # fmt: skip
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of what is drawn.")
@json_option()
@click.option("--out", type=Path, required=True,
              help="Folder for trace.csv, pools.csv, nodes.csv and classes.json.")  # fmt: skip
def classes(
    log: Path, workload: str, second: Path | None, count: int, nodes: int, racks: int, load: float,
    length: float, seed: int, as_json: bool, out: Path,
) -> None:  # fmt: skip
    """Draw a workload with deadlines and preferences from classes of a log's jobs (§5)."""
    try:
        row = composition(workload)
    except ValueError as error:
        raise UserError(f"--workload: {error}") from None
    if nodes % racks or nodes // racks < 4:
        raise UserError(
            f"--racks {racks}: {nodes} nodes make no equal racks of at least 4; give another number"
        )
    arrivals = read_trace(log).arrivals
    kept = [each for each in arrivals if 0 < each.duration <= length]
    if not kept:
        raise UserError(f"{log}: no job runs for at most {duration(length)}; give more --length")
    found = classes_of(kept, count)
    wide = kept if second is None else read_trace(second).arrivals
    widths = [width for each in wide if (width := each.job.width) <= nodes]
    if not widths:
        raise UserError(f"{second or log}: no job is as narrow as {nodes} GPUs; give more --nodes")
    cluster = RackCluster(nodes, racks)
    drawn = draw_workload(found, widths, row, cluster, load / 100, length, seed)
    made = drawn.trace.arrivals
    slo = sum(each.job.deadline is not None for each in made)
    told = {
        "workload": workload, "jobs": len(made), "slo": slo, "best_effort": len(made) - slo,
        "load_pct": 100 * drawn.load, "left_out": len(arrivals) - len(kept),
        "classes": [{"jobs": len(each.members), "shortest_s": each.shortest,
                     "longest_s": each.longest, "log_mean": each.mean,
                     "log_deviation": each.deviation} for each in found],
    }  # fmt: skip
    with whole_folder(out, [log, *([second] if second else [])]) as folder:
        write_trace(folder / "trace.csv", drawn.trace)
        write_pools(folder / "pools.csv", PoolTable([Pool("all", nodes)]))
        write_nodes(folder / "nodes.csv", cluster.list_nodes())
        write_json(folder / "classes.json", told)
    if as_json:
        print_json(told)
        return
    size = f"{counted(len(made), 'job')}, {slo:,} with a deadline, load {100 * drawn.load:.0f} %"
    click.echo(f"{size}: {out / 'trace.csv'}")
    if len(set(widths)) == 1:
        click.echo(f"note: every width is {widths[0]}, as in {second or log}; --widths takes those "
                   "of another log")  # fmt: skip
