"""Open a consistent copy of a journal for reading, also while a daemon writes to it.

The daemon locks its SQLite file, so the file is copied. Pages reach the database file only after
they were written to the write-ahead log (`-wal`). A copy of the file, followed by a copy of the
log, therefore has the state of one moment, unless the log was restarted in between. A restart
changes the salts in the log's header, which is compared before and after. In PostgreSQL one
read-only transaction sees one moment.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from daemon.config.database import DatabaseUrl, require_psycopg
from daemon.journal.highwater import HighWater, LossError, loss_of, read_mark
from daemon.journal.journal import Journal
from daemon.journal.schema import check_version
from daemon.model.errors import JournalError
from sia.console.errors import UserError

WAL_HEAD = 32
"""Size of the log's header in bytes; its salts change with each restart of the log."""

TRIES = 5
"""Number of attempts before the copy fails: SQLite restarts the log about every 4 MB."""

READ_PATIENCE = 600_000
"""Milliseconds for which PostgreSQL keeps the transaction open while this process is busy."""


@contextmanager
def opened(database: Path | DatabaseUrl, room: Path) -> Iterator[Journal]:
    """Open the journal of a database in its current state; `room` is a folder for a copy.

    Raises UserError if there is no database, or if it is not a journal.
    """
    if isinstance(database, DatabaseUrl):
        require_psycopg()
        with _checked(str(database), lambda: Journal(FrozenDatabase(database))) as journal:
            yield journal
        return
    if not database.is_file():
        raise UserError(f"{database}: no such database; use the --state of the daemon")
    with TemporaryDirectory(prefix=".journal-", dir=room) as folder:
        copy = Path(folder) / "sia.db"
        try:
            copied(database, copy)
        except OSError as error:
            raise UserError(
                f"{database}: cannot copy the database ({error.strerror or error})"
            ) from None
        with _checked(str(database), lambda: Journal(copy)) as journal:
            journal.where = str(database)
            yield journal


@contextmanager
def _checked(where: str, open_it: Callable[[], Journal]) -> Iterator[Journal]:
    journal = open_it()
    try:
        if not journal.last and not journal.snapshots():
            raise UserError(f"{where}: the journal is empty; start a daemon with it first")
        yield journal
    except JournalError as error:
        raise UserError(f"{where}: {error}") from None
    finally:
        journal.close()


def copied(database: Path, copy: Path) -> None:
    """Copy a SQLite file and its log in one consistent state. Raises OSError, UserError."""
    log = database.with_name(f"{database.name}-wal")
    log_copy = copy.with_name(f"{copy.name}-wal")
    for _ in range(TRIES):
        head = _head(log)
        shutil.copyfile(database, copy)
        log_copy.unlink(missing_ok=True)
        if head:
            try:
                shutil.copyfile(log, log_copy)
            except FileNotFoundError:
                continue  # the daemon has just stopped
        if _head(log) == head:
            return
    raise UserError(
        f"{database}: the daemon writes too fast to copy it; try again, or stop the daemon"
    )


def backup(database: Path, to: Path) -> None:
    """Back up a SQLite database to one new file, readable by its owner only.

    Raises UserError if the database is missing or damaged, or if the file exists; OSError.
    """
    if not database.is_file():
        raise UserError(f"{database}: no such database; use the --state of the daemon")
    mark = read_mark(database)  # before the copy, so that the copy is at least as new
    with TemporaryDirectory(prefix=".backup-", dir=to.parent) as folder:
        copy = Path(folder) / "sia.db"
        copied(database, copy)
        copy.chmod(0o600)
        try:
            with closing(sqlite3.connect(copy, isolation_level=None)) as db:
                found = db.execute("PRAGMA quick_check").fetchone()[0]
                db.execute("PRAGMA journal_mode=DELETE")  # moves the log into the file
                lost = "" if mark is None else loss_of(mark, lambda sql: db.execute(sql).fetchall())
        except sqlite3.Error as error:
            found = str(error)
        if found != "ok":
            raise UserError(
                f"{database}: the database is damaged ({found}); keep it, and restore a backup"
            )
        if lost:
            raise LossError(f"{database}: {lost}; keep it, and restore an older backup")
        with copy.open("rb") as file:
            os.fsync(file.fileno())
        try:
            os.link(copy, to)  # fails if the file exists
        except FileExistsError:
            raise UserError(f"{to}: file exists; give another name") from None


def _head(log: Path) -> bytes:
    try:
        with log.open("rb") as file:
            return file.read(WAL_HEAD)
    except FileNotFoundError:
        return b""


class FrozenDatabase:
    """A PostgreSQL database as of the time it was opened, for reading; see `Store`."""

    types: Mapping[str, str] = {}
    epoch = 1
    """A fixed epoch, so that the journal does not acquire the lease."""

    def __init__(self, url: DatabaseUrl) -> None:
        """Create the object; `open` connects."""
        self._url, self.where = url, str(url)
        self._db: Any = None

    def open(self) -> None:
        """Connect, and begin a repeatable-read transaction."""
        from daemon.journal.pg_connection import (  # noqa: PLC0415  psycopg is optional
            connect,
            translated_errors,
        )

        self._db, self._translated = connect(self._url, "sia journal"), translated_errors
        with self._translated(self._url):
            for key in ("idle_in_transaction_session_timeout", "statement_timeout"):
                self._db.execute(f"SET {key} = {READ_PATIENCE}")
            self._db.patience = READ_PATIENCE / 1000
            self._db.execute("BEGIN TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")

    def close(self) -> None:
        """Close the connection."""
        if self._db is not None:
            self._db.close()

    release = close

    def lost(self) -> str:
        """Return an empty string: PostgreSQL guarantees durability itself."""
        return ""

    def acknowledge(self, mark: HighWater) -> None:
        """Do nothing: the database is read-only."""

    def version(self) -> int:
        """Return the version of the tables. Raises UserError if there are none, or for another."""
        version = int(self.all("SELECT version FROM about")[0][0])
        if version == 0:
            raise UserError(f"{self.where}: the database is empty; start the daemon on it first")
        check_version(self.where, version)
        return version

    def set_version(self, version: int) -> None:
        """Raise AssertionError: the database is read-only."""
        raise AssertionError("a frozen database is read-only")

    def transaction(self) -> AbstractContextManager[None]:
        """Return a context in the open transaction."""
        return nullcontext()

    def run(self, sql: str, values: Sequence[Any] = ()) -> None:
        """Raise AssertionError: the database is read-only."""
        raise AssertionError("a frozen database is read-only")

    def many(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        """Raise AssertionError: the database is read-only."""
        raise AssertionError("a frozen database is read-only")

    def all(self, sql: str, values: Sequence[Any] = ()) -> list[Any]:
        """Return the rows of a query as tuples."""
        from daemon.journal.postgres import in_postgres  # noqa: PLC0415  psycopg is optional

        with self._translated(self._url):
            found: list[Any] = self._db.execute(in_postgres(sql), values).fetchall()
            return found
