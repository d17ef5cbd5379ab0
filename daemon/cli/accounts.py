"""`sia account, ledger, statement`: what a pool gained and lost by sharing."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import click
import msgspec

from daemon.cli.client import Client, at
from daemon.cli.common import asks, moment, say
from daemon.wire.accounts import Statement
from sia.console.errors import UserError
from sia.console.tables import show_table
from sia.console.terminal import printable
from sia.wording import NONE, counted, decimal, duration

PAGE = 1000
"""Maximum number of rows in one request."""


@click.command()
@click.argument("pool")
@asks
def account(client: Client, pool: str, as_json: bool) -> None:
    """Show what a pool gained and lost by sharing.

    The account compares each ended job of POOL with its virtual start: when it would have started
    if the pool shared nothing.
    """
    answer = client.get(f"/v1/pools/{at(pool)}/account")
    if as_json:
        say(answer)
        return
    known, unknown = counted(answer["jobs"], "job"), answer["unknown"]
    _line("since", moment(answer["since"]))
    _line("compared", f"{known}; {unknown:,} ended jobs are not compared yet" if unknown else known)
    _lines(answer)
    _late(answer)
    if answer["turns"] is not None:
        _turns(answer["turns"])
    if answer["renewed"]:
        _line("restarted", f"{counted(answer['renewed'], 'time')}, after an internal error")


def _lines(sums: dict[str, Any]) -> None:
    """Print the sums that accounts and statements share."""
    share = sums["slowed_pct"]
    late = "" if share is None else f" ({decimal(share, 3)} %), {decimal(sums['later_hours'])} h"
    _line("slowed", f"{counted(sums['slowed'], 'job')}{late}")
    _line("gained", f"{decimal(sums['sooner_hours'])} h")
    if sums["forgotten"]:
        _line("not comparable", counted(sums["forgotten"], "job"))
    if sums["never"]:
        _line("too wide alone", counted(sums["never"], "job"))
    _line("speed-up", decimal(sums["speed_up"], 3))
    _line("lent", f"{decimal(sums['lent_gpu_hours'])} GPU-hours")
    _line("borrowed", f"{decimal(sums['borrowed_gpu_hours'])} GPU-hours")


def _turns(turns: dict[str, Any]) -> None:
    """Print the turns of a pool's jobs, and what they did as guests."""
    late = f"{turns['late_turns']:,} late"
    if turns["late_turns"]:
        late += f", by {duration(turns['latest_s'])} at most"
    if turns["turns"]:
        _line("turns", f"{turns['turns']:,}, {late}")
    stops = counted(turns["stops"], "stop")
    wasted = f"{decimal(turns['wasted_gpu_s'] / 3600)} GPU-hours of their work lost"
    _line("guests", f"{counted(turns['guests'], 'start')}; {stops}, {wasted}")


def _late(answer: dict[str, Any]) -> None:
    """Print how many jobs are late now; the sums count them once they have ended."""
    waiting, running = answer["late_waiting"], answer["late_running"]
    text = counted(waiting + running, "job")
    if waiting or running:
        text += f" past their virtual start ({waiting:,} pending, {running:,} running)"
    _line("late now", text)


def _line(name: str, text: str) -> None:
    click.echo(f"{name:18}{printable(text)}")


@click.command()
@click.argument("pool")
@click.option(
    "--limit",
    type=click.IntRange(1),
    default=50,
    show_default=True,
    help="Maximum number of loans to list.",
)
@asks
def ledger(client: Client, pool: str, limit: int, as_json: bool) -> None:
    """List the loans of a pool, newest first.

    Loans are numbered across all pools; missing numbers belong to loans of other pools.
    """
    path = f"/v1/pools/{at(pool)}/ledger"
    answer = client.get(path, limit=min(PAGE, limit))
    rows, before = answer["loans"], answer["next"]
    while before is not None and len(rows) < limit:
        page = client.get(path, limit=min(PAGE, limit - len(rows)), before=before)
        rows, before = rows + page["loans"], page["next"]
    if as_json:
        say({"loans": rows, "open": answer["open"], "next": before})
        return
    header = ["row", "lender", "borrower", "job", "GPUs", "from", "until", "GPU-hours"]
    shown = [
        [
            str(row.get("number") or NONE), row["lender"], row["borrower"],
            row.get("job") or NONE, f"{row['gpus']:,}", moment(row["start"]),
            moment(row.get("end")), decimal(row["gpu_hours"], 4),
        ]
        for row in (*answer["open"], *rows)
    ]  # fmt: skip
    show_table(f"Loans of {pool}", header, shown, ("lender", "borrower", "job", "from", "until"))


@click.command()
@click.argument("pool")
@click.option(
    "--month", type=click.DateTime(["%Y-%m"]), help="Month in UTC.  [default: the current one]"
)
@click.option(
    "--html",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write an HTML page to this file.",
)
@asks
def statement(
    client: Client, pool: str, month: datetime | None, html: Path | None, as_json: bool
) -> None:
    """Show the monthly statement of a pool.

    With --html or --json the statement lists every loan and every job, so that it can be checked.
    """
    named = None if month is None else f"{month:%Y-%m}"
    answer = client.get(f"/v1/pools/{at(pool)}/statement", month=named)
    if html is not None:
        from daemon.doors.views.statements import statement_page  # noqa: PLC0415  loads slowly

        try:
            html.write_text(statement_page(msgspec.convert(answer, Statement)), encoding="utf-8")
        except OSError as error:
            raise UserError(f"{html}: {error.strerror}; choose another file with --html") from error
    if as_json:
        say(answer)
        return
    _line("pool", f"{answer['pool']}, {answer['month']}")
    _line("opened", moment(answer["since"]))
    _line("compared", counted(answer["totals"]["jobs"], "job"))
    _lines(answer["totals"])
    if answer["made"] < answer["end"]:
        _late(answer)
    if answer["unknown"]:
        _line("not compared yet", counted(len(answer["unknown"]), "job"))
    if answer["open"]:
        _line("open", counted(len(answer["open"]), "loan"))
    click.echo("To check every row, use --html FILE or --json.")
