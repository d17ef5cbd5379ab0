"""The journal's SQLite store: one file, in WAL mode with `synchronous=FULL`.

A lock on a second file, `NAME-lock`, excludes other daemons until `release`. A high-water
mark in a third file shows whether acknowledged steps were lost.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from daemon.journal.highwater import (
    HighWater,
    MarkWriter,
    loss_of,
    read_mark,
    refuse_loss,
    sync_folder,
)
from daemon.model.errors import JournalError, RowError
from sia.console.errors import UserError

T = TypeVar("T")

APPLICATION = 0x51A_DAE
"""SQLite application id that marks the daemon's files."""

TYPES = {
    "real": "REAL", "blob": "BLOB", "big": "INTEGER", "text": "TEXT",
    "key_number": "INTEGER PRIMARY KEY", "number": "INTEGER PRIMARY KEY",
}  # fmt: skip


class SqliteStore:
    """A SQLite file; see `store.Store`."""

    types: Mapping[str, str] = TYPES
    epoch = 0

    def __init__(self, path: Path) -> None:
        """Use the file `path`; `open` opens or creates it."""
        self.path, self.where = path, str(path)
        self._lock: int | None = None
        self._mark = MarkWriter(path)
        self.db: sqlite3.Connection

    def open(self) -> None:
        """Lock the file and open it; create it if it does not exist.

        Raises LossError, and changes nothing, if acknowledged steps are missing.
        """
        try:
            if self._lock is None:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                self._lock = lock(self.path)
                refuse_loss(self.path)
                if not self.path.exists():
                    create(self.path)
            self.db = sqlite3.connect(
                self.path, timeout=0.0, isolation_level=None, check_same_thread=False
            )
            try:
                for pragma in ("locking_mode=EXCLUSIVE", "journal_mode=WAL", "synchronous=FULL"):
                    self.db.execute(f"PRAGMA {pragma}")
            except BaseException:
                self.db.close()
                raise
        except (OSError, sqlite3.Error) as error:
            raise JournalError(explained(error)) from error

    def close(self) -> None:
        """Close the file and keep the lock."""
        if hasattr(self, "db"):
            self.db.close()

    def release(self) -> None:
        """Close the file and release the lock."""
        self.close()
        self._mark.close()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def lost(self) -> str:
        """Describe the acknowledged steps that are missing; empty if none. Raises LossError."""
        try:
            mark = read_mark(self.path)
        except OSError as error:
            raise JournalError(explained(error)) from error
        return "" if mark is None else loss_of(mark, self.all)

    def acknowledge(self, mark: HighWater) -> None:
        """Write the high-water mark: about 10 microseconds, and a sync once a second."""
        try:
            self._mark.write(mark)
        except OSError as error:
            self._mark.close()
            raise JournalError(explained(error)) from error

    def version(self) -> int:
        """Return the version of the tables. Raises UserError for a file of another program."""
        if not self.all("SELECT COUNT(*) FROM sqlite_master")[0][0]:
            return 0
        application, version = (
            self.all(f"PRAGMA {name}")[0][0] for name in ("application_id", "user_version")
        )
        if application != APPLICATION:
            raise UserError(f"{self.where}: is not a database of sia serve; name another file")
        return int(version)

    def set_version(self, version: int) -> None:
        """Store the version in the file header, which is part of the transaction."""
        self.run(f"PRAGMA application_id={APPLICATION}")
        self.run(f"PRAGMA user_version={version}")

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Run a durable, atomic transaction."""
        self.run("BEGIN IMMEDIATE")
        try:
            yield
            self.run("COMMIT")
        except BaseException:
            if self.db.in_transaction:
                with suppress(sqlite3.Error):  # SQLite rolls back itself, at the latest on `open`
                    self.db.execute("ROLLBACK")
            raise

    def run(self, sql: str, values: Sequence[Any] = ()) -> None:
        """Execute a statement; errors appear at once."""
        self._try(lambda: self.db.execute(sql, values))

    def many(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        """Execute a statement for each row; errors appear at once."""
        self._try(lambda: self.db.executemany(sql, rows))

    def all(self, sql: str, values: Sequence[Any] = ()) -> list[Any]:
        """Run a query and return all rows."""
        return self._try(lambda: self.db.execute(sql, values).fetchall())

    def _try(self, do: Callable[[], T]) -> T:
        try:
            return do()
        except sqlite3.IntegrityError as error:
            raise RowError(str(error)) from error
        except sqlite3.Error as error:
            raise JournalError(explained(error)) from error


def create(path: Path) -> None:
    """Create an empty file with mode 0600, and sync its folder."""
    os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
    sync_folder(path.parent)


def lock(path: Path) -> int:
    """Lock the file `NAME-lock` for this process; return its descriptor. Raises OSError.

    SQLite's own lock is lost when the process reopens the file. `flock` would not do: child
    processes inherit it, while `lockf` locks belong to one process.
    """
    lock = os.open(path.with_name(f"{path.name}-lock"), os.O_CREAT | os.O_RDWR, 0o600)
    try:
        fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise
    return lock


def explained(error: Exception) -> str:
    """Return a SQLite or OS error as one line with a fix."""
    text = str(error)
    if "locked" in text or isinstance(error, BlockingIOError):
        return "another daemon has the database open; stop that daemon, or name another file"
    if "not a database" in text or "malformed" in text:
        return f"cannot read the database ({text}); restore a backup, or name another file"
    if "full" in text:
        return "the disk is full; free some space"
    return f"{text}; check the disk, and the owner and mode of the file"
