"""Read the audit log of a database directly, without a daemon and without writing to it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote

from daemon.config.database import DatabaseUrl, database_of, require_psycopg
from daemon.journal.highwater import LossError, refuse_loss
from daemon.journal.rows import AuditRow
from daemon.model.errors import JournalError
from daemon.model.limits import READ_AT_ONCE
from sia.console.errors import UserError

SQL = "SELECT number, body, digest FROM audit WHERE number > {} ORDER BY number LIMIT {}"


class _Database(Protocol):
    def execute(self, sql: Any, values: Any, /) -> Any:
        """Execute a statement, as in DB-API."""


def read_audit(database: str) -> Iterator[AuditRow]:
    """Yield the audit rows of a database (file path or PostgreSQL URL), in order.

    Raises UserError if the database cannot be read.
    """
    where = database_of(database, Path())
    if isinstance(where, DatabaseUrl):
        yield from _of_postgres(where)
        return
    try:
        with closing(sqlite3.connect(f"file:{quote(str(where))}?mode=ro", uri=True)) as db:
            yield from _pages(db, "?")
    except sqlite3.Error as error:
        mend = "give the path of the daemon's database (sia.db)"
        if "locked" in str(error):
            mend = "a daemon has it open; omit --database to ask that daemon"
        raise UserError(f"{where}: {error}; {mend}") from None


def lost_records(database: str) -> str:
    """Return which acknowledged steps a SQLite file lacks, in words; "" if none.

    Raises UserError if the file cannot be read.
    """
    where = database_of(database, Path())
    if isinstance(where, DatabaseUrl):
        return ""  # the server owns durability
    try:
        refuse_loss(where)
    except LossError as error:
        return error.format_message().removeprefix(f"{where}: ").rpartition("; ")[0]
    except (OSError, sqlite3.Error):
        return ""  # `read_audit` has the same error, and explains it
    return ""


def _of_postgres(url: DatabaseUrl) -> Iterator[AuditRow]:
    require_psycopg()
    from daemon.journal.pg_connection import (  # noqa: PLC0415  psycopg is optional
        connect,
        translated_errors,
    )

    try:
        with closing(connect(url, "sia audit")) as db, translated_errors(url):
            yield from _pages(db, "%s")
    except JournalError as error:
        raise UserError(str(error)) from None


def _pages(db: _Database, mark: str) -> Iterator[AuditRow]:
    after, sql = -(2**63), SQL.format(mark, mark)
    text: Any = sql.encode() if mark == "%s" else sql
    while rows := db.execute(text, (after, READ_AT_ONCE)).fetchall():
        yield from (AuditRow(*row) for row in rows)
        after = rows[-1][0]
