"""Read access to the service's state: the book, history, notices, the audit."""

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
    """The reading half of the service.

    Attributes:
        engine: Read only. The service replaces it after a journal failure.
    """

    engine: Engine
    _writer: JournalWriter
    _event_feed: NoticeStream
    _durability: DurabilityBarrier

    @property
    def book(self) -> Book:
        """Jobs, pools, nodes and maintenance windows. Read only, on the event loop's thread."""
        return self.engine.book

    @property
    def last_notice(self) -> int:
        """Sequence number of the latest durable notice; 0 before the first."""
        return self._event_feed.newest

    async def past_job(self, job_id: str) -> JobRecord | None:
        """Return an ended job that was evicted from memory; None if there is none."""
        return await self._writer.job(job_id)

    async def past_jobs(
        self, before: int, limit: int, pools: Collection[str] | None = None
    ) -> list[tuple[int, JobRecord]]:
        """Return ended jobs, newest first: see `Journal.history`."""
        return await self._writer.history(before, limit, pools)

    async def observed_jobs(self, before: int, limit: int) -> list[tuple[int, JobRecord]]:
        """Return ended jobs, newest first: the daemon's own, then the imported ones.

        The imported ones have negative numbers; `before` 0 starts with the newest job.
        """
        found = [] if before < 0 else await self.past_jobs(before, limit)
        if len(found) < limit:
            first, rest = min(before, 0), limit - len(found)
            found += await self._writer.run(lambda: self._writer.journal.imported(first, rest))
        return found

    async def jobs_past(self, job_ids: Sequence[str]) -> dict[str, JobRecord]:
        """Return the ended jobs with these ids, however long ago they ended."""
        return await self._writer.jobs(job_ids)

    @property
    def trail(self) -> AuditHead:
        """The end of the audit's hash chain."""
        return self._writer.trail

    async def audit(self, after: int, limit: int) -> list[AuditRow]:
        """Return the audit's rows after number `after`, in order: see `Journal.audit`."""
        return await self._writer.run(lambda: self._writer.journal.audit(after, limit))

    async def journal(self, read: Callable[[Journal], T]) -> T:
        """Return the result of reading the journal, on its thread."""
        return await self._writer.run(lambda: read(self._writer.journal))

    async def settled(self) -> None:
        """Wait until everything in `book` and `engine` is durable.

        Read both before the next await. Raises UnavailableError while it is unknown what is
        durable.
        """
        await self._durability.wait()

    def notices(self, after: int) -> AsyncIterator[Notice]:
        """Yield all notices after number `after`, past and future, without gaps or duplicates."""
        return self._event_feed.follow(after)

    async def page(self, after: int) -> Sequence[Notice]:
        """Return the next notices after one, waiting for the first; none once the service stops."""
        return await self._event_feed.page(after)
