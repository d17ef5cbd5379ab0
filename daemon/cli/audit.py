"""`sia audit`: who changed what, and whether the records are complete and unchanged."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import click
import msgspec

from daemon.cli.client import Client, find
from daemon.cli.common import CONFIG, JSON, asks, moment, say
from daemon.export.audit import lost_records, read_audit
from daemon.journal.audit import TIMES, Verifier
from daemon.journal.rows import AuditRow
from daemon.wire.access import Audit
from daemon.wire.limits import MAX_PAGE
from sia.console.groups import Group
from sia.console.tables import show_table
from sia.console.terminal import printable
from sia.wording import counted

SHOWN = 50
"""Number of records listed by default: one screen."""

DATABASE = click.option(
    "--database", metavar="PATH|URL", help="Read this database instead of asking a daemon."
)

_read = msgspec.json.Decoder(Audit).decode


@click.group(cls=Group)
def audit() -> None:
    """Show and verify the audit log.

    The audit log records who changed what. Reading it needs the role operator.
    """


@audit.command("show")
@click.option("--limit", type=click.IntRange(1), default=SHOWN, show_default=True,
              help="Maximum number of records to list.")  # fmt: skip
@asks
def show(client: Client, limit: int, *, as_json: bool) -> None:
    """List the newest records of the audit log."""
    newest = _read(client.piece("/v1/audit?limit=1")[0]).newest
    rows = list(_served(client, max(0, newest - limit)))
    records = [msgspec.json.decode(row.body) for row in rows]
    if as_json:
        say({"records": records, "head": rows[-1].digest if rows else ""})
        return
    header = ["time", "who", "from", "what", "target", "change"]
    cells = [
        [
            moment(record["time"]), record["who"], record.get("origin", ""), record["what"],
            record.get("target", ""), _change(record),
        ]
        for record in records
    ]  # fmt: skip
    show_table("Audit", header, cells, header)


def _change(record: dict[str, Any]) -> str:
    """Describe a change in one line."""
    if "jobs" in record:
        jobs = [f"{name} in {pool}" for name, pool, _, _ in record["jobs"][:3]]
        more = len(record["jobs"]) - len(jobs)
        return ", ".join([*jobs, *([f"and {more} more"] if more else [])])
    if record.get("status", 200) >= 400:
        return " ".join(filter(None, (f"denied: {record['status']}", record.get("note", ""))))
    before, after = record.get("before", {}), record.get("after", {})
    return ", ".join(
        f"{key} {_shown(before.get(key), key)} → {_shown(after.get(key), key)}"
        for key in {**before, **after}
    )


def _shown(value: Any, key: str = "") -> str:
    """Return a value in the syntax of sia.toml."""
    if value is None or value in ("", {}, []):
        return "-"
    if isinstance(value, bool):
        return "true" if value else "false"
    if key in TIMES and isinstance(value, int | float):
        return moment(value)
    if isinstance(value, list):
        return " ".join(map(_shown, value))
    if isinstance(value, dict):
        return " ".join(f"{name}={_shown(each, name)}" for name, each in value.items())
    return str(value)


@audit.command("verify")
@click.option(
    "--head", default="", help="Digest that the records must contain, kept outside the database."
)
@DATABASE
@CONFIG
@JSON
def verify(config: Path | None, head: str, database: str | None, *, as_json: bool) -> int:
    """Verify that the audit log is complete and unchanged."""
    if head and re.fullmatch("[0-9a-f]{64}", head) is None:
        raise click.UsageError("--head must have 64 hexadecimal digits; copy the whole digest")
    verifier = Verifier()
    lost = ""
    if database:
        lost = lost_records(database)
        verifier.look(read_audit(database), head)
    else:
        with closing(Client(find(config))) as client:
            verifier.look(_served(client, 0), head)
    trail, wrong, losses = verifier.finding(head)
    wrong = wrong or lost
    if as_json:
        say({"ok": not wrong, "wrong": wrong, "records": trail.number, "head": trail.head,
             "losses": losses})  # fmt: skip
    elif wrong:
        click.echo(f"sia: {printable(wrong)}; restore the database from a backup", err=True)
    else:
        number = counted(trail.number, "record")
        rest = (
            f"; {counted(len(losses), 'loss')} accepted" if losses else ", complete and unchanged"
        )
        click.echo(f"{number}{rest}; head {trail.head}")
        for loss in losses:
            click.echo(f"loss accepted: {printable(loss)}")
    return 1 if wrong else 0


def _served(client: Client, after: int) -> Iterator[AuditRow]:
    """Yield all rows after a number from the daemon, page by page."""
    while True:
        page = _read(client.piece(f"/v1/audit?after={after}&limit={MAX_PAGE}")[0])
        if not page.records:
            return
        for each in page.records:
            yield AuditRow(each.number, bytes(each.record).decode(), each.digest)
        after = page.next
