"""Tables of the pools' accounts: verdicts and loans, in the order of their booking.

Times and row numbers grow together, so the rows of a month are a range of numbers.
"""

from __future__ import annotations

from typing import Literal

from msgspec import json

from daemon.journal.side_tables import SideTables
from daemon.model.account import Booked, Lent, Verdict

LedgerTable = Literal["verdicts", "lent"]

_read_verdict = json.Decoder(Verdict).decode
_read_lent = json.Decoder(Lent).decode


class AccountTables(SideTables):
    """Part of `Journal`. Each method raises JournalError if the database fails."""

    def _book(self, booked: Booked, now: float) -> int:
        """Write the verdicts and loans of a step in its transaction; return the number of rows."""
        if booked.verdicts:
            self._store.many(
                "INSERT INTO verdicts (job, pool, time, body) VALUES (?, ?, ?, ?)",
                [(v.job, v.pool, now, json.encode(v).decode()) for v in booked.verdicts],
            )
        if booked.lent:
            self._store.many(
                "INSERT INTO lent (lender, borrower, job, time, body) VALUES (?, ?, ?, ?, ?)",
                [
                    (row.lender, row.borrower, row.job, now, json.encode(row).decode())
                    for row in booked.lent
                ],
            )
        return len(booked.verdicts) + len(booked.lent)

    def verdict(self, job_id: str) -> Verdict | None:
        """Return the newest verdict of a job, or None."""
        sql = "SELECT body FROM verdicts WHERE job = ? ORDER BY number DESC LIMIT 1"
        row = self._one(sql, job_id)
        return None if row is None else _read_verdict(row[0])

    def verdicts(self, pool: str, before: int, limit: int) -> list[tuple[int, float, Verdict]]:
        """Return a pool's verdicts before a number, newest first: (number, time, verdict)."""
        sql = """SELECT number, time, body FROM verdicts WHERE pool = ? AND number < ?
            ORDER BY number DESC LIMIT ?"""
        rows = self._all(sql, pool, before, limit)
        return [(number, time, _read_verdict(body)) for number, time, body in rows]

    def lent(
        self, pool: str, before: int, limit: int, first: int = 0, other: str = ""
    ) -> list[tuple[int, float, Lent]]:
        """Return the loans of a pool as lender or borrower before a number, newest first.

        Only those from number `first` on, and between the pool and `other` if it is given.
        """
        one = "SELECT number, time, body FROM lent WHERE {} = ? AND number < ? AND number >= ?"
        also = " AND {} = ?" if other else ""
        sql = f"""{(one + also).format("lender", "borrower")} UNION ALL
            {(one + also).format("borrower", "lender")} ORDER BY number DESC LIMIT ?"""
        each = (pool, before, first, *([other] if other else []))
        rows = self._all(sql, *each, *each, limit)
        return [(number, time, _read_lent(body)) for number, time, body in rows]

    def booked_since(self, table: LedgerTable, time: float) -> int:
        """Return the number of the first row booked at or after `time`. O(log n) queries.

        If no such row exists, return the last number plus one.
        """
        low, high = self._one(
            f"SELECT COALESCE(MIN(number), 1), COALESCE(MAX(number), 0) + 1 FROM {table}"  # noqa: S608
        )
        first = f"SELECT number, time FROM {table} WHERE number >= ? ORDER BY number LIMIT 1"  # noqa: S608
        while low < high:
            middle = (low + high) // 2
            number, booked = self._one(first, middle)
            if booked < time:
                low = number + 1
            else:
                high = middle
        return int(low)
