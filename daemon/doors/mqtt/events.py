"""Publish the events of each pool in order, at least once, from a durable cursor."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import aclosing
from time import monotonic
from typing import cast

import msgspec

from daemon.config.mqtt_limits import CURSOR_EVERY
from daemon.doors.mqtt.connection import DENIED, TOO_LARGE, WireError
from daemon.doors.mqtt.reconnecting import Link
from daemon.doors.mqtt.topics import Topics
from daemon.model.access import public_notice
from daemon.model.errors import JournalError
from daemon.model.limits import PROBE_EVERY
from daemon.model.outputs import Notice
from daemon.runtime.logs import log
from daemon.service.service import Service
from daemon.wire.jobs import EventView

_encode = msgspec.json.Encoder().encode


class Events:
    """Publishes the notices that belong to a pool."""

    def __init__(self, service: Service, link: Link, topics: Topics) -> None:
        """Publish a service's events over a link."""
        self._service, self._link, self._topics = service, link, topics
        self._key = f"mqtt:{topics.cluster}:cursor"
        self._under_way: deque[tuple[int, asyncio.Future[int] | None]] = deque()
        self._done = 0
        """Number of the event up to which the broker has confirmed all events."""
        self._noted = -1
        self._note_at = 0.0

    async def run(self) -> None:
        """Publish until the notices end."""
        await self._begin()
        while True:
            await self._link.up.wait()
            self._under_way.clear()
            try:
                if await self._publish_all():
                    return
            except (WireError, JournalError):
                await asyncio.sleep(PROBE_EVERY / 4)

    async def _begin(self) -> None:
        """Load the cursor; without one, start after the newest event."""
        while True:
            try:
                found = (await self._service.notes.read(self._key)).get(self._key)
                self._done = self._service.last_notice if found is None else int(found)
                await self._note()
            except JournalError:
                await asyncio.sleep(PROBE_EVERY)
            else:
                return

    async def _publish_all(self) -> bool:
        """Publish events; return True at their end. Raises WireError if some were not confirmed."""
        notices = cast("AsyncGenerator[Notice]", self._service.notices(self._done))
        async with aclosing(notices):
            following: asyncio.Task[Notice | None] | None = None
            try:
                while True:
                    following = following or asyncio.ensure_future(_next(notices))
                    await asyncio.wait((following,), timeout=self._check_timeout)
                    await self._advance()
                    if not following.done():
                        continue
                    notice, following = following.result(), None
                    if notice is None:
                        return True
                    await self._tell(notice)
            finally:
                if following is not None:
                    following.cancel()
                    await asyncio.wait((following,))

    @property
    def _check_timeout(self) -> float | None:
        """Seconds until confirmations must be checked; None if nothing is in flight."""
        return CURSOR_EVERY if self._under_way or self._noted != self._done else None

    async def _tell(self, notice: Notice) -> None:
        """Publish an event on its pool's topic; a moved loan also on the earlier lender's topic."""
        shown = public_notice(notice)
        if shown is not None and shown.kind == "loan_moved":
            before = await self._send(shown, shown.data["previous"])
            self._under_way.append((notice.seq - 1, before))  # seq follows with the second one
        through = await self._send(shown, shown.pool) if shown is not None and shown.pool else None
        self._under_way.append((notice.seq, through))

    async def _send(self, shown: Notice, pool: str) -> asyncio.Future[int]:
        while not self._service.fence.holds():  # noqa: ASYNC110  the lease has no event to await
            await asyncio.sleep(PROBE_EVERY)
        event = EventView(
            shown.seq, shown.time, shown.kind, shown.job, shown.pool, shown.node, shown.data
        )
        return await self._link.send(self._topics.pool(pool, "event"), _encode(event))

    async def _advance(self) -> None:
        """Advance the cursor over confirmed events. Raises WireError if one was refused."""
        while self._under_way:
            seq, future = self._under_way[0]
            if future is not None:
                if not future.done():
                    break
                reason = future.result()
                if reason == TOO_LARGE:
                    log().warning("event exceeds the broker's packet size", seq=seq)
                elif reason >= DENIED:
                    raise WireError("refused")
            self._under_way.popleft()
            self._done = seq
        if self._noted != self._done and monotonic() >= self._note_at:
            await self._note()

    async def _note(self) -> None:
        await self._service.notes.write({self._key: str(self._done)})
        self._noted, self._note_at = self._done, monotonic() + CURSOR_EVERY


async def _next(notices: AsyncGenerator[Notice]) -> Notice | None:
    return await anext(notices, None)
