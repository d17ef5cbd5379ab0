"""What the journal keeps beside the steps: marks, dead letters, the audit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec import json

from daemon.journal.rows import AuditRow, DeadLetter
from daemon.journal.store import Store
from daemon.model.limits import AUDIT_AT_ONCE, AUDIT_PAGE, READ_AT_ONCE
from daemon.model.outputs import Notice

SET_MARK = """INSERT INTO marks VALUES (?, ?)
    ON CONFLICT (key) DO UPDATE SET value = excluded.value"""


class SideTables:
    """A part of the journal. All raise JournalError where the database cannot."""

    def __init__(self, store: Store) -> None:
        """In this database."""
        self._store = store

    @property
    def store(self) -> Store:
        """The database, for tables of which the journal needs to know nothing."""
        return self._store

    def marks(self, prefix: str) -> dict[str, str]:
        """All marks of which the key begins so, in order of their keys."""
        sql = "SELECT key, value FROM marks WHERE substr(key, 1, ?) = ? ORDER BY key"
        return dict(self._all(sql, len(prefix), prefix))

    def mark(self, changes: Mapping[str, str | None]) -> None:
        """Have marks be these from now on; None is to be no more. Raises JournalError."""
        kept = [(key, value) for key, value in changes.items() if value is not None]
        gone = [(key,) for key, value in changes.items() if value is None]
        with self._store.transaction():
            self._store.many(SET_MARK, kept)
            self._store.many("DELETE FROM marks WHERE key = ?", gone)

    def bury(self, letters: Sequence[DeadLetter], marks: Mapping[str, str]) -> None:
        """Keep what could not be delivered, and have these marks, in one. Raises JournalError."""
        with self._store.transaction():
            self._store.many(
                "INSERT INTO dead_letters (hook, seq, time, why, body) VALUES (?, ?, ?, ?, ?)",
                [letter[1:] for letter in letters],
            )
            self._store.many(SET_MARK, [*marks.items()])

    def dead(self, hook: str, after: int, limit: int) -> list[DeadLetter]:
        """What could not be delivered to a hook, after a number, so many at most."""
        sql = "SELECT * FROM dead_letters WHERE hook = ? AND number > ? ORDER BY number LIMIT ?"
        return [DeadLetter(*row) for row in self._all(sql, hook, after, limit)]

    def dead_numbers(self, hook: str) -> list[int]:
        """Of all that could not be delivered to a hook, in order."""
        sql = "SELECT number FROM dead_letters WHERE hook = ? ORDER BY number"
        return [row[0] for row in self._all(sql, hook)]

    def dig_out(self, hook: str, numbers: Sequence[int]) -> None:
        """Keep these no longer. Raises JournalError."""
        with self._store.transaction():
            self._store.many(
                "DELETE FROM dead_letters WHERE hook = ? AND number = ?",
                [(hook, number) for number in numbers],
            )

    def notices_of(self, kinds: Sequence[str]) -> Iterator[Notice]:
        """All notices of these kinds, in order, read piece by piece."""
        marks, after = ", ".join("?" * len(kinds)), 0
        sql = f"SELECT * FROM notices WHERE seq > ? AND kind IN ({marks}) ORDER BY seq LIMIT ?"  # noqa: S608
        while rows := self._all(sql, after, *kinds, READ_AT_ONCE):
            for seq, time, kind, job, pool, node, data in rows:
                yield Notice(seq, time, kind, job, pool, node, json.decode(data))
            after = rows[-1][0]

    def audit(self, after: int, limit: int) -> list[AuditRow]:
        """The audit's rows after one, in order, so many at most, and no more than make a page."""
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

    def last_audit(self) -> AuditRow | None:
        """The newest row of the audit; None before the first."""
        row = self._one("SELECT * FROM audit ORDER BY number DESC LIMIT 1")
        return None if row is None else AuditRow(*row)

    def _all(self, sql: str, *values: Any) -> list[Any]:
        return self._store.all(sql, values)

    def _one(self, sql: str, *values: Any) -> Any:
        rows = self._all(sql, *values)
        return rows[0] if rows else None
