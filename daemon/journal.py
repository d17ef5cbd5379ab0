"""The journal: an SQLite file in which each step is durable before anybody hears of it.

One transaction a step, written ahead and synced (WAL, `synchronous=FULL`), by one thread at a time.
A lock on a file beside it keeps a second daemon away until `close`.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from msgspec import json

from daemon.answers import Notice
from daemon.book import JobRecord
from daemon.clock import Anchor
from daemon.inputs import Input
from daemon.limits import (
    ASKED_AT_ONCE,
    KEEP_HISTORY,
    KEEP_RECORDS,
    PROBE_BYTES,
    PRUNE_EVERY,
    PRUNED_AT_ONCE,
    READ_AT_ONCE,
    SNAPSHOT_PART,
    SNAPSHOTS_KEPT,
)
from daemon.lite import JournalError, Transaction, create, lock, mend
from replay.errors import UserError
from sia.decisions import Decision

VERSION = 2
"""Of the tables: another number for each change that older code would misread."""

APPLICATION = 0x51A_DAE
"""By which SQLite files of ours are known."""

LAST_NUMBER = 2**63 - 1
"""SQLite counts no rows beyond it."""

SCHEMA = """
CREATE TABLE records (seq INTEGER PRIMARY KEY, now REAL NOT NULL, boot TEXT NOT NULL,
    uptime REAL NOT NULL, inputs TEXT NOT NULL, decisions TEXT NOT NULL);
CREATE TABLE snapshots (seq INTEGER PRIMARY KEY, parts INTEGER NOT NULL);
CREATE TABLE parts (seq INTEGER, part INTEGER, body BLOB NOT NULL, PRIMARY KEY (seq, part));
CREATE TABLE notices (seq INTEGER PRIMARY KEY, time REAL NOT NULL, kind TEXT NOT NULL,
    job TEXT NOT NULL, pool TEXT NOT NULL, node TEXT NOT NULL, data TEXT NOT NULL);
CREATE TABLE history (number INTEGER PRIMARY KEY, id TEXT UNIQUE NOT NULL, ended REAL NOT NULL,
    pool TEXT NOT NULL, body TEXT NOT NULL);
CREATE INDEX history_of_pool ON history (pool, number);
CREATE TABLE probe (number INTEGER PRIMARY KEY, body BLOB NOT NULL);
"""

MIGRATIONS = {
    1: """
CREATE TABLE marks (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE audit (number INTEGER PRIMARY KEY, body TEXT NOT NULL, digest TEXT NOT NULL);
CREATE TABLE dead_letters (number INTEGER PRIMARY KEY, hook TEXT NOT NULL, seq INTEGER NOT NULL,
    time REAL NOT NULL, why TEXT NOT NULL, body TEXT NOT NULL);
CREATE INDEX dead_letters_of_hook ON dead_letters (hook, number);
"""
}
"""What makes the next version of the tables out of each."""

EPOCH = "epoch"
"""The key of the mark that counts how often a daemon took hold of the journal."""

__all__ = [
    "AuditRow",
    "DeadLetter",
    "Entry",
    "Journal",
    "JournalError",
    "Part",
    "Record",
    "parts_of",
]

_read_inputs = json.Decoder(list[Input]).decode
_read_job = json.Decoder(JobRecord).decode


class AuditRow(NamedTuple):
    """One change and who made it, as JSON; the digest is of it and of all before."""

    number: int
    body: str
    digest: str


class DeadLetter(NamedTuple):
    """What could not be delivered. The journal gives it its number where that is 0."""

    number: int
    hook: str
    seq: int
    time: float
    why: str
    body: str


class Entry(NamedTuple):
    """One step as it is written."""

    seq: int
    anchor: Anchor
    inputs: Sequence[Input]
    decisions: Sequence[Decision]
    notices: Sequence[Notice] = ()
    over: Sequence[JobRecord] = ()
    audit: Sequence[AuditRow] = ()


class Record(NamedTuple):
    """One step as it is read; `decisions` are the bytes that the same inputs must give again."""

    seq: int
    now: float
    inputs: list[Input]
    decisions: bytes


class Part(NamedTuple):
    """A piece of a snapshot that was taken after step `seq`."""

    seq: int
    part: int
    body: bytes
    last: bool


def parts_of(seq: int, snapshot: bytes) -> list[Part]:
    """A snapshot in pieces; it counts once the last of them is written."""
    starts = range(0, len(snapshot), SNAPSHOT_PART)
    return [
        Part(seq, i, snapshot[start : start + SNAPSHOT_PART], last=start == starts[-1])
        for i, start in enumerate(starts)
    ]


class Journal:
    """What has happened, in order. Not for several threads at a time.

    Attributes:
        last: The number of the last step; 0 before the first.
        epoch: How often a daemon has taken hold of it; another one has another number.
    """

    def __init__(
        self, path: Path, *, keep_records: float = KEEP_RECORDS, keep_history: float = KEEP_HISTORY
    ) -> None:
        """Open the file, or make it. What is kept for so long is in seconds.

        Raises UserError for a file that is another's, of a newer version, in use or unreadable.
        """
        self.path = path
        self._keep_records, self._keep_history = keep_records, keep_history
        self._added = 0  # rows since it was last pruned
        self._lock: int | None = None
        try:
            if not path.exists():
                create(path)
            self._lock = lock(path)
            self._open()
            self.epoch = int(self.marks(EPOCH).get(EPOCH, "0")) + 1
            self.mark({EPOCH: str(self.epoch)})
        except (OSError, sqlite3.Error, JournalError) as error:
            self._unlock()
            raise UserError(f"{path}: {mend(error)}") from error
        except UserError:
            self._unlock()
            raise

    def _unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _open(self) -> None:
        self._db = sqlite3.connect(
            self.path, timeout=0.0, isolation_level=None, check_same_thread=False
        )
        try:
            run = self._db.execute
            run("PRAGMA locking_mode=EXCLUSIVE")
            run("PRAGMA journal_mode=WAL")
            run("PRAGMA synchronous=FULL")
            run("BEGIN IMMEDIATE")
            self._check_version()
            run("COMMIT")
            self.last: int = run("SELECT COALESCE(MAX(seq), 0) FROM records").fetchone()[0]
            newest = self.snapshots()
            self.last = max(self.last, *newest, 0)
        except BaseException:
            self._db.close()
            raise

    def _check_version(self) -> None:
        """Make the tables, or what newer ones have. Raises UserError for a file not ours."""
        run = self._db.execute
        application, version = (
            run(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version")
        )
        if not run("SELECT COUNT(*) FROM sqlite_master").fetchone()[0]:
            for statement in SCHEMA.split(";")[:-1]:
                run(statement)
            run(f"PRAGMA application_id={APPLICATION}")
            self._migrate(1)
        elif application != APPLICATION:
            raise UserError(f"{self.path}: is no database of sia serve; name another file")
        elif version in MIGRATIONS:
            self._migrate(version)
        elif version != VERSION:
            raise UserError(
                f"{self.path}: is of version {version}, this release reads {VERSION}; "
                "use the release that wrote it, or name another file"
            )

    def _migrate(self, version: int) -> None:
        """Make the tables of this release out of an older one's, in the transaction it is in."""
        for older in range(version, VERSION):
            for statement in MIGRATIONS[older].split(";")[:-1]:
                self._db.execute(statement)
        self._db.execute(f"PRAGMA user_version={VERSION}")

    def reopen(self) -> None:
        """Close the file and open it again: what it says then is what is durable.

        Raises JournalError if it cannot be.
        """
        try:
            self._db.close()
            self._open()
        except (OSError, sqlite3.Error, UserError) as error:
            raise JournalError(str(error)) from error

    def close(self) -> None:
        """Let go of the file."""
        self._db.close()
        self._unlock()

    def commit(self, entry: Entry, part: Part | None = None) -> None:
        """Make a step durable, and a piece of a snapshot with it. Raises JournalError."""
        assert entry.seq == self.last + 1, f"step {entry.seq} after {self.last}"
        with Transaction(self._db):
            self._write(entry)
            if part is not None:
                self._write_part(part)
            if entry.audit:
                self._db.executemany("INSERT INTO audit VALUES (?, ?, ?)", entry.audit)
            self._added += 1 + len(entry.notices) + len(entry.over)
            if self._added >= PRUNE_EVERY:
                self._prune(entry.anchor.now, max(PRUNED_AT_ONCE, 2 * self._added))
                self._added = 0
        self.last = entry.seq

    def _write(self, entry: Entry) -> None:
        anchor = entry.anchor
        self._db.execute(
            "INSERT INTO records VALUES (?, ?, ?, ?, ?, ?)",
            (
                entry.seq,
                anchor.now,
                anchor.boot,
                anchor.uptime,
                json.encode(entry.inputs).decode(),
                json.encode(entry.decisions).decode(),
            ),
        )
        if entry.notices:
            self._db.executemany(
                "INSERT INTO notices VALUES (?, ?, ?, ?, ?, ?, ?)",
                [
                    (n.seq, n.time, n.kind, n.job, n.pool, n.node, json.encode(n.data).decode())
                    for n in entry.notices
                ],
            )
        if entry.over:
            self._db.executemany(
                "INSERT INTO history (id, ended, pool, body) VALUES (?, ?, ?, ?)",
                [
                    (job.spec.id, job.ended, job.spec.pool, json.encode(job).decode())
                    for job in entry.over
                ],
            )

    def save(self, part: Part) -> None:
        """Write a piece of a snapshot by itself. Raises JournalError."""
        with Transaction(self._db):
            self._write_part(part)

    def _write_part(self, part: Part) -> None:
        run = self._db.execute
        if part.part == 0:
            run("DELETE FROM parts WHERE seq NOT IN (SELECT seq FROM snapshots)")
        run("INSERT OR REPLACE INTO parts VALUES (?, ?, ?)", part[:3])
        if part.last:
            run("INSERT OR REPLACE INTO snapshots VALUES (?, ?)", (part.seq, part.part + 1))
            kept = "SELECT seq FROM snapshots ORDER BY seq DESC LIMIT ?"
            run(f"DELETE FROM snapshots WHERE seq NOT IN ({kept})", (SNAPSHOTS_KEPT,))  # noqa: S608
            run("DELETE FROM parts WHERE seq NOT IN (SELECT seq FROM snapshots)")

    def _prune(self, now: float, most: int) -> None:
        """Delete what is too old, so many rows of a table at most: more than were added."""
        oldest = min(self.snapshots(), default=0)
        for table, key, where, values in (
            ("records", "seq", "seq <= ? AND now < ?", (oldest, now - self._keep_records)),
            ("notices", "seq", "time < ?", (now - self._keep_history,)),
            ("history", "number", "ended < ?", (now - self._keep_history,)),
        ):
            # In the order of their keys, which is that of time: the first that stays ends it.
            first = f"SELECT {key} FROM {table} ORDER BY {key} LIMIT {most}"  # noqa: S608
            self._db.execute(f"DELETE FROM {table} WHERE {key} IN ({first}) AND {where}", values)  # noqa: S608

    def probe(self) -> None:
        """Try whether it can be written. Raises JournalError if not."""
        with Transaction(self._db):
            self._db.execute("INSERT INTO probe (body) VALUES (zeroblob(?))", (PROBE_BYTES,))
        with Transaction(self._db):
            self._db.execute("DELETE FROM probe")

    def anchor(self) -> Anchor | None:
        """The time of the last step; None before the first."""
        row = self._one("SELECT boot, uptime, now FROM records ORDER BY seq DESC LIMIT 1")
        return None if row is None else Anchor(*row)

    def snapshots(self) -> list[int]:
        """After which steps there are whole snapshots, newest first."""
        return [row[0] for row in self._all("SELECT seq FROM snapshots ORDER BY seq DESC")]

    def snapshot(self, seq: int) -> bytes:
        """The snapshot that was taken after a step."""
        rows = self._all("SELECT body FROM parts WHERE seq = ? ORDER BY part", seq)
        return b"".join(row[0] for row in rows)

    def records(self, after: int) -> Iterator[Record]:
        """The steps after one, in order. Raises UserError for one that cannot be read."""
        sql = "SELECT seq, now, inputs, decisions FROM records WHERE seq > ? ORDER BY seq LIMIT ?"
        while rows := self._all(sql, after, READ_AT_ONCE):
            for seq, now, inputs, decisions in rows:
                yield Record(seq, now, self._inputs(seq, inputs), decisions.encode())
            after = rows[-1][0]

    def _inputs(self, seq: int, text: str) -> list[Input]:
        try:
            return _read_inputs(text)
        except ValueError as error:
            raise UserError(
                f"{self.path}: record {seq} cannot be read: {error}; use the release that wrote it"
            ) from error

    def notices(self, after: int, limit: int) -> list[Notice]:
        """The notices after one, in order, so many at most."""
        sql = "SELECT * FROM notices WHERE seq > ? ORDER BY seq LIMIT ?"
        return [
            Notice(seq, time, kind, job, pool, node, json.decode(data))
            for seq, time, kind, job, pool, node, data in self._all(sql, after, limit)
        ]

    def job(self, job_id: str) -> JobRecord | None:
        """A job that has ended, however long ago."""
        row = self._one("SELECT body FROM history WHERE id = ?", job_id)
        return None if row is None else _read_job(row[0])

    def jobs(self, job_ids: Sequence[str]) -> dict[str, JobRecord]:
        """Those of these jobs that have ended."""
        found = {}
        for start in range(0, len(job_ids), ASKED_AT_ONCE):
            some = job_ids[start : start + ASKED_AT_ONCE]
            marks = ", ".join("?" * len(some))
            rows = self._all(f"SELECT id, body FROM history WHERE id IN ({marks})", *some)  # noqa: S608
            found.update({job_id: _read_job(body) for job_id, body in rows})
        return found

    def history(self, before: int, limit: int, pool: str = "") -> list[tuple[int, JobRecord]]:
        """Jobs that have ended, newest first, with the number to go on before; 0 is the start."""
        of_pool, values = ("pool = ? AND", (pool,)) if pool else ("", ())
        order = "number < ? ORDER BY number DESC LIMIT ?"
        sql = f"SELECT number, body FROM history WHERE {of_pool} {order}"  # noqa: S608
        rows = self._all(sql, *values, before or LAST_NUMBER, limit)
        return [(number, _read_job(body)) for number, body in rows]

    def marks(self, prefix: str) -> dict[str, str]:
        """All marks of which the key begins so, in order of their keys."""
        sql = "SELECT key, value FROM marks WHERE substr(key, 1, ?) = ? ORDER BY key"
        return dict(self._all(sql, len(prefix), prefix))

    def mark(self, changes: Mapping[str, str | None]) -> None:
        """Have marks be these from now on; None is to be no more. Raises JournalError."""
        kept = [(key, value) for key, value in changes.items() if value is not None]
        gone = [(key,) for key, value in changes.items() if value is None]
        with Transaction(self._db):
            self._db.executemany("INSERT OR REPLACE INTO marks VALUES (?, ?)", kept)
            self._db.executemany("DELETE FROM marks WHERE key = ?", gone)

    def bury(self, letters: Sequence[DeadLetter], marks: Mapping[str, str]) -> None:
        """Keep what could not be delivered, and have these marks, in one. Raises JournalError."""
        with Transaction(self._db):
            self._db.executemany(
                "INSERT INTO dead_letters (hook, seq, time, why, body) VALUES (?, ?, ?, ?, ?)",
                [letter[1:] for letter in letters],
            )
            self._db.executemany("INSERT OR REPLACE INTO marks VALUES (?, ?)", [*marks.items()])

    def dead(self, hook: str, after: int, limit: int) -> list[DeadLetter]:
        """What could not be delivered to a hook, after a number, so many at most."""
        sql = "SELECT * FROM dead_letters WHERE hook = ? AND number > ? ORDER BY number LIMIT ?"
        return [DeadLetter(*row) for row in self._all(sql, hook, after, limit)]

    def dig_out(self, hook: str, numbers: Sequence[int]) -> None:
        """Keep these no longer. Raises JournalError."""
        with Transaction(self._db):
            self._db.executemany(
                "DELETE FROM dead_letters WHERE hook = ? AND number = ?",
                [(hook, number) for number in numbers],
            )

    def audit(self, after: int, limit: int) -> list[AuditRow]:
        """The audit's rows after one, in order, so many at most."""
        sql = "SELECT * FROM audit WHERE number > ? ORDER BY number LIMIT ?"
        return [AuditRow(*row) for row in self._all(sql, after, limit)]

    def last_audit(self) -> AuditRow | None:
        """The newest row of the audit; None before the first."""
        row = self._one("SELECT * FROM audit ORDER BY number DESC LIMIT 1")
        return None if row is None else AuditRow(*row)

    def _all(self, sql: str, *values: Any) -> list[Any]:
        try:
            return self._db.execute(sql, values).fetchall()
        except sqlite3.Error as error:
            raise JournalError(f"{self.path}: {mend(error)}") from error

    def _one(self, sql: str, *values: Any) -> Any:
        rows = self._all(sql, *values)
        return rows[0] if rows else None
