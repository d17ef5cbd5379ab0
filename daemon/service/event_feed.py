"""The event stream: past notices from the journal, then new ones as they become durable."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from itertools import islice

from daemon.journal.writer import JournalWriter
from daemon.model.limits import NOTICES_LIVE, NOTICES_PAGE
from daemon.model.outputs import Notice


class NoticeStream:
    """Keeps the latest notices in memory and wakes the followers.

    Attributes:
        newest: Sequence number of the latest durable notice; 0 before the first.
    """

    def __init__(self, writer: JournalWriter, newest: int) -> None:
        """Continue after the latest notice in the journal."""
        self._writer = writer
        self._recent: deque[Notice] = deque(maxlen=NOTICES_LIVE)
        self.newest = newest
        self._more = asyncio.Event()
        self._closed = False

    def publish(self, notices: Sequence[Notice]) -> None:
        """Publish notices that have become durable."""
        if notices:
            self._recent.extend(notices)
            self.newest = notices[-1].seq
            self._wake()

    def _wake(self) -> None:
        self._more.set()
        self._more = asyncio.Event()

    def close(self) -> None:
        """End the stream for all followers."""
        self._closed = True
        self._wake()

    async def follow(self, after: int) -> AsyncIterator[Notice]:
        """Yield all notices after number `after`, until the service stops."""
        while page := await self.page(after):
            for notice in page:
                yield notice
                after = notice.seq

    async def page(self, after: int) -> Sequence[Notice]:
        """Return the next notices after `after`; wait for the first; none at the end."""
        while not self._closed:
            if page := await self._page(after):
                return page
            if not self._closed:
                await self._more.wait()
        return ()

    async def _page(self, after: int) -> Sequence[Notice]:
        """Return the next notices after number `after`; none if there are none yet."""
        if after >= self.newest:
            return ()
        first = self._recent[0].seq if self._recent else self.newest + 1
        if after + 1 >= first:  # numbers have no gaps; most readers are near the end
            left = self.newest - after
            page = list(islice(reversed(self._recent), max(0, left - NOTICES_PAGE), left))
            page.reverse()
            return page
        journal = self._writer.journal
        return await self._writer.run(lambda: journal.notices(after, NOTICES_PAGE))
