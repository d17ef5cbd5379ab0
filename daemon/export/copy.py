"""A journal to read from, whoever writes it meanwhile: nothing of the daemon's is touched.

Of a SQLite file a copy is read. The daemon keeps it to itself, and there is no way in; but pages go
from the log (`-wal`) into the file only after they stood in the log, so that a copy of the file and
then of the log is what was durable at that moment, as long as the log was not begun anew meanwhile:
its head, with other salts then, tells. In PostgreSQL one transaction sees one moment.
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
from daemon.journal.migrations import VERSION
from daemon.model.errors import JournalError
from sia.console.errors import UserError

WAL_HEAD = 32
"""Bytes of the log's head; salts that change with each beginning are in it."""

TRIES = 5
"""Copies before it is said that the daemon writes too fast: a log is begun anew every 4 MB."""

READ_PATIENCE = 600_000
"""Milliseconds for which PostgreSQL keeps our moment open while we think about what was read."""


@contextmanager
def opened(database: Path | DatabaseUrl, room: Path) -> Iterator[Journal]:
    """The journal of a database as it is now; `room` is a folder in which a copy may stand.

    Raises UserError where there is none, or where it is another's.
    """
    if isinstance(database, DatabaseUrl):
        require_psycopg()
        with _checked(str(database), lambda: Journal(FrozenDatabase(database))) as journal:
            yield journal
        return
    if not database.is_file():
        raise UserError(f"{database}: there is no such database; name the daemon's --state")
    with TemporaryDirectory(prefix=".journal-", dir=room) as folder:
        copy = Path(folder) / "sia.db"
        try:
            copied(database, copy)
        except OSError as error:
            raise UserError(f"{database}: cannot be copied ({error.strerror or error})") from None
        with _checked(str(database), lambda: Journal(copy)) as journal:
            journal.where = str(database)
            yield journal


@contextmanager
def _checked(where: str, open_it: Callable[[], Journal]) -> Iterator[Journal]:
    journal = open_it()
    try:
        if not journal.last and not journal.snapshots():
            raise UserError(f"{where}: is empty: no daemon has begun with it yet")
        yield journal
    except JournalError as error:
        raise UserError(f"{where}: {error}") from None
    finally:
        journal.close()


def copied(database: Path, copy: Path) -> None:
    """Copy a SQLite file and its log as they were at one moment. Raises OSError, UserError."""
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
                continue  # the daemon has just ended
        if _head(log) == head:
            return
    raise UserError(f"{database}: is written too fast to be copied; try again, or stop the daemon")


def backup(database: Path, to: Path) -> None:
    """Write a SQLite database to one new file, as it is at this moment, for its owner alone.

    Raises UserError where there is none, it is damaged, or the file is there already; OSError.
    """
    if not database.is_file():
        raise UserError(f"{database}: there is no such database; name the daemon's --state")
    mark = read_mark(database)  # before the copy, which is at least as new
    with TemporaryDirectory(prefix=".backup-", dir=to.parent) as folder:
        copy = Path(folder) / "sia.db"
        copied(database, copy)
        copy.chmod(0o600)
        try:
            with closing(sqlite3.connect(copy, isolation_level=None)) as db:
                found = db.execute("PRAGMA quick_check").fetchone()[0]
                db.execute("PRAGMA journal_mode=DELETE")  # the log goes into the file
                lost = "" if mark is None else loss_of(mark, lambda sql: db.execute(sql).fetchall())
        except sqlite3.Error as error:
            found = str(error)
        if found != "ok":
            raise UserError(f"{database}: is damaged ({found}); keep it, and restore a backup")
        if lost:
            raise LossError(f"{database}: {lost}; keep it, and restore an older backup")
        with copy.open("rb") as file:
            os.fsync(file.fileno())
        try:
            os.link(copy, to)  # which overwrites nothing
        except FileExistsError:
            raise UserError(f"{to}: is there already; give another file") from None


def _head(log: Path) -> bytes:
    try:
        with log.open("rb") as file:
            return file.read(WAL_HEAD)
    except FileNotFoundError:
        return b""


class FrozenDatabase:
    """A PostgreSQL database as it was when it was opened, for reading; see `store.Store`."""

    types: Mapping[str, str] = {}
    epoch = 1
    """So that the journal takes no hold of it."""

    def __init__(self, url: DatabaseUrl) -> None:
        """Nothing is done before `open`."""
        self._url, self.where = url, str(url)
        self._db: Any = None

    def open(self) -> None:
        """Connect, and stay at this moment."""
        from daemon.journal.pg_connection import connect, said  # noqa: PLC0415  not everybody has it

        self._db, self._said = connect(self._url, "sia journal"), said
        with self._said(self._url):
            for key in ("idle_in_transaction_session_timeout", "statement_timeout"):
                self._db.execute(f"SET {key} = {READ_PATIENCE}")
            self._db.patience = READ_PATIENCE / 1000
            self._db.execute("BEGIN TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")

    def close(self) -> None:
        """Disconnect."""
        if self._db is not None:
            self._db.close()

    release = close

    def lost(self) -> str:
        """The server owns durability: nothing else knows more."""
        return ""

    def acknowledge(self, mark: HighWater) -> None:
        """Do nothing: a moment is only read."""

    def version(self) -> int:
        """Of the tables, which nobody here may change. Raises UserError for an older one."""
        version = int(self.all("SELECT version FROM about")[0][0])
        if version < VERSION:
            raise UserError(
                f"{self.where}: is of version {version}, this release reads {VERSION}; start its "
                "daemon with this release first"
            )
        return version

    def set_version(self, version: int) -> None:
        """Nothing is written."""
        raise AssertionError("a moment is only read")

    def transaction(self, *, long: bool = False) -> AbstractContextManager[None]:
        """The one that is open."""
        return nullcontext()

    def run(self, sql: str, values: Sequence[Any] = ()) -> None:
        """Nothing is written."""
        raise AssertionError("a moment is only read")

    def many(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        """Nothing is written."""
        raise AssertionError("a moment is only read")

    def all(self, sql: str, values: Sequence[Any] = ()) -> list[Any]:
        """What is asked for, as tuples."""
        from daemon.journal.postgres import in_postgres  # noqa: PLC0415  not everybody has it

        with self._said(self._url):
            found: list[Any] = self._db.execute(in_postgres(sql), values).fetchall()
            return found
