"""The high-water mark: a small file next to a SQLite database that says what was acknowledged.

SQLite drops every frame of its write-ahead log from the first damaged one on, and reports nothing.
The mark names the newest acknowledged step. A database that lacks this step has lost records.

The daemon writes the mark after each commit and before it answers anyone. A crash between the two
writes leaves a database that has one step more than the mark, which is no loss.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple
from urllib.parse import quote

from sia.console.errors import UserError

SUFFIX = ".durable"
"""Replaces the suffix of the database's name. `rm sia.db-*` does not delete the file."""

SLOT = 512
"""Bytes of one copy: a disk writes one sector as a whole. Two copies are written in turn, so that
the previous mark survives a torn write."""

SYNC_EVERY = 1.0
"""Seconds between two syncs of the mark. The kernel keeps each write if the process dies. After a
power failure the mark may be this much older, which hides no loss of older steps. A sync for each
commit would double its time."""

WORD = "sia-durable-1"

GENESIS = "0" * 64
"""The digest before the first step."""

Ask = Callable[[str], Sequence[Sequence[Any]]]
"""Runs one query and returns its rows."""


class LossError(UserError):
    """A database lacks steps that the daemon acknowledged, or has other steps."""


class HighWater(NamedTuple):
    """The newest acknowledged step and the end of the audit after it."""

    seq: int
    digest: str
    """Digest of this step and all earlier ones: see `step_digest`."""
    audit: int = 0
    """Number of audit records."""
    head: str = GENESIS
    """Newest digest of the audit."""


def step_digest(before: str, row: Sequence[Any]) -> str:
    """Return the digest of a row of `records` (without this column), chained to the one before."""
    text = "\n".join([before, *(each if isinstance(each, str) else repr(each) for each in row)])
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


def mark_path(database: Path) -> Path:
    """Return the path of the mark of a SQLite database."""
    return database.with_suffix(SUFFIX)


def read_mark(database: Path) -> HighWater | None:
    """Return the mark of a database; None if there is no file.

    Raises LossError if the file has no complete mark, and OSError.
    """
    path = mark_path(database)
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    found = [mark for i in (0, SLOT) if (mark := _decoded(content[i : i + SLOT])) is not None]
    if not found:
        raise LossError(
            f"{path}: is damaged: it is unknown which steps were acknowledged; restore a backup, "
            "or accept the database as it is: sia journal accept-loss"
        )
    return max(found)


def _encoded(mark: HighWater) -> bytes:
    line = " ".join([WORD, str(mark.seq), mark.digest, str(mark.audit), mark.head])
    check = hashlib.sha256(line.encode()).hexdigest()
    return f"{line} {check}\n".encode().ljust(SLOT, b"\0")


def _decoded(slot: bytes) -> HighWater | None:
    line, _, check = slot.partition(b"\n")[0].rpartition(b" ")
    if hashlib.sha256(line).hexdigest().encode() != check:
        return None
    try:
        word, seq, digest, audit, head = line.decode().split(" ")
        return HighWater(int(seq), digest, int(audit), head) if word == WORD else None
    except ValueError:
        return None


class MarkWriter:
    """Writes the mark of one database, for one thread at a time. All methods raise OSError."""

    def __init__(self, database: Path) -> None:
        """Open nothing before the first `write`."""
        self._path = mark_path(database)
        self._file: int | None = None
        self._slot, self._synced = 0, 0.0

    def write(self, mark: HighWater) -> None:
        """Replace the older of the two copies; sync the file once a second at most."""
        if self._file is None:
            self._file = self._create(mark)
            return
        self._slot = SLOT - self._slot
        os.pwrite(self._file, _encoded(mark), self._slot)
        if monotonic() - self._synced >= SYNC_EVERY:
            self._sync()

    def _create(self, mark: HighWater) -> int:
        """Replace the file by a new one with both copies, atomically."""
        new = self._path.with_name(f"{self._path.name}.new")
        file = os.open(new, os.O_CREAT | os.O_RDWR | os.O_TRUNC, 0o600)
        try:
            os.pwrite(file, _encoded(mark) * 2, 0)
            os.fsync(file)
            new.replace(self._path)
            sync_folder(self._path.parent)
        except BaseException:
            os.close(file)
            raise
        return file

    def _sync(self) -> None:
        assert self._file is not None, "nothing was written"
        os.fdatasync(self._file)
        self._synced = monotonic()

    def close(self) -> None:
        """Sync and close the file; the next `write` creates it anew."""
        if self._file is not None:
            file, self._file = self._file, None
            with suppress(OSError):  # the mark before it is still valid
                os.fdatasync(file)
            os.close(file)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable. Raises OSError."""
    file = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def loss_of(mark: HighWater, ask: Ask) -> str:
    """Return which acknowledged steps a database lacks, in words; "" if none."""
    if not mark.seq:
        return ""
    tables = {name for (name,) in ask("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if "records" not in tables:
        return _lost(0, mark)
    newest = ask("SELECT COALESCE(MAX(seq), 0) FROM records")[0][0]
    if newest < mark.seq:
        return _lost(newest, mark)
    rows = ask(f"SELECT digest FROM records WHERE seq = {mark.seq}")  # noqa: S608  a number
    if not rows or rows[0][0] != mark.digest:
        return f"step {mark.seq} is not the one that the daemon acknowledged"
    return ""


def _lost(newest: int, mark: HighWater) -> str:
    number = mark.seq - newest
    return (
        f"{number:,} acknowledged step{'s' * (number != 1)} lost: {newest + 1} to {mark.seq}; the "
        f"database ends at step {newest}"
    )


def refuse_loss(database: Path) -> None:
    """Raise LossError if a SQLite database lacks acknowledged steps; nothing is changed.

    A connection that may write would move the log's intact frames into the file and delete the
    other frames when it is closed. A connection that only reads leaves the log as evidence.
    """
    mark = read_mark(database)
    if mark is None:
        return
    if not database.exists():
        lost = f"the file is gone: {_lost(0, mark)}"
    else:
        uri = f"file:{quote(str(database))}?mode=ro"
        with closing(sqlite3.connect(uri, uri=True, timeout=0.0)) as db:
            lost = loss_of(mark, lambda sql: db.execute(sql).fetchall())
    if lost:
        raise LossError(f"{database}: {lost}; {HOW_TO_GO_ON}")


HOW_TO_GO_ON = (
    "restore a backup, or accept the loss: sia journal accept-loss (docs/operate/runbook.md)"
)
