"""SQLite as the journal uses it: whole transactions, files of one's own, errors with the mend."""

from __future__ import annotations

import fcntl
import os
import sqlite3
from pathlib import Path


class JournalError(Exception):
    """It could not be written or read: the disk is full, or has failed. Nothing is half done."""


class Transaction:
    """All of it is durable at the end, or nothing; what SQLite says is wrong is a JournalError.

    Not so an `sqlite3.IntegrityError`: that is a defect of ours, and the disk is well.
    """

    def __init__(self, db: sqlite3.Connection) -> None:
        """Of this connection, which is in none."""
        self._db = db

    def __enter__(self) -> None:
        try:
            self._db.execute("BEGIN IMMEDIATE")
        except sqlite3.Error as error:
            raise JournalError(mend(error)) from error

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        try:
            if error is None:
                self._db.execute("COMMIT")
                return
        except sqlite3.Error as failed:
            error = failed
        if self._db.in_transaction:
            self._roll_back()
        if isinstance(error, sqlite3.Error) and not isinstance(error, sqlite3.IntegrityError):
            raise JournalError(mend(error)) from error

    def _roll_back(self) -> None:
        try:
            self._db.execute("ROLLBACK")
        except sqlite3.Error:
            return  # SQLite has done so, or does when the file is opened again


def create(path: Path) -> None:
    """An empty file that nobody else may read, in its folder for good."""
    path.parent.mkdir(parents=True, exist_ok=True)
    os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


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
