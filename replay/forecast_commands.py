"""`sia forecast`."""

from __future__ import annotations

from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from replay.errors import UserError
from replay.options import Ascending
from replay.read import read_pools, read_trace
from replay.tables import show_table
from replay.text import DAY, WEEK, Seconds, as_typed, counted, decimal, duration
from replay.trace import PoolTable, Trace, playable
from sia.limits import MAX_WINDOWS, TICK, WINDOWS

if TYPE_CHECKING:
    from predictors.model import Model, Scores
    from predictors.training import Rows
    from replay.forecast_train import Comparison

NEWEST = WEEK
"""Seconds at a log's end on which an old and a new model are judged: every day of the week once."""

LEAST_NEWEST = DAY
"""Of those, beside the longest window: with less, a few hours of one day would decide."""


@click.group()
def forecast() -> None:
    """Learn from a job log what will arrive, and see how good forecasts are on it."""


_LOG = click.option(
    "--trace", "log", type=Path, required=True, help="Job log: CSV, .csv.gz or Parquet."
)
_POOLS = click.option(
    "--pools", type=Path, help="Pools file; without it no job is taken to wait for GPUs."
)
_WINDOWS = click.option(
    "--windows",
    type=Ascending(MAX_WINDOWS, TICK),
    help="Times within which arrivals are foretold, ascending.  [default: "
    f"{','.join(map(as_typed, WINDOWS))}, or the model's]",
)


@forecast.command()
@_LOG
@_POOLS
@click.option(
    "--until",
    type=Seconds(),
    help="Learn from the jobs submitted by this second of the log.  [default: three quarters of "
    "its time; with --compare: all]",
)
@_WINDOWS
@click.option(
    "--compare",
    "old",
    type=Path,
    metavar="MODEL_DIR",
    help="Write the new model only if it is better than this one on the log's newest days.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the scores as JSON.")
@click.option("--out", type=Path, required=True, help="Folder for the model.")
def train(
    log: Path, pools: Path | None, until: float | None, windows: tuple[float, ...] | None,
    old: Path | None, as_json: bool, out: Path,
) -> None:  # fmt: skip
    """Learn from a job log what will arrive in its pools (§5.4.1).

    Writes OUT/manifest.json and the trees of each window, all or none.
    """
    from replay import forecast_train as learning  # noqa: PLC0415  numpy takes its time
    from replay.forecast_run_times import last_quarter  # noqa: PLC0415  as above

    learning.require_xgboost()
    _refuse_folder(out, learning.MANIFEST)
    before = None if old is None else learning.read_model(old, windows)
    trace, table = _read(log, pools)
    if until is None:
        until = last_quarter(trace) if before is None else inf
    windows = windows or (WINDOWS if before is None else before.manifest.windows)
    click.echo("looking at every tick", err=True)
    rows = learning.observe(trace, table, until=until, windows=windows, name=str(log))
    checksum = learning.checksum(trace, rows.end)
    click.echo("learning", err=True)
    compared = None
    if before is None:
        model = learning.learn(rows, until=rows.end, trace_sha256=checksum, name=str(log))
    else:
        days = _newest(log, rows, before) / DAY
        compared = learning.compare(rows, before, days=days, trace_sha256=checksum)
        model = compared.new
    promoted = compared is None or compared.better
    if promoted:
        learning.write_model(out, model, _given(log, pools))
    if as_json:
        facts = _facts(model) if compared is None else _compared_facts(compared)
        click.echo(msgspec.json.format(msgspec.json.encode(facts), indent=1))
        return
    _say(trace)
    if compared is None:
        _show_model(model)
    else:
        _show_compared(compared)
    click.echo(f"model: {out}" if promoted else "the old model stays; nothing was written")


def _refuse_folder(out: Path, manifest: str) -> None:
    """Raise UserError for a folder that holds anything but a model."""
    if not out.is_dir():
        return
    names = sorted(path.name for path in out.iterdir())
    strange = [name for name in names if name != manifest and not name.endswith(".ubj")]
    if strange or (names and manifest not in names):
        raise UserError(
            f"{out}: holds {(strange or names)[0]!r}, which is of no model; give another --out"
        )


def _read(log: Path, pools: Path | None) -> tuple[Trace, PoolTable | None]:
    """A log without the jobs that its pools cannot run. Raises UserError where none is left."""
    table = None if pools is None else read_pools(pools)
    trace = read_trace(log)
    if table is not None:
        trace = playable(trace, table)
    if not trace.arrivals:
        raise UserError(
            f"{log}: no job can run in the pools of {pools}; give the pools file that belongs to it"
        )
    return trace, table


def _given(*paths: Path | None) -> list[Path]:
    return [path for path in paths if path is not None]


def _newest(log: Path, rows: Rows, old: Model) -> float:
    """Seconds at the log's end that the old model has not learned from, of `NEWEST`.

    Raises UserError where they are too few to judge by.
    """
    newest = min(NEWEST, rows.end - old.manifest.until)
    least = rows.windows[-1] + LEAST_NEWEST
    if newest < least:
        raise UserError(
            f"{log}: ends {duration(max(0.0, newest))} after what the old model has learned from; "
            f"give --compare a log that goes on for {duration(least)} at least"
        )
    return newest


def _facts(model: Model) -> dict[str, Any]:
    """What was learned from, and how it did on the days held out, by window."""
    manifest = model.manifest
    return {
        "since_s": manifest.since,
        "until_s": manifest.until,
        "windows": [
            {"window_s": window, "threshold": of.threshold, **_scores(of.scores)}
            for window, of in zip(manifest.windows, manifest.learned, strict=True)
        ],
    }


def _scores(scores: Scores) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.to_builtins(scores)
    return found


def _compared_facts(compared: Comparison) -> dict[str, Any]:
    models = {"new": compared.of_new, "old": compared.of_old}
    return {
        "promoted": compared.better,
        **{
            name: [
                {"window_s": of.window, **_scores(of.scores), "load_loss": of.pinball}
                for of in judged
            ]
            for name, judged in models.items()
        },
    }


def _say(trace: Trace) -> None:
    """What of the log was left out."""
    for reason, count in sorted(trace.dropped.items()):
        click.echo(f"dropped: {counted(count, 'job')} {reason}")
    for note in trace.notes:
        click.echo(f"note: {note}")


HEADER = ["precision", "recall", "F", "% with arrivals", "predictions"]


def _cells(scores: Scores) -> list[str]:
    return [
        *(decimal(value) for value in (scores.precision, scores.recall, scores.f)),
        decimal(100 * scores.positives / max(1, scores.n), 1),
        f"{scores.n:,}",
    ]


def _show_model(model: Model) -> None:
    manifest = model.manifest
    rows = [
        [as_typed(window), *_cells(of.scores)]
        for window, of in zip(manifest.windows, manifest.learned, strict=True)
    ]
    span = duration(manifest.until - manifest.since)
    show_table(f"Learned from {span}; scores on its last part", ["within", *HEADER], rows)
    for window, of in zip(manifest.windows, manifest.learned, strict=True):
        if not of.scores.positives:
            click.echo(
                f"note: nothing arrived within {as_typed(window)} in the days held out, so that "
                "arrivals will always be expected"
            )


def _show_compared(compared: Comparison) -> None:
    rows = [
        [as_typed(of.window), name, *_cells(of.scores), decimal(of.pinball, 3)]
        for judged in zip(compared.of_new, compared.of_old, strict=True)
        for name, of in zip(("new", "old"), judged, strict=True)
    ]
    show_table("On the newest days", ["within", "model", *HEADER, "load's loss"], rows)
