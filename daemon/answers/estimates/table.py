"""Store estimates in the journal's database."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Any, Protocol

from msgspec import json

from daemon.answers.estimates.calibration import Given
from daemon.journal.journal import Journal
from daemon.model.errors import JournalError
from daemon.service.queries import Reader

PAGE = 1000
"""Number of estimates read at a time. The read takes a few milliseconds, during which no step
commits."""

MEMORY_KEPT = 10_000
"""Maximum number of estimates kept in memory if there is no table: the newest, about 10 MB."""

AT_ONCE = 200
"""Number of estimates written in one transaction, which takes one or two milliseconds."""

_read = json.Decoder(Given).decode


class EstimateStore(Protocol):
    """A store of estimates."""

    async def keep(self, given: Sequence[Given]) -> None:
        """Store estimates durably. Raises JournalError."""

    async def since(self, made: float) -> list[Given]:
        """Return estimates made at `made` (epoch seconds) or later. Raises JournalError."""

    async def of_job(self, job_id: str) -> list[Given]:
        """Return the estimates of a job, in order. Raises JournalError."""


class EstimateTable:
    """Store estimates in the table `estimates`."""

    def __init__(self, service: Reader) -> None:
        """Use the journal of this service."""
        self._service = service

    async def keep(self, given: Sequence[Given]) -> None:
        """Store estimates durably. Raises JournalError."""
        for start in range(0, len(given), AT_ONCE):
            rows = [
                (each.job, each.pool, each.made, json.encode(each).decode())
                for each in given[start : start + AT_ONCE]
            ]
            await self._service.journal(partial(_write, rows))

    async def since(self, made: float) -> list[Given]:
        """Return estimates made at `made` (epoch seconds) or later. Raises JournalError."""
        sql = (
            "SELECT number, body FROM estimates WHERE number > ? AND made >= ?"
            " ORDER BY number LIMIT ?"
        )
        found: list[Given] = []
        after = -1
        while rows := await self._all(sql, after, made, PAGE):
            found += [_read(body) for _, body in rows]
            after = rows[-1][0]
        return found

    async def of_job(self, job_id: str) -> list[Given]:
        """Return the estimates of a job, in order. Raises JournalError."""
        rows = await self._all("SELECT body FROM estimates WHERE job = ? ORDER BY number", job_id)
        return [_read(body) for (body,) in rows]

    async def _all(self, sql: str, *values: object) -> list[Any]:
        return await self._service.journal(lambda journal: journal.store.all(sql, values))


def _write(rows: Sequence[tuple[str, str, float, str]], journal: Journal) -> None:
    with journal.store.transaction():
        sql = "INSERT INTO estimates (job, pool, made, body) VALUES (?, ?, ?, ?)"
        journal.store.many(sql, rows)
    journal.added(len(rows))


class EstimateMemory:
    """Keep estimates in memory: for a database without the table `estimates`."""

    def __init__(self) -> None:
        """Start with no estimate."""
        self._given: deque[Given] = deque(maxlen=MEMORY_KEPT)

    async def keep(self, given: Sequence[Given]) -> None:
        """Keep estimates."""
        self._given += given

    async def since(self, made: float) -> list[Given]:
        """Return estimates made at `made` (epoch seconds) or later."""
        return [each for each in self._given if each.made >= made]

    async def of_job(self, job_id: str) -> list[Given]:
        """Return the estimates of a job, in order."""
        return [each for each in self._given if each.job == job_id]


async def estimate_store(service: Reader) -> EstimateStore:
    """Return the table, or a store in memory if the database has no such table."""
    table = EstimateTable(service)
    try:
        await table.of_job("")
    except JournalError:
        return EstimateMemory()
    return table
