"""What the journal keeps of pools' accounts: verdicts and loans, in the order of their booking.

What is booked later has a later time and a greater number: a month is a range of numbers.
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
    """A part of the journal. All raise JournalError where the database cannot."""

    def _book(self, booked: Booked, now: float) -> int:
        """Write what a step booked, within its transaction; how many rows that is."""
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
        """The last one of a job."""
        sql = "SELECT body FROM verdicts WHERE job = ? ORDER BY number DESC LIMIT 1"
        row = self._one(sql, job_id)
        return None if row is None else _read_verdict(row[0])

    def verdicts(self, pool: str, before: int, limit: int) -> list[tuple[int, float, Verdict]]:
        """A pool's verdicts before a number, newest first: number, when booked, verdict."""
        sql = """SELECT number, time, body FROM verdicts WHERE pool = ? AND number < ?
            ORDER BY number DESC LIMIT ?"""
        rows = self._all(sql, pool, before, limit)
        return [(number, time, _read_verdict(body)) for number, time, body in rows]

    def lent(self, pool: str, before: int, limit: int) -> list[tuple[int, float, Lent]]:
        """What a pool lent and borrowed, likewise."""
        one = "SELECT number, time, body FROM lent WHERE {} = ? AND number < ?"
        sql = f"""{one.format("lender")} UNION ALL {one.format("borrower")}
            ORDER BY number DESC LIMIT ?"""
        rows = self._all(sql, pool, before, pool, before, limit)
        return [(number, time, _read_lent(body)) for number, time, body in rows]

    def booked_since(self, table: LedgerTable, time: float) -> int:
        """The number of the first row that was booked at a time or later: O(log n) look-ups.

        One beyond the last where there is none.
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
