"""`sia trace shape` and `sia trace split`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from replay.logs.limits import ROWS_SHOWN
from replay.logs.read import read_pools, read_trace
from replay.logs.split import split_by_width
from replay.run.output import whole_folder, write_json, write_trace
from sia.console.errors import UserError
from sia.console.tables import show_table
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
