"""`/v1/events`: what happened, in pages, or as it happens (server-sent events)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import TYPE_CHECKING, Annotated, cast

import msgspec
from aiohttp import web
from msgspec import Meta

from daemon.answers import Notice
from daemon.http.limits import HEARTBEAT, MAX_PAGE, MAX_READERS, MAX_SEQ, PAGE, SLOW_READER
from daemon.http.operations import Operation, Parameter, answer, query_of
from daemon.http.problems import ProblemError
from daemon.schemas import Event, Events

if TYPE_CHECKING:
    from daemon.service import Service

SSE = "text/event-stream"

Seq = Annotated[int, Meta(ge=0, le=MAX_SEQ)]

QUERY = (
    Parameter("after", Seq, "Only events after this one; a stream without it begins now."),
    Parameter("limit", Annotated[int, Meta(ge=1, le=MAX_PAGE)], "Of a page.", default=PAGE),
)
LAST = Parameter("Last-Event-ID", Seq, "As `after`, sent by browsers that resume.", "header")

_encode = msgspec.json.Encoder().encode


class EventRoutes:
    """Pages and streams."""

    def __init__(self, service: Service) -> None:
        """Serve this."""
        self._service = service
        self._readers: set[asyncio.Task[object]] = set()
        self._closed = False

    def operations(self) -> list[Operation]:
        """The one."""
        return [
            Operation(
                "GET", "/v1/events", self.events,
                "Events after one: a page, or, with Accept: text/event-stream, all to come.",
                {200: Events}, parameters=(*QUERY, LAST), refusals=(422,), stream=True,
            )
        ]  # fmt: skip

    async def events(self, request: web.Request) -> web.StreamResponse:
        """A page, or a stream."""
        asked = query_of(request, QUERY)
        resumed = _resumed(request)
        after = resumed if asked["after"] is None else asked["after"]
        if SSE not in request.headers.get("Accept", ""):
            return answer(await self._page(after or 0, asked["limit"]))
        return await self._stream(request, self._service.told if after is None else after)

    def _follow(self, after: int) -> AsyncGenerator[Notice]:
        return cast("AsyncGenerator[Notice]", self._service.notices(after))

    async def _page(self, after: int, limit: int) -> Events:
        events: list[Event] = []
        wanted = min(self._service.told, after + limit)
        if wanted > after:
            async with aclosing(self._follow(after)) as notices:
                async for notice in notices:
                    events.append(_event(notice))
                    if notice.seq >= wanted:
                        break
        return Events(events, events[-1].seq if events else after)

    async def _stream(self, request: web.Request, after: int) -> web.StreamResponse:
        if len(self._readers) >= MAX_READERS:
            raise ProblemError(
                503, "too many readers", f"{MAX_READERS} follow already", "end one of them",
                headers={"Retry-After": "10"},
            )  # fmt: skip
        headers = {"Content-Type": SSE, "Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        response = web.StreamResponse(headers=headers)
        reader = asyncio.current_task()
        assert reader is not None, "requests are tasks"
        self._readers.add(reader)
        try:
            await response.prepare(request)
            async with aclosing(self._follow(after)) as notices:
                await _feed(response, notices, after)
        except asyncio.CancelledError:
            if not self._closed:
                raise
            reader.uncancel()
            await response.write_eof()
        except (TimeoutError, ConnectionError):
            if request.transport is not None:
                request.transport.abort()  # it does not read; it resumes by Last-Event-ID
        finally:
            self._readers.discard(reader)
        return response

    async def close(self, app: web.Application) -> None:
        """Nobody follows any more: they come back to whoever serves next."""
        self._closed = True
        for reader in self._readers:
            reader.cancel()


async def _feed(response: web.StreamResponse, notices: AsyncIterator[Notice], after: int) -> None:
    """Send what happens until nothing more will. Raises TimeoutError for a reader that is slow.

    The number that comes first has a reader resume there who was cut off before the first event.
    """
    following: asyncio.Task[Notice | None] | None = None
    try:
        await _send(response, b": after a cut, resume with Last-Event-ID\nid: %d\n\n" % after)
        while True:
            following = following or asyncio.ensure_future(_next(notices))
            done, _ = await asyncio.wait((following,), timeout=HEARTBEAT)
            if not done:
                await _send(response, b": alive\n\n")
                continue
            notice, following = following.result(), None
            if notice is None:
                return
            await _send(response, line(notice))
    finally:
        if following is not None:
            following.cancel()
            await asyncio.wait((following,))


async def _next(notices: AsyncIterator[Notice]) -> Notice | None:
    return await anext(notices, None)


async def _send(response: web.StreamResponse, data: bytes) -> None:
    async with asyncio.timeout(SLOW_READER):
        await response.write(data)


def line(notice: Notice) -> bytes:
    """A notice as one server-sent event."""
    body = _encode(_event(notice))
    return b"id: %d\nevent: %b\ndata: %b\n\n" % (notice.seq, notice.kind.encode(), body)


def _event(notice: Notice) -> Event:
    return Event(
        notice.seq, notice.time, notice.kind, notice.job, notice.pool, notice.node, notice.data
    )


def _resumed(request: web.Request) -> int | None:
    """What a reader has seen already. Raises ProblemError where it is no number."""
    said = request.headers.get("Last-Event-ID")
    if said is None:
        return None
    try:
        return msgspec.convert(said, Seq, strict=False)
    except msgspec.ValidationError:
        raise ProblemError(
            422, "invalid", f"Last-Event-ID is {said[:40]!r}", "send the id of an event"
        ) from None
