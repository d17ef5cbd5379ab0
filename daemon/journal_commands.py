"""`sia journal`: what a daemon has written, as a log to replay, and what others would have done."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import msgspec

from daemon.asking import moment
from daemon.config_database import DatabaseUrl
from daemon.config_read import find_config, peek
from replay.options import Labels
from sia.console.errors import UserError
from sia.console.tables import show_table
from sia.console.text import Seconds
from sia.wording import NONE, as_typed, counted, decimal, duration, percent

MONTH = "30d"

STATE = click.option("--state", type=Path, help="The daemon's state folder.")
CONFIG = click.option(
    "--config", type=Path, help="Its configuration.  [default: ./sia.toml, else its own folder]"
)
OUT = click.option("--out", type=Path, required=True, help="Folder for the results.")
JSON = click.option("--json", "as_json", is_flag=True, help="Print the numbers as JSON.")


@click.group()
def journal() -> None:
    """Read a daemon's journal, whether it runs or not; nothing of it is changed."""


def _database(state: Path | None, config: Path | None) -> Path | DatabaseUrl:
    """The database that is meant. Raises UserError."""
    if state is not None and config is not None:
        raise UserError("--state and --config: name one of them")
    return state / "sia.db" if state is not None else peek(find_config(config)).database


@journal.command("backup")
@STATE
@CONFIG
@click.argument("file", type=Path)
def backup_(state: Path | None, config: Path | None, file: Path) -> None:
    """Copy a journal, as it is at this moment, to a new FILE that only you can read.

    The daemon may run. In the place of its database, while it does not, it is that moment again.
    """
    from daemon.journal_copy import backup  # noqa: PLC0415  help needs none of it

    database = _database(state, config)
    if not isinstance(database, Path):
        raise UserError(f"{database}: is copied by PostgreSQL's own pg_dump --schema=sia")
    try:
        backup(database, file)
    except OSError as error:
        raise UserError(f"{file}: {error.strerror}; give a file in another folder") from None
    click.echo(f"{file}: {decimal(file.stat().st_size / 2**20, 1)} MB")


def _written(state: Path | None, config: Path | None, out: Path, *, alive: bool) -> Any:
    """Export a database to files; what there is to say of it."""
    from daemon.journal_copy import opened  # noqa: PLC0415  help and other commands need none of it
    from daemon.journal_export import export  # noqa: PLC0415
    from daemon.journal_files import write_export  # noqa: PLC0415

    database = _database(state, config)
    if not out.parent.is_dir():
        raise UserError(f"{out.parent}: there is no such folder; make it, or give another --out")
    with opened(database, out.parent) as book:
        made = export(book, alive=alive)
    return write_export(made, out, [database] if isinstance(database, Path) else [])


@journal.command("export")
@STATE
@CONFIG
@click.option("--ended", is_flag=True, help="Leave jobs out that wait or run.")
@OUT
@JSON
def export_(state: Path | None, config: Path | None, ended: bool, out: Path, as_json: bool) -> None:
    """Write a journal as a job log and a pools file for sia replay, and what became of the jobs.

    Writes OUT/trace.csv, pools.csv, export.json, and real/jobs.csv and real/loans.csv as a policy's
    folder of a replay has them. A job that waits or runs has the run time that is thought.
    """
    report = _written(state, config, out, alive=not ended)
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(report), indent=1))
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
        click.echo(f"counted: {number:,} {what}")
    for note in report.notes:
        click.echo(f"note: {note}")


@journal.command("replay")
@STATE
@CONFIG
@click.option("--policy", "policies", type=Labels(), required=True,
              help="Policies, as sia replay has them, separated by commas.")  # fmt: skip
@click.option("--forecast", default="peaks", show_default=True, help="As of sia replay.")
@click.option("--durations", default="survival", show_default=True, help="As of sia replay.")
@click.option("--since", type=Seconds(), default=MONTH, show_default=True,
              help="Measure what was submitted so long before the end; all that is known before "
                   "is replayed too.")  # fmt: skip
@OUT
@JSON
def replay_(
    state: Path | None, config: Path | None, policies: list[str], forecast: str, durations: str,
    since: float, out: Path, as_json: bool,
) -> None:  # fmt: skip
    """Say what other policies would have done with what really happened.

    As sia journal export without what is not over, then sia replay with the daemon's windows, into
    the same folder; beside that, as they were and would have been, the waits (OUT/waits.svg).
    """
    from daemon.journal_answer import answer, newest  # noqa: PLC0415  numpy takes its time

    report = _written(state, config, out, alive=False)
    warmup = max(0.0, report.end - since - report.begin)
    if newest(out) < warmup:
        raise UserError(f"--since {as_typed(since)}: nothing came so late; give a longer time")
    _replayed(out, policies, forecast, durations, report, warmup)
    found = answer(out, out / "real", policies, warmup)
    if as_json:
        said = {"export": report, "outcomes": found}
        click.echo(msgspec.json.format(msgspec.json.encode(said), indent=1))
        return
    _tell(report)
    _show(found)
    click.echo(f"results: {out / 'waits.svg'}, {out / 'summary.json'}")


def _replayed(
    out: Path, policies: list[str], forecast: str, durations: str, report: Any, warmup: float
) -> None:
    """Have `sia replay` do it; its tables are told by `summary.json`."""
    from replay.commands import replay  # noqa: PLC0415

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
        "outcome", "jobs", "mean wait", "p50", "p95", "mean JCT", "geo JCT was / would be",
        "% sooner", "% later",
    ]  # fmt: skip
    rows = []
    for name, outcome in found.items():
        times = (outcome.wait_mean, outcome.wait_p50, outcome.wait_p95, outcome.jct_mean)
        rows.append([name, f"{outcome.jobs:,}", *map(duration, times), *_against(outcome.against)])
    show_table("What other policies would have done", header, rows)


def _against(comparison: dict[str, Any] | None) -> list[str]:
    """The ratio of completion times with its interval, and who would have ended sooner, later."""
    if comparison is None:
        return [NONE] * 3
    measures = comparison["measures"]
    ratio = measures["geomean_ratio"]
    text = decimal(ratio["value"], 3)
    if ratio["low"] is not None:
        text += f" ({decimal(ratio['low'], 3)} to {decimal(ratio['high'], 3)})"
    # A is what was: jobs that A has later, the policy would have ended sooner.
    sooner, later = (measures[key]["value"] for key in ("later_pct", "sooner_pct"))
    return [text, percent(sooner), percent(later)]
