"""Tables that are independent of steps: marks, dead letters, the audit log."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct, json

from daemon.journal.rows import AuditRow, DeadLetter
from daemon.journal.store import Store
from daemon.model.book import JobRecord
from daemon.model.limits import AUDIT_AT_ONCE, AUDIT_PAGE, READ_AT_ONCE
from daemon.model.outputs import Notice


class _Timed(Struct):
    """The part of an audit record with its time."""

    time: float


_read_time = json.Decoder(_Timed).decode

SET_MARK = """INSERT INTO marks VALUES (?, ?)
    ON CONFLICT (key) DO UPDATE SET value = excluded.value"""

ALL_IMPORTED = "SELECT body FROM imported ORDER BY number"

ADD_IMPORTED = "INSERT INTO imported VALUES (?, ?, ?)"


def imported_rows(records: Sequence[JobRecord]) -> list[tuple[int, float, str]]:
    """Return the rows of imported jobs: the job that ended last has number -1."""
    first = -len(records)
    return [
        (first + i, record.ended or 0.0, json.encode(record).decode())
        for i, record in enumerate(records)
    ]


class SideTables:
    """Part of `Journal`. Each method raises JournalError if the database fails."""

    def __init__(self, store: Store) -> None:
        """Use the tables of `store`."""
        self._store = store

    @property
    def store(self) -> Store:
        """Return the database, for components with tables of their own."""
        return self._store

    def marks(self, prefix: str) -> dict[str, str]:
        """Return all marks whose key starts with `prefix`, ordered by key."""
        sql = "SELECT key, value FROM marks WHERE substr(key, 1, ?) = ? ORDER BY key"
        return dict(self._all(sql, len(prefix), prefix))

    def mark(self, changes: Mapping[str, str | None]) -> None:
        """Set marks in one transaction; None deletes a mark."""
        rows = [(key, value) for key, value in changes.items() if value is not None]
        gone = [(key,) for key, value in changes.items() if value is None]
        with self._store.transaction():
            self._store.many(SET_MARK, rows)
            self._store.many("DELETE FROM marks WHERE key = ?", gone)

    def add_dead_letters(self, letters: Sequence[DeadLetter], marks: Mapping[str, str]) -> None:
        """Store failed deliveries and set marks, in one transaction."""
        with self._store.transaction():
            self._store.many(
                "INSERT INTO dead_letters (hook, seq, time, why, body) VALUES (?, ?, ?, ?, ?)",
                [letter[1:] for letter in letters],
            )
            self._store.many(SET_MARK, [*marks.items()])

    def dead(self, hook: str, after: int, limit: int) -> list[DeadLetter]:
        """Return up to `limit` dead letters of a webhook after a number, in order."""
        sql = "SELECT * FROM dead_letters WHERE hook = ? AND number > ? ORDER BY number LIMIT ?"
        return [DeadLetter(*row) for row in self._all(sql, hook, after, limit)]

    def dead_numbers(self, hook: str) -> list[int]:
        """Return the numbers of all dead letters of a webhook, in order."""
        sql = "SELECT number FROM dead_letters WHERE hook = ? ORDER BY number"
        return [row[0] for row in self._all(sql, hook)]

    def remove_dead_letters(self, hook: str, numbers: Sequence[int]) -> None:
        """Delete dead letters of a webhook."""
        with self._store.transaction():
            self._store.many(
                "DELETE FROM dead_letters WHERE hook = ? AND number = ?",
                [(hook, number) for number in numbers],
            )

    def notices_of(self, kinds: Sequence[str]) -> Iterator[Notice]:
        """Yield all notices of these kinds in order, reading them in pages."""
        marks, after = ", ".join("?" * len(kinds)), 0
        sql = f"SELECT * FROM notices WHERE seq > ? AND kind IN ({marks}) ORDER BY seq LIMIT ?"  # noqa: S608
        while rows := self._all(sql, after, *kinds, READ_AT_ONCE):
            for seq, time, kind, job, pool, node, data in rows:
                yield Notice(seq, time, kind, job, pool, node, json.decode(data))
            after = rows[-1][0]

    def audit(self, after: int, limit: int) -> list[AuditRow]:
        """Return up to `limit` audit rows after a number, at most about `AUDIT_PAGE` characters."""
        sql = "SELECT * FROM audit WHERE number > ? ORDER BY number LIMIT ?"
        rows: list[AuditRow] = []
        size = 0
        while size < AUDIT_PAGE and len(rows) < limit:
            wanted = min(AUDIT_AT_ONCE, limit - len(rows))
            some = [AuditRow(*row) for row in self._all(sql, after, wanted)]
            rows += some
            size += sum(len(row.body) for row in some)
            if len(some) < wanted:
                break
            after = some[-1].number
        return rows

    def audit_since(self, time: float) -> int:
        """Return the number of the first record at or after a time; O(log records) queries.

        If there is none, return the last number plus one.
        """
        newest = self.last_audit()
        low, high = 1, 1 if newest is None else newest.number + 1
        while low < high:
            middle = (low + high) // 2
            (body,) = self._one("SELECT body FROM audit WHERE number = ?", middle)
            if _read_time(body).time < time:
                low = middle + 1
            else:
                high = middle
        return low

    def last_audit(self) -> AuditRow | None:
        """Return the newest audit row; None if there is none."""
        row = self._one("SELECT * FROM audit ORDER BY number DESC LIMIT 1")
        return None if row is None else AuditRow(*row)

    def _all(self, sql: str, *values: Any) -> list[Any]:
        return self._store.all(sql, values)

    def _one(self, sql: str, *values: Any) -> Any:
        rows = self._all(sql, *values)
        return rows[0] if rows else None
