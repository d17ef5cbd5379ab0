"""The journal: a database that makes each step durable before its results are visible.

Each step is one transaction. One thread at a time uses the journal. `store.Store` hides the kind of
database.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

from msgspec import json

from daemon.journal.account_tables import AccountTables
from daemon.journal.highwater import GENESIS, HOW_TO_GO_ON, HighWater, LossError, step_digest
from daemon.journal.rows import (
    AuditRow,
    DeadLetter,
    JournalEntry,
    SnapshotPart,
    StoredStep,
    decisions_json,
    parts_of,
    snapshot_digest,
)
from daemon.journal.schema import create_tables
from daemon.journal.side_tables import ADD_IMPORTED, imported_rows
from daemon.journal.sqlite import SqliteStore
from daemon.journal.store import Store
from daemon.model.book import JobRecord
from daemon.model.errors import JournalError
from daemon.model.inputs import Input
from daemon.model.limits import (
    ASKED_AT_ONCE,
    KEEP_ESTIMATES,
    KEEP_HISTORY,
    KEEP_RECORDS,
    POOLS_AT_ONCE,
    PROBE_BYTES,
    PRUNE_EVERY,
    PRUNED_AT_ONCE,
    READ_AT_ONCE,
    SNAPSHOTS_KEPT,
)
from daemon.model.outputs import Notice
from daemon.runtime.clock import Anchor
from sia.console.errors import UserError

LAST_NUMBER = 2**63 - 1
"""Largest row number of any database."""

SET_PART = """INSERT INTO parts VALUES (?, ?, ?)
    ON CONFLICT (seq, part) DO UPDATE SET body = excluded.body"""
SET_SNAPSHOT = """INSERT INTO snapshots (seq, parts, digest) VALUES (?, ?, ?)
    ON CONFLICT (seq) DO UPDATE SET parts = excluded.parts, digest = excluded.digest"""
COLUMNS = "seq, now, boot, uptime, inputs, decisions"
"""Columns of a step that its digest covers."""

EPOCH = "epoch"
"""Key of the mark that counts how many times a daemon has opened the journal."""

__all__ = [
    "AuditRow",
    "DeadLetter",
    "Journal",
    "JournalEntry",
    "JournalError",
    "SnapshotPart",
    "StoredStep",
    "parts_of",
]

_read_inputs = json.Decoder(list[Input]).decode
_read_job = json.Decoder(JobRecord).decode


class Journal(AccountTables):
    """All steps, in order. Not thread-safe.

    Attributes:
        last: Number of the last step; 0 before the first.
        epoch: Number of the daemon that opened the journal; each daemon gets a greater one.
        where: Name of the database in messages.
    """

    def __init__(
        self,
        where: Path | Store,
        *,
        keep_records: float = KEEP_RECORDS,
        keep_history: float = KEEP_HISTORY,
    ) -> None:
        """Open or create the database; a path means SQLite. Times are in seconds.

        Raises UserError if the database belongs to another program, was written by a newer release,
        is in use, or cannot be read.
        """
        super().__init__(SqliteStore(where) if isinstance(where, Path) else where)
        self.where = self._store.where
        self._keep_records, self._keep_history = keep_records, keep_history
        self._added = 0  # rows added since the last pruning
        self._audit = 0, GENESIS
        try:
            self._open()
            self.epoch = self._store.epoch or self._take_hold()
        except JournalError as error:
            self._store.release()
            raise UserError(f"{self.where}: {error}") from error
        except BaseException:
            self._store.release()
            raise

    def _open(self) -> None:
        self._store.open()
        try:
            create_tables(self._store)
            if lost := self._store.lost():
                raise LossError(f"{self.where}: {lost}; {HOW_TO_GO_ON}")
            last: int = self._one("SELECT COALESCE(MAX(seq), 0) FROM records")[0]
            self.last = max(last, *self.snapshots(), 0)
            self._digest = self.digest_of(self.last)
            self._acknowledge(self.last_audit())
        except BaseException:
            self._store.close()
            raise

    def digest_of(self, seq: int) -> str:
        """Return the digest of a step and all before it; empty if the step is missing."""
        if seq == 0:
            return GENESIS
        row = self._one("SELECT digest FROM records WHERE seq = ?", seq)
        return "" if row is None else str(row[0])

    def _acknowledge(self, newest: AuditRow | None) -> None:
        """Write the high-water mark. Raises JournalError."""
        if newest is not None:
            self._audit = newest.number, newest.digest
        self._store.acknowledge(HighWater(self.last, self._digest, *self._audit))

    def _take_hold(self) -> int:
        epoch = int(self.marks(EPOCH).get(EPOCH, "0")) + 1
        self.mark({EPOCH: str(epoch)})
        return epoch

    def reopen(self) -> None:
        """Close the database and open it again, to read what is durable.

        Raises JournalError if the database cannot be opened.
        """
        try:
            self._store.close()
            self._open()
        except UserError as error:
            raise JournalError(str(error)) from error

    def close(self) -> None:
        """Close the database and release its lock."""
        self._store.release()

    def commit(self, entry: JournalEntry, part: SnapshotPart | None = None) -> None:
        """Commit a step, and optionally a part of a snapshot. Raises JournalError."""
        assert entry.seq == self.last + 1, f"step {entry.seq} after {self.last}"
        with self._store.transaction():
            digest = self._write(entry)
            if part is not None:
                self._write_part(part)
            if entry.audit:
                self._store.many("INSERT INTO audit VALUES (?, ?, ?)", entry.audit)
            booked = self._book(entry.booked, entry.anchor.now)
            self._added += 1 + len(entry.notices) + len(entry.over) + booked
            if self._added >= PRUNE_EVERY:
                self._prune(entry.anchor.now, max(PRUNED_AT_ONCE, 2 * self._added))
                self._added = 0
        self.last, self._digest = entry.seq, digest
        self._acknowledge(entry.audit[-1] if entry.audit else None)

    def append_audit(self, rows: Sequence[AuditRow]) -> None:
        """Make audit records durable that belong to no step. Raises JournalError."""
        with self._store.transaction():
            self._store.many("INSERT INTO audit VALUES (?, ?, ?)", rows)
        self._acknowledge(rows[-1])

    def _write(self, entry: JournalEntry) -> str:
        """Write the rows of a step; return its digest."""
        anchor = entry.anchor
        row = (
            entry.seq,
            float(anchor.now),
            anchor.boot,
            float(anchor.uptime),
            json.encode(entry.inputs).decode(),
            decisions_json(entry.decisions).decode(),
        )
        digest = step_digest(self._digest, row)
        insert = f"INSERT INTO records ({COLUMNS}, digest) VALUES (?, ?, ?, ?, ?, ?, ?)"  # noqa: S608
        self._store.run(insert, (*row, digest))
        if entry.notices:
            self._store.many(
                "INSERT INTO notices VALUES (?, ?, ?, ?, ?, ?, ?)",
                [
                    (n.seq, n.time, n.kind, n.job, n.pool, n.node, json.encode(n.data).decode())
                    for n in entry.notices
                ],
            )
        if entry.over:
            self._store.many(
                "INSERT INTO history (id, ended, pool, body) VALUES (?, ?, ?, ?)",
                [
                    (job.spec.id, job.ended, job.spec.pool, json.encode(job).decode())
                    for job in entry.over
                ],
            )
        return digest

    def save(self, part: SnapshotPart) -> None:
        """Commit a part of a snapshot without a step. Raises JournalError."""
        with self._store.transaction():
            self._write_part(part)

    def _write_part(self, part: SnapshotPart) -> None:
        run = self._store.run
        if part.part == 0:
            run("DELETE FROM parts WHERE seq NOT IN (SELECT seq FROM snapshots)")
        run(SET_PART, part[:3])
        if part.last:
            run(SET_SNAPSHOT, (part.seq, part.part + 1, part.digest))
            newest = "SELECT seq FROM snapshots ORDER BY seq DESC LIMIT ?"
            run(f"DELETE FROM snapshots WHERE seq NOT IN ({newest})", (SNAPSHOTS_KEPT,))  # noqa: S608
            run("DELETE FROM parts WHERE seq NOT IN (SELECT seq FROM snapshots)")

    def _prune(self, now: float, most: int) -> None:
        """Delete expired rows, at most `most` per table, which is more than were added."""
        oldest = min(self.snapshots(), default=0)
        for table, key, where, values in (
            # The step of a snapshot stays, because the digest of the next step covers its digest.
            ("records", "seq", "seq < ? AND now < ?", (oldest, now - self._keep_records)),
            ("notices", "seq", "time < ?", (now - self._keep_history,)),
            ("history", "number", "ended < ?", (now - self._keep_history,)),
            ("imported", "number", "ended < ?", (now - self._keep_history,)),
            ("verdicts", "number", "time < ?", (now - self._keep_history,)),
            ("lent", "number", "time < ?", (now - self._keep_history,)),
            ("estimates", "number", "made < ?", (now - min(KEEP_ESTIMATES, self._keep_history),)),
        ):
            # Keys and times have the same order: only the oldest rows can be expired.
            first = f"SELECT {key} FROM {table} ORDER BY {key} LIMIT {most}"  # noqa: S608
            self._store.run(f"DELETE FROM {table} WHERE {key} IN ({first}) AND {where}", values)  # noqa: S608

    def added(self, rows: int) -> None:
        """Count rows that were added outside of steps, so that pruning keeps up with them."""
        self._added += rows

    def probe(self) -> None:
        """Test a write. Raises JournalError if the write fails."""
        with self._store.transaction():
            self._store.run("INSERT INTO probe (body) VALUES (?)", (bytes(PROBE_BYTES),))
        with self._store.transaction():
            self._store.run("DELETE FROM probe")

    def anchor(self) -> Anchor | None:
        """Return the clock anchor of the last step; None before the first."""
        row = self._one("SELECT boot, uptime, now FROM records ORDER BY seq DESC LIMIT 1")
        return None if row is None else Anchor(*row)

    def snapshots(self) -> list[int]:
        """Return the steps that have a complete snapshot, newest first."""
        return [row[0] for row in self._all("SELECT seq FROM snapshots ORDER BY seq DESC")]

    def snapshot(self, seq: int) -> bytes:
        """Return the snapshot taken after step `seq`. Raises ValueError if it is damaged."""
        parts = self._all("SELECT part FROM parts WHERE seq = ? ORDER BY part", seq)
        one = "SELECT body FROM parts WHERE seq = ? AND part = ?"  # for all, it could time out
        try:
            body = b"".join(self._one(one, seq, part)[0] for (part,) in parts)
        except TypeError:  # a part is missing or has another type
            raise ValueError(f"snapshot {seq} is damaged") from None
        stored = self._one("SELECT digest FROM snapshots WHERE seq = ?", seq)
        if stored is None or stored[0] != snapshot_digest(body):
            raise ValueError(f"snapshot {seq} is damaged")
        return body

    def records(self, after: int) -> Iterator[StoredStep]:
        """Yield the steps after a number, in order.

        Raises UserError if a step cannot be decoded, LossError if one is missing or damaged.
        """
        sql = f"SELECT {COLUMNS}, digest FROM records WHERE seq > ? ORDER BY seq LIMIT ?"  # noqa: S608
        last, before = after, self.digest_of(after) if after else None
        while rows := self._all(sql, last, READ_AT_ONCE):
            for *row, digest in rows:
                seq, now, _, _, inputs, decisions = row
                if before is None:  # the oldest steps may have been pruned
                    last, before = seq - 1, GENESIS if seq == 1 else None
                if seq != last + 1:
                    raise self._damaged(f"step {last + 1} is missing")
                self._check(row, digest, before)
                yield StoredStep(seq, now, self._inputs(seq, inputs), decisions.encode())
                last, before = seq, digest

    def _check(self, row: Sequence[Any], digest: str, before: str | None) -> None:
        if before is not None and digest != step_digest(before, row):
            raise self._damaged(f"step {row[0]} or an earlier step was changed")

    def _damaged(self, what: str) -> LossError:
        return LossError(f"{self.where}: {what}; restore a backup")

    def _inputs(self, seq: int, text: str) -> list[Input]:
        try:
            return _read_inputs(text)
        except ValueError as error:
            raise UserError(
                f"{self.where}: record {seq} cannot be read: {error}; use the release that wrote it"
            ) from error

    def notices(self, after: int, limit: int) -> list[Notice]:
        """Return up to `limit` notices after a number, in order."""
        sql = "SELECT * FROM notices WHERE seq > ? ORDER BY seq LIMIT ?"
        return [
            Notice(seq, time, kind, job, pool, node, json.decode(data))
            for seq, time, kind, job, pool, node, data in self._all(sql, after, limit)
        ]

    def job(self, job_id: str) -> JobRecord | None:
        """Return an ended job, or None; the history covers `keep_history`."""
        row = self._one("SELECT body FROM history WHERE id = ?", job_id)
        return None if row is None else _read_job(row[0])

    def jobs(self, job_ids: Sequence[str]) -> dict[str, JobRecord]:
        """Return those of the given jobs that have ended, by id."""
        found = {}
        for start in range(0, len(job_ids), ASKED_AT_ONCE):
            some = job_ids[start : start + ASKED_AT_ONCE]
            marks = ", ".join("?" * len(some))
            rows = self._all(f"SELECT id, body FROM history WHERE id IN ({marks})", *some)  # noqa: S608
            found.update({job_id: _read_job(body) for job_id, body in rows})
        return found

    def history(
        self, before: int, limit: int, pools: Collection[str] | None = None
    ) -> list[tuple[int, JobRecord]]:
        """Return ended jobs before a row number, newest first.

        `before` 0 starts with the newest job. `pools` None means all pools.
        O(limit · pools / POOLS_AT_ONCE).
        """
        before = before or LAST_NUMBER
        if pools is None:
            sql = "SELECT number, body FROM history WHERE number < ? ORDER BY number DESC LIMIT ?"
            rows = self._all(sql, before, limit)
        else:
            rows = self._numbered(self._newest_of(sorted(pools), before, limit))
        return [(number, _read_job(body)) for number, body in rows]

    def imported(self, before: int, limit: int) -> list[tuple[int, JobRecord]]:
        """Return imported jobs before a row number, newest first; their numbers are negative.

        `before` 0 starts with the newest job.
        """
        sql = "SELECT number, body FROM imported WHERE number < ? ORDER BY number DESC LIMIT ?"
        return [(number, _read_job(body)) for number, body in self._all(sql, before, limit)]

    def replace_imported(self, records: Sequence[JobRecord]) -> None:
        """Make these jobs, in order of their ends, all imported jobs, in one transaction."""
        with self._store.transaction():
            self._store.run("DELETE FROM imported")
            self._store.many(ADD_IMPORTED, imported_rows(records))

    def _newest_of(self, pools: Sequence[str], before: int, limit: int) -> list[int]:
        """Return the newest row numbers of these pools, from each pool's index."""
        found: list[int] = []
        of_pool = "SELECT number FROM history WHERE pool = ? AND number < ?"
        for start in range(0, len(pools), POOLS_AT_ONCE):
            some = pools[start : start + POOLS_AT_ONCE]
            merged = " UNION ALL ".join([of_pool] * len(some))
            values = [value for pool in some for value in (pool, before)]
            rows = self._all(f"{merged} ORDER BY number DESC LIMIT ?", *values, limit)
            found += [number for (number,) in rows]
        return sorted(found, reverse=True)[:limit]

    def _numbered(self, numbers: Sequence[int]) -> list[tuple[int, str]]:
        rows = []
        for start in range(0, len(numbers), ASKED_AT_ONCE):
            some = numbers[start : start + ASKED_AT_ONCE]
            marks = ", ".join("?" * len(some))
            rows += self._all(f"SELECT number, body FROM history WHERE number IN ({marks})", *some)  # noqa: S608
        return sorted(rows, reverse=True)
