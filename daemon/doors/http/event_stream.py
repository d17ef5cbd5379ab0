"""`/v1/events`: pages of past events, and a stream of new ones (server-sent events)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, suppress
from time import monotonic
from typing import TYPE_CHECKING, Annotated, cast

import msgspec
from aiohttp import web
from msgspec import Meta

from daemon.doors.http.authentication import TokenAuth
from daemon.doors.http.authorization import who_asks
from daemon.doors.http.operations import Operation, Parameter, answer, query_of
from daemon.model.access import Principal, Role, Rule, visible_to
from daemon.model.outputs import Notice
from daemon.wire.jobs import EventPage, EventView
from daemon.wire.limits import (
    HEARTBEAT,
    MAX_PAGE,
    MAX_READERS,
    MAX_SEQ,
    PAGE,
    READERS_EACH,
    READERS_KEPT,
    SLOW_READER,
)
from daemon.wire.problems import ProblemError

if TYPE_CHECKING:
    from daemon.service.service import Service

SSE = "text/event-stream"

Seq = Annotated[int, Meta(ge=0, le=MAX_SEQ)]

QUERY = (
    Parameter("after", Seq, "Only events after this number; default of a stream: from now on."),
    Parameter("limit", Annotated[int, Meta(ge=1, le=MAX_PAGE)], "Page size.", default=PAGE),
)
LAST = Parameter("Last-Event-ID", Seq, "As `after`; browsers send it on reconnect.", "header")

_encode = msgspec.json.Encoder().encode


class EventRoutes:
    """Handlers of event pages and streams."""

    def __init__(self, service: Service, gate: TokenAuth) -> None:
        """Serve the events of a service; `gate` re-checks the token while a stream is open."""
        self._service, self._gate = service, gate
        self._readers: dict[asyncio.Task[object], Principal] = {}
        self._closed = False

    def operations(self) -> list[Operation]:
        """Return the operations."""
        return [
            Operation(
                "GET", "/v1/events", Rule.VIEW, self.events,
                "Events after a number: a page, or with Accept: text/event-stream a stream.",
                {200: EventPage}, parameters=(*QUERY, LAST), refusals=(422,), stream=True,
            )
        ]  # fmt: skip

    async def events(self, request: web.Request) -> web.StreamResponse:
        """Return a page or a stream, depending on the Accept header."""
        params = query_of(request, QUERY)
        resumed = _resumed(request)
        after = resumed if params["after"] is None else params["after"]
        if SSE not in request.headers.get("Accept", ""):
            who = who_asks(request)
            return answer(await self._page(who, after or 0, params["limit"]))
        return await self._stream(request, self._service.last_notice if after is None else after)

    def _follow(self, after: int) -> AsyncGenerator[Notice]:
        return cast("AsyncGenerator[Notice]", self._service.notices(after))

    async def _page(self, who: Principal, after: int, limit: int) -> EventPage:
        events: list[EventView] = []
        wanted = min(self._service.last_notice, after + limit)
        if wanted > after:
            async with aclosing(self._follow(after)) as notices:
                async for notice in notices:
                    after = notice.seq
                    if (shown := visible_to(who, notice)) is not None:
                        events.append(_event(shown))
                    if after >= wanted:
                        break
        return EventPage(events, after)

    async def _stream(self, request: web.Request, after: int) -> web.StreamResponse:
        who = who_asks(request)
        self._make_sure_of_room(who)
        headers = {"Content-Type": SSE, "Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        response = web.StreamResponse(headers=headers)
        reader = asyncio.current_task()
        assert reader is not None, "requests are tasks"
        self._readers[reader] = who
        try:
            await response.prepare(request)
            async with aclosing(self._follow(after)) as notices:
                still = self._gate.validity_check(request)
                await _feed(response, notices, after, who, still)
        except asyncio.CancelledError:
            if not self._closed:
                raise
            reader.uncancel()
            with suppress(ConnectionError):  # the client may have disconnected
                await response.write_eof()
        except (TimeoutError, ConnectionError):
            if request.transport is not None:
                request.transport.abort()  # the client does not read; it resumes by Last-Event-ID
        finally:
            self._readers.pop(reader, None)
        return response

    def _make_sure_of_room(self, who: Principal) -> None:
        """Raise ProblemError if the maximum number of open streams is reached. O(streams)."""
        why, others = "", who.role is not Role.OPERATOR
        names = [each.name for each in self._readers.values() if each.role is not Role.OPERATOR]
        if others and names.count(who.name) >= READERS_EACH:
            why = f"{READERS_EACH} streams are open with token {who.name}"
        elif others and len(names) >= MAX_READERS - READERS_KEPT:
            why = f"{len(names)} streams are open"
        elif len(self._readers) >= MAX_READERS:
            why = f"{MAX_READERS} streams are open"
        if why:
            raise ProblemError(
                503, "too many readers", why, "close one of them", headers={"Retry-After": "10"}
            )

    async def close(self, app: web.Application) -> None:
        """End all streams; clients reconnect to the next leader."""
        self._closed = True
        for reader in self._readers:
            reader.cancel()


async def _feed(
    response: web.StreamResponse,
    notices: AsyncIterator[Notice],
    after: int,
    who: Principal,
    still: Callable[[], bool],
) -> None:
    """Send events to one client until the notices end or its token is no longer valid.

    The id sent first lets a client resume that is disconnected before its first event.
    Raises TimeoutError if the client does not read for `SLOW_READER` seconds.
    """
    following: asyncio.Task[Notice | None] | None = None
    try:
        await _send(response, b": resume with Last-Event-ID\nid: %d\n\n" % after)
        spoke = monotonic()
        while still():
            if (
                silent := monotonic() - spoke
            ) >= HEARTBEAT:  # the client may be allowed to see none of the recent events
                await _send(response, b": alive\n\n")
                spoke, silent = monotonic(), 0.0
            following = following or asyncio.ensure_future(_next(notices))
            done, _ = await asyncio.wait((following,), timeout=HEARTBEAT - silent)
            if not done:
                continue
            notice, following = following.result(), None
            if notice is None:
                return
            shown = visible_to(who, notice)
            if shown is not None and still():
                await _send(response, line(shown))
                spoke = monotonic()
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
    """Encode a notice as one server-sent event."""
    body = _encode(_event(notice))
    return b"id: %d\nevent: %b\ndata: %b\n\n" % (notice.seq, notice.kind.encode(), body)


def _event(notice: Notice) -> EventView:
    return EventView(
        notice.seq, notice.time, notice.kind, notice.job, notice.pool, notice.node, notice.data
    )


def _resumed(request: web.Request) -> int | None:
    """Return the Last-Event-ID of a request. Raises ProblemError if it is not a number."""
    header = request.headers.get("Last-Event-ID")
    if header is None:
        return None
    try:
        return msgspec.convert(header, Seq, strict=False)
    except msgspec.ValidationError:
        raise ProblemError(
            422, "invalid", f"Last-Event-ID is {header[:40]!r}", "send the id of an event"
        ) from None
