"""SQLite as the journal uses it: a file of its own, whole transactions, errors with the mend.

Written ahead and synced (WAL, `synchronous=FULL`). A lock on a file beside it keeps a second daemon
away until `release`. A high-water mark in another file shows whether the log was damaged.
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
"""By which SQLite files of ours are known."""

TYPES = {
    "real": "REAL", "blob": "BLOB", "big": "INTEGER", "text": "TEXT",
    "key_number": "INTEGER PRIMARY KEY", "number": "INTEGER PRIMARY KEY",
}  # fmt: skip


class SqliteStore:
    """A file; see `store.Store`."""

    types: Mapping[str, str] = TYPES
    epoch = 0

    def __init__(self, path: Path) -> None:
        """At this path; nothing is done before `open`."""
        self.path, self.where = path, str(path)
        self._lock: int | None = None
        self._mark = MarkWriter(path)
        self.db: sqlite3.Connection

    def open(self) -> None:
        """Lock the file and open it, or make it.

        Raises LossError for a database with less than was acknowledged, and leaves it as it is.
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
            raise JournalError(mend(error)) from error

    def close(self) -> None:
        """Close it; the lock stays."""
        if hasattr(self, "db"):
            self.db.close()

    def release(self) -> None:
        """Close it, and let others have it."""
        self.close()
        self._mark.close()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def lost(self) -> str:
        """Say what is missing of what was acknowledged; empty if nothing. Raises LossError."""
        try:
            mark = read_mark(self.path)
        except OSError as error:
            raise JournalError(mend(error)) from error
        return "" if mark is None else loss_of(mark, self.all)

    def acknowledge(self, mark: HighWater) -> None:
        """Write the high-water mark: about 10 microseconds, and a sync once a second."""
        try:
            self._mark.write(mark)
        except OSError as error:
            self._mark.close()
            raise JournalError(mend(error)) from error

    def version(self) -> int:
        """Raise UserError for a file that is not ours."""
        if not self.all("SELECT COUNT(*) FROM sqlite_master")[0][0]:
            return 0
        application, version = (
            self.all(f"PRAGMA {name}")[0][0] for name in ("application_id", "user_version")
        )
        if application != APPLICATION:
            raise UserError(f"{self.where}: is no database of sia serve; name another file")
        return int(version)

    def set_version(self, version: int) -> None:
        """SQLite keeps it in the file's head, which is part of the transaction."""
        self.run(f"PRAGMA application_id={APPLICATION}")
        self.run(f"PRAGMA user_version={version}")

    @contextmanager
    def transaction(self, *, long: bool = False) -> Iterator[None]:
        """Nobody else waits for it, however long it is."""
        self.run("BEGIN IMMEDIATE")
        try:
            yield
            self.run("COMMIT")
        except BaseException:
            if self.db.in_transaction:
                with suppress(sqlite3.Error):  # SQLite has done so, or does at the next `open`
                    self.db.execute("ROLLBACK")
            raise

    def run(self, sql: str, values: Sequence[Any] = ()) -> None:
        """At once."""
        self._try(lambda: self.db.execute(sql, values))

    def many(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        """At once."""
        self._try(lambda: self.db.executemany(sql, rows))

    def all(self, sql: str, values: Sequence[Any] = ()) -> list[Any]:
        """All rows, read."""
        return self._try(lambda: self.db.execute(sql, values).fetchall())

    def _try(self, do: Callable[[], T]) -> T:
        try:
            return do()
        except sqlite3.IntegrityError as error:
            raise RowError(str(error)) from error
        except sqlite3.Error as error:
            raise JournalError(mend(error)) from error


def create(path: Path) -> None:
    """An empty file that nobody else may read, in its folder for good."""
    os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
    sync_folder(path.parent)


def lock(path: Path) -> int:
    """Have this process alone use a file, by a lock on another one beside it, until that is closed.

    SQLite's own lock is let go of whenever the file is opened again. This one is none by `flock`:
    a process that is just being started would have that too. Raises OSError.
    """
    beside = os.open(path.with_name(f"{path.name}-lock"), os.O_CREAT | os.O_RDWR, 0o600)
    try:
        fcntl.lockf(beside, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(beside)
        raise
    return beside


def mend(error: Exception) -> str:
    """What to do about it, in a line."""
    text = str(error)
    if "locked" in text or isinstance(error, BlockingIOError):
        return "another daemon has it open; stop that one, or name another file"
    if "not a database" in text or "malformed" in text:
        return f"cannot be read ({text}); restore it from a backup, or name another file"
    if "full" in text:
        return "the disk is full; make room"
    return f"{text}; see that the disk is well and the file is yours"
