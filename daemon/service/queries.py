"""What the service tells whoever looks: the book, history, notices, the audit."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Sequence
from typing import TypeVar

from daemon.engine.engine import Engine
from daemon.journal.audit import AuditHead
from daemon.journal.journal import AuditRow, Journal
from daemon.journal.writer import JournalWriter
from daemon.model.book import Book, JobRecord
from daemon.model.outputs import Notice
from daemon.service.durability import DurabilityBarrier
from daemon.service.event_feed import NoticeStream

T = TypeVar("T")


class Reader:
    """A part of the service.

    Attributes:
        engine: For reading; another one after the journal failed.
    """

    engine: Engine
    _keeper: JournalWriter
    _live: NoticeStream
    _settled: DurabilityBarrier

    @property
    def book(self) -> Book:
        """Jobs, pools, nodes and maintenance, for reading on the loop's thread."""
        return self.engine.book

    @property
    def told(self) -> int:
        """The number of the newest notice that is durable; 0 before the first."""
        return self._live.newest

    async def past_job(self, job_id: str) -> JobRecord | None:
        """A job that ended too long ago for the book."""
        return await self._keeper.job(job_id)

    async def past_jobs(
        self, before: int, limit: int, pools: Collection[str] | None = None
    ) -> list[tuple[int, JobRecord]]:
        """Jobs that have ended, newest first: see `Journal.history`."""
        return await self._keeper.history(before, limit, pools)

    async def jobs_past(self, job_ids: Sequence[str]) -> dict[str, JobRecord]:
        """Those of these jobs that have ended, however long ago."""
        return await self._keeper.jobs(job_ids)

    @property
    def trail(self) -> AuditHead:
        """Where the audit ends."""
        return self._keeper.trail

    async def audit(self, after: int, limit: int) -> list[AuditRow]:
        """The audit's rows after one, in order: see `Journal.audit`."""
        return await self._keeper.run(lambda: self._keeper.journal.audit(after, limit))

    async def journal(self, read: Callable[[Journal], T]) -> T:
        """What is read of the journal, on its thread."""
        return await self._keeper.run(lambda: read(self._keeper.journal))

    async def settled(self) -> None:
        """Wait until all that `book` and `engine` say is durable; at once if it is.

        To be read before anything else is awaited. Raises UnavailableError while the journal
        cannot even be read.
        """
        await self._settled.wait()

    def notices(self, after: int) -> AsyncIterator[Notice]:
        """All notices after one, those to come too: none is left out, none comes twice."""
        return self._live.follow(after)

    async def page(self, after: int) -> Sequence[Notice]:
        """Some of the notices that come next after one; waits for the first, none at the end."""
        return await self._live.page(after)
