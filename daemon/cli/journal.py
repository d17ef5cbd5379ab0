"""`sia journal`: back up a daemon's journal, import and export job logs, and replay them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from time import time
from typing import Any

import click

from daemon.cli.common import moment, pairs_of
from daemon.config.config import FIRST_NAME
from daemon.config.database import DatabaseUrl
from daemon.config.read import find_config, peek
from replay.cli.options import Labels, published_log
from replay.logs.importers import read_log
from sia.console.as_json import json_option, print_json
from sia.console.errors import UserError
from sia.console.groups import Group
from sia.console.tables import show_table
from sia.console.terminal import printable
from sia.console.text import Seconds
from sia.wording import NONE, as_typed, counted, decimal, duration, percent

MONTH = "30d"

DAMAGED = 1
"""Exit code for a damaged journal."""

MOMENTS = ("%Y-%m-%dT%H:%M:%S", "%Y-%m-%d %H:%M:%S", "%Y-%m-%d")

STATE = click.option("--state", type=Path, help="State folder of the daemon.")
CONFIG = click.option(
    "--config",
    type=Path,
    help="Configuration of the daemon.  [default: ./sia.toml, else the built-in one]",
)
OUT = click.option("--out", type=Path, required=True, help="Folder for the results.")
JSON = click.option("--json", "as_json", is_flag=True, help="Print the numbers as JSON.")


@click.group(cls=Group)
def journal() -> None:
    """Back up, verify, import, export or replay the journal of a daemon.

    The daemon may be running, except for import and accept-loss, which change the journal.
    """


def _database(state: Path | None, config: Path | None) -> Path | DatabaseUrl:
    """Return the database that the options name. Raises UserError."""
    if state is not None and config is not None:
        raise UserError("--state and --config exclude each other; give one of them")
    return state / "sia.db" if state is not None else peek(find_config(config)).database


@journal.command("backup")
@STATE
@CONFIG
@click.argument("file", type=Path)
@json_option()
def backup_(state: Path | None, config: Path | None, file: Path, as_json: bool) -> None:
    """Back up a journal to a new FILE that only you can read.

    The daemon may be running. To restore, stop the daemon and
    replace its database by FILE.
    """
    from daemon.export.copy import backup  # noqa: PLC0415  help needs none of it

    database = _database(state, config)
    if not isinstance(database, Path):
        raise UserError(f"{database}: back up PostgreSQL with pg_dump --schema=sia")
    try:
        backup(database, file)
    except OSError as error:
        raise UserError(f"{file}: {error.strerror}; choose a file in another folder") from None
    if as_json:
        print_json({"file": str(file), "bytes": file.stat().st_size})
        return
    click.echo(f"{file}: {decimal(file.stat().st_size / 2**20, 1)} MB")


@journal.command("verify")
@STATE
@CONFIG
@json_option()
def verify_(state: Path | None, config: Path | None, as_json: bool) -> int:
    """Check that a journal is whole.

    The command checks tables, steps, snapshots, audit and high-water mark. The daemon may be
    running. Exit code 0: the journal is whole; 1: it is damaged; 2: nothing was
    checked.
    """
    from daemon.export.verify import verify  # noqa: PLC0415  help needs none of it

    report = verify(_database(state, config))
    if as_json:
        print_json(report)
        return 0 if report.ok else DAMAGED
    for problem in report.wrong:
        click.echo(f"sia: {printable(f'{report.database}: {problem}')}", err=True)
    for loss in report.losses:
        click.echo(f"loss accepted: audit {printable(loss)}")
    if not report.ok:
        click.echo(
            "sia: docs/operate/runbook.md says how to continue (Lost journal records)", err=True
        )
        return DAMAGED
    mark = "no high-water mark" if report.acknowledged is None else "none acknowledged is missing"
    click.echo(
        f"{report.database}: ok, ends at step {report.steps}, {mark}; "
        f"{counted(report.checked, 'step')} and {counted(report.audit_records, 'audit record')} "
        "checked"
    )
    return 0


@journal.command("accept-loss")
@STATE
@CONFIG
@click.option("--yes", is_flag=True, help="Accept the loss; without it, only show the loss.")
def accept_loss_(state: Path | None, config: Path | None, yes: bool) -> int:
    """Accept that a journal lost steps, so that the daemon starts again.

    The daemon must not be running. The command copies the damaged files to a folder next to them,
    and adds a record of the loss to the audit.
    """
    from daemon.export.loss import accept_loss, loss_in  # noqa: PLC0415  help needs none of it

    database = _database(state, config)
    if not isinstance(database, Path):
        raise UserError(f"{database}: PostgreSQL owns its durability; restore it from a backup")
    lost = loss_in(database)
    if not lost:
        click.echo(f"{database}: nothing that was acknowledged is lost")
        return 0
    if not yes:
        click.echo(f"sia: {printable(lost)}", err=True)
        click.echo("sia: nothing was changed; add --yes to accept the loss", err=True)
        return DAMAGED
    done = accept_loss(database)
    assert done is not None, "it was there a moment ago"
    click.echo(
        f"{database}: continues from step {done.last}; the damaged files are in {done.evidence}"
    )
    return 0


def written(state: Path | None, config: Path | None, out: Path, *, alive: bool) -> Any:
    """Export a database to files, and return the report."""
    from daemon.export.copy import opened  # noqa: PLC0415  help and other commands need none of it
    from daemon.export.files import write_export  # noqa: PLC0415
    from daemon.export.job_log import export  # noqa: PLC0415

    database = _database(state, config)
    if not out.parent.is_dir():
        raise UserError(f"{out.parent}: no such folder; create it, or choose another --out")
    with opened(database, out.parent) as book:
        made = export(book, alive=alive)
    return write_export(made, out, [database] if isinstance(database, Path) else [])


@journal.command("import")
@published_log
@click.option(
    "--map",
    "renamed",
    multiple=True,
    metavar="LOG_POOL=POOL",
    help="The daemon's pool for a pool of the log with another name; repeatable.",
)
@click.option(
    "--began",
    type=click.DateTime(MOMENTS),
    metavar="TIME",
    help="When second 0 of the log was, in local time, like 2026-03-01T09:00:00.  "
    "[default: chosen so that the log ends now, or in the last week]",
)
@click.option(
    "--config",
    type=Path,
    help="Configuration of the daemon, which names its pools.  [default: ./sia.toml]",
)
@click.option(
    "--skip-invalid",
    is_flag=True,
    help="Leave out invalid rows, and count them; formats canonical and slurm only.",
)
@json_option()
def import_(
    log: Path, second: Path | None, form: str, renamed: tuple[str, ...], began: datetime | None,
    config: Path | None, skip_invalid: bool, as_json: bool,
) -> None:  # fmt: skip
    """Import a job LOG as history for forecasts and estimates.

    LOG is a job log, or has another format of sia trace convert, such as the
    output of sacct (--format slurm). The daemon must not be running, except
    on PostgreSQL; it reads the history when it starts. The command may be
    repeated: jobs that were imported before are left out.
    """
    from daemon.config.read import read_config  # noqa: PLC0415  help needs none of it
    from daemon.export.job_import import import_log  # noqa: PLC0415

    found = find_config(config)
    if found is None:
        raise UserError(f"no {FIRST_NAME} here: name the daemon's configuration with --config")
    daemon = read_config(found)
    trace, _ = read_log(log, second, form, skip_invalid=skip_invalid)
    report = import_log(
        daemon.database, trace, {pool.name: pool.quota for pool in daemon.pools},
        pairs_of(renamed, "--map"), None if began is None else began.timestamp(), time(),
    )  # fmt: skip
    if as_json:
        print_json(report)
        return
    click.echo(
        f"{report.database}: {counted(report.jobs, 'job')} added, "
        f"{counted(report.stored, 'imported job')} now"
    )
    if report.jobs:
        shifted = f", shifted by {counted(report.weeks, 'week')}" if report.weeks else ""
        click.echo(f"from {moment(report.begin)} to {moment(report.end)}{shifted}")
    for reason, count in report.left_out.items():
        click.echo(f"left out: {counted(count, 'job')}: {reason}")
    for note in report.notes:
        click.echo(f"note: {note}")


@journal.command("export")
@STATE
@CONFIG
@click.option("--ended", is_flag=True, help="Leave out pending and running jobs.")
@OUT
@JSON
def export_(state: Path | None, config: Path | None, ended: bool, out: Path, as_json: bool) -> None:
    """Export a journal as a job log and a pools file for sia replay.

    Writes OUT/trace.csv, pools.csv and export.json, and the real schedule as OUT/real/jobs.csv and
    loans.csv. A job that has not ended has its estimated run time.
    """
    report = written(state, config, out, alive=not ended)
    if as_json:
        print_json(report)
        return
    _tell(report)
    click.echo(f"results: {out / 'trace.csv'}, {out / 'pools.csv'}")


def _tell(report: Any) -> None:
    click.echo(
        f"{counted(report.jobs, 'row')} of jobs from {moment(report.begin)} to "
        f"{moment(report.end)}; {counted(report.ended, 'run')} ended, "
        f"{report.gpu_hours:,.1f} GPU-hours"
    )
    for what, number in report.counted.items():
        click.echo(f"counted: {what} ({number:,})")
    for note in report.notes:
        click.echo(f"note: {note}")


@journal.command("replay")
@STATE
@CONFIG
@click.option("--policy", "policies", type=Labels(), required=True,
              help="Policies of sia replay, separated by commas.")  # fmt: skip
@click.option("--forecast", default="peaks", show_default=True,
              help="Forecast of new load, as for sia replay.")  # fmt: skip
@click.option("--durations", default="survival", show_default=True,
              help="Estimates of run times, as for sia replay.")  # fmt: skip
@click.option("--since", type=Seconds(), default=MONTH, show_default=True,
              help="Measure only jobs submitted in this time before the end; earlier jobs are "
                   "replayed as a warm-up.")  # fmt: skip
@OUT
@JSON
def replay_(
    state: Path | None, config: Path | None, policies: list[str], forecast: str, durations: str,
    since: float, out: Path, as_json: bool,
) -> None:  # fmt: skip
    """Compare the real schedule with that of other policies.

    Exports the ended jobs, replays them with the windows of the daemon into the same folder, and
    draws the real and the simulated waiting times (OUT/waits.svg).
    """
    from daemon.export.replay import answer, newest  # noqa: PLC0415  numpy takes its time

    report = written(state, config, out, alive=False)
    warmup = max(0.0, report.end - since - report.begin)
    if newest(out) < warmup:
        raise UserError(
            f"--since {as_typed(since)}: no job was submitted in this time; give a longer one"
        )
    _replayed(out, policies, forecast, durations, report, warmup)
    found = answer(out, out / "real", policies, warmup)
    if as_json:
        result = {"export": report, "outcomes": found}
        print_json(result)
        return
    _tell(report)
    _show(found)
    click.echo(f"results: {out / 'waits.svg'}, {out / 'summary.json'}")


def _replayed(
    out: Path, policies: list[str], forecast: str, durations: str, report: Any, warmup: float
) -> None:
    """Run `sia replay` without its tables."""
    from replay.cli.replay import replay  # noqa: PLC0415

    asked = ["--trace", str(out / "trace.csv"), "--pools", str(out / "pools.csv"), "--no-report"]
    asked += ["--policy", ",".join(policies), "--forecast", forecast, "--durations", durations]
    asked += ["--windows", ",".join(map(as_typed, report.windows)), "--warmup", as_typed(warmup)]
    _quietly(lambda: replay.main([*asked, "--out", str(out)], standalone_mode=False))


def _quietly(do: Callable[[], object]) -> None:
    from contextlib import redirect_stdout  # noqa: PLC0415
    from io import StringIO  # noqa: PLC0415

    with redirect_stdout(StringIO()):
        do()


def _show(found: dict[str, Any]) -> None:
    header = [
        "outcome", "jobs", "mean wait", "p50", "p95", "mean JCT", "geo JCT real / simulated",
        "% sooner", "% later",
    ]  # fmt: skip
    rows = []
    for name, outcome in found.items():
        times = (outcome.wait_mean, outcome.wait_p50, outcome.wait_p95, outcome.jct_mean)
        rows.append([name, f"{outcome.jobs:,}", *map(duration, times), *_against(outcome.against)])
    show_table("Real schedule and simulated policies", header, rows)


def _against(comparison: dict[str, Any] | None) -> list[str]:
    """Return the ratio of completion times with its interval, and shares of earlier, later jobs."""
    if comparison is None:
        return [NONE] * 3
    measures = comparison["measures"]
    ratio = measures["geomean_ratio"]
    text = decimal(ratio["value"], 3)
    if ratio["low"] is not None:
        text += f" ({decimal(ratio['low'], 3)} to {decimal(ratio['high'], 3)})"
    # A is the real schedule: a job that is later in A ends earlier under the policy.
    sooner, later = (measures[key]["value"] for key in ("later_pct", "sooner_pct"))
    return [text, percent(sooner), percent(later)]
