"""`sia forecast`."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING

import click

from replay.cli.options import Ascending
from replay.cli.trace_profile import name_of
from replay.forecast.show import (
    compared_facts,
    model_facts,
    show_compared,
    show_evaluation,
    show_left_out,
    show_model,
)
from replay.logs.read import read_pools, read_trace
from replay.logs.trace import PoolTable, Trace, checksum_of_jobs, playable
from replay.run.output import whole_folder
from sia.console.as_json import json_option, print_json
from sia.console.errors import UserError
from sia.console.groups import Group
from sia.console.text import Seconds
from sia.limits import LONGEST_WINDOW, MAX_WINDOWS, TICK, WINDOWS
from sia.wording import DAY, WEEK, as_typed, duration

if TYPE_CHECKING:
    from predictors.learning.model import Model

NEWEST = WEEK
"""Length of the test data at the end of the log, in seconds: every day of the week once."""

LEAST_NEWEST = DAY
"""Shortest test data in seconds, in addition to the longest window: one whole day."""


@click.group(cls=Group)
def forecast() -> None:
    """Train and evaluate forecasts on a job log."""


_LOG = click.option(
    "--trace", "log", type=Path, required=True, help="Job log: CSV, .csv.gz or Parquet."
)
_POOLS = click.option(
    "--pools", type=Path, help="Pools file. Without it, jobs are assumed never to wait for GPUs."
)
_WINDOWS = click.option(
    "--windows",
    type=Ascending(MAX_WINDOWS, TICK, LONGEST_WINDOW),
    help="Windows to forecast arrivals for, ascending.  [default: "
    f"{','.join(map(as_typed, WINDOWS))}, or the model's]",
)


@forecast.command()
@_LOG
@_POOLS
@click.option(
    "--until",
    type=Seconds(),
    help="Train on jobs submitted up to this time of the log.  [default: three quarters of it; "
    "with --compare: all]",
)
@click.option(
    "--from",
    "since",
    type=Seconds(),
    help="Train on jobs submitted from this time of the log on.  [default: all; with --compare: "
    "the 60 days before the test days]",
)
@_WINDOWS
@click.option(
    "--compare",
    "old",
    type=Path,
    metavar="MODEL_DIR",
    help="Write the new model only if it beats this one on the newest days of the log.",
)
@json_option("Print the scores as JSON.")
@click.option("--out", type=Path, required=True, help="Folder for the model.")
def train(
    log: Path, pools: Path | None, until: float | None, since: float | None,
    windows: tuple[float, ...] | None, old: Path | None, as_json: bool, out: Path,
) -> None:  # fmt: skip
    """Train a model that forecasts the arrivals in each pool (§5.4.1).

    Writes OUT/manifest.json and the trees of each window, all or none.
    """
    from replay.forecast import model_folder as kept  # noqa: PLC0415  numpy takes its time
    from replay.forecast import train as learning  # noqa: PLC0415  as above
    from replay.forecast.run_times import last_quarter  # noqa: PLC0415  as above

    kept.require_xgboost()
    kept.refuse_folder(out)
    before = None if old is None else kept.read_model(old, windows, option="--compare")
    windows = windows or (WINDOWS if before is None else before.manifest.windows)
    learning.refuse_windows(windows)
    whole, trace, table = _read(log, pools)
    if until is None:
        until = last_quarter(trace) if before is None else inf
    held_from = min(until, trace.arrivals[-1].job.submit)
    if before is not None:
        held_from -= _newest(log, held_from, windows, before)
    _refuse_from(trace, since, held_from)
    click.echo("training", err=True)
    rows = learning.observe(whole, table, until=until, windows=windows, name=str(log))
    if note := learning.thinned(rows):
        click.echo(f"note: {note}", err=True)
    compared = None
    if before is None:
        since = -inf if since is None else since
        checksum = checksum_of_jobs(whole, rows.end)
        model = learning.learn(
            rows, until=rows.end, trace_sha256=checksum, since=since, name=str(log)
        )
    else:
        checksum = checksum_of_jobs(whole, held_from)
        compared = learning.compare(
            rows, before, held_from=held_from, trace_sha256=checksum, since=since
        )
        model = compared.new
    promoted = compared is None or compared.better
    if promoted:
        kept.write_model(out, model, _given(log, pools))
    if as_json:
        facts = model_facts(model) if compared is None else compared_facts(compared)
        print_json(facts)
        return
    show_left_out(trace)
    if compared is None:
        show_model(model)
    else:
        show_compared(compared)
    if promoted:
        click.echo(f"model: {out}")


@forecast.command()
@_LOG
@_POOLS
@click.option(
    "--model",
    "model_dir",
    type=Path,
    metavar="MODEL_DIR",
    help="Evaluate this model of arrivals instead of training one.",
)
@click.option(
    "--since",
    type=Seconds(),
    help="Test on jobs submitted from this time of the log on, train on those before.  [default: "
    "three quarters of the log]",
)
@_WINDOWS
@click.option(
    "--state",
    help="Test run times only on jobs that ended in this state, like Google's FINISH; other jobs "
    "count as a lower bound.",
)
@click.option(
    "--only",
    type=click.Choice(["arrivals", "run-times"]),
    help="Evaluate only one kind of forecast.",
)
@json_option("Print all numbers as JSON.")
@click.option("--out", type=Path, required=True, help="Folder for the results.")
def evaluate(
    log: Path, pools: Path | None, model_dir: Path | None, since: float | None,
    windows: tuple[float, ...] | None, state: str | None, only: str | None, as_json: bool,
    out: Path,
) -> None:  # fmt: skip
    """Evaluate forecasts on a job log, split by time (§5.4, appendix B; JamaisVu §6.2).

    Writes OUT/arrivals.json, OUT/run_times.json, OUT/report.html and OUT/figures.
    """
    from replay.forecast.evaluate import Split, evaluate_all  # noqa: PLC0415  numpy takes its time
    from replay.forecast.model_folder import read_model, require_xgboost  # noqa: PLC0415  as above
    from replay.forecast.report import PICTURES, write_results  # noqa: PLC0415  as above
    from replay.forecast.run_times import last_quarter  # noqa: PLC0415  as above
    from replay.forecast.train import refuse_windows  # noqa: PLC0415  as above

    asked = [what for what in ("arrivals", "run-times") if only in (None, what)]
    if "arrivals" in asked:
        require_xgboost()
        refuse_windows(windows or ())
    model = None
    if model_dir is not None:
        model = read_model(model_dir, windows, option="--model")
    whole, trace, table = _read(log, pools)
    since = last_quarter(trace) if since is None else since
    windows = windows or (WINDOWS if model is None else model.manifest.windows)
    split = Split(str(log), name_of(log), whole, trace, table, since, windows, state)
    files = {"arrivals": "arrivals.json", "run-times": "run_times.json"}
    planned = ["report.html", *(files[what] for what in asked)]
    stale = [*files.values()]
    drawn = [f"{name}.svg" for name in PICTURES]
    inputs = _given(log, pools)
    with (
        whole_folder(out, inputs, stale, planned) as folder,
        whole_folder(out / "figures", inputs, drawn, drawn) as figures,
    ):
        found = evaluate_all(split, model, asked, _tell)
        click.echo("drawing the report", err=True)
        write_results(folder, figures, found)
    if as_json:
        print_json(found.facts())
        return
    show_left_out(trace)
    show_evaluation(found)
    click.echo(f"results: {out / 'report.html'}")


def _tell(what: str) -> None:
    click.echo(what, err=True)


def _read(log: Path, pools: Path | None) -> tuple[Trace, Trace, PoolTable | None]:
    """Return the log as read, the jobs that its pools can run, and the pools.

    Raises UserError if no job can run.
    """
    table = None if pools is None else read_pools(pools)
    whole = read_trace(log)
    trace = whole if table is None else playable(whole, table)
    if not trace.arrivals:
        raise UserError(
            f"{log}: no job can run in the pools of {pools}; give the pools file that belongs to it"
        )
    return whole, trace, table


def _refuse_from(trace: Trace, since: float | None, end: float) -> None:
    """Raise UserError if no training data is left between `since` and `end`."""
    if since is not None and since >= end:
        first, last = trace.arrivals[0].job.submit, trace.arrivals[-1].job.submit
        raise UserError(
            f"--from {as_typed(since)}: leaves nothing to train on; jobs were submitted from "
            f"second {first:,.0f} to {last:,.0f}, and training ends at second {end:,.0f}; give an "
            "earlier time"
        )


def _given(*paths: Path | None) -> list[Path]:
    return [path for path in paths if path is not None]


def _newest(log: Path, end: float, windows: Sequence[float], old: Model) -> float:
    """Return the length of the test data, in seconds before `end`.

    The old model was not trained on it. Raises UserError if it is too short.
    """
    newest = min(NEWEST, end - old.manifest.until)
    least = windows[-1] + LEAST_NEWEST
    if newest < least:
        raise UserError(
            f"{log}: ends {duration(max(0.0, newest))} after the old model's training data; "
            f"--compare needs a log that continues for at least {duration(least)}"
        )
    return newest
