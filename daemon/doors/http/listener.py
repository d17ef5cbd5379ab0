"""The door itself: connections, how many there may be, and what is said to those who send no HTTP.

Descriptors are what everything else lives on too: the journal, jobs, webhooks. So at most half of
them go to whoever connects, and who has sent nothing is the first to make room.
"""

from __future__ import annotations

import asyncio
import resource
import socket
from collections.abc import Callable
from typing import Any

from aiohttp import web

from daemon.config.tls import Certificate
from daemon.model.limits import PROBE_EVERY
from daemon.runtime.logs import log
from daemon.runtime.rate_limit import TokenBucket
from daemon.wire.problems import ProblemError

MAX_CONNECTIONS = 1000
"""At a time, and at most half of the files that the process may have open: ten for each reader of
events, some MB."""

HEAD_WITHIN = 10.0
"""Seconds within which a connection is to have sent its first request's head; as much is given for
agreeing on encryption before. A slow link takes one or two."""

TOLD_EVERY = 60.0
"""Seconds between two lines in the log on connections that had to go."""

GOODBYE = 5.0
"""Seconds that requests under way have to end in when the daemon stops."""


class Connection(web.RequestHandler):
    """One connection."""

    def __init__(self, server: web.Server, gone: Callable[[Connection], None]) -> None:
        """Tell `gone` when it is over."""
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            access_log=None,  # type: ignore[arg-type]  # so it keeps none
            auto_decompress=False,  # 2 MB may be 2 GiB, unpacked before anybody asks who sent them
        )
        self._gone = gone
        self._limit: asyncio.TimerHandle | None = None
        self.coming: asyncio.Task[None] | None = None

    @property
    def stranger(self) -> bool:
        """Whether it never sent a whole head."""
        return not self._request_count

    @property
    def idle(self) -> bool:
        """Whether nothing is being answered."""
        return not self._request_in_progress

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to wait for the first request."""
        super().connection_made(transport)
        self._limit = self._loop.call_later(HEAD_WITHIN, self._look)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Make room."""
        if self._limit is not None:
            self._limit.cancel()
        super().connection_lost(exc)
        self._gone(self)

    def _look(self) -> None:
        if self.stranger:
            self.leave()

    def leave(self) -> None:
        """At once."""
        if isinstance(self.transport, asyncio.Transport):
            self.transport.abort()
        elif self.coming is not None:
            self.coming.cancel()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Neither answer nor log say what was sent: the line that is wrong may hold a token."""
        write = log().debug if status < 500 else log().error
        write("refused request", status=status, kind=type(exc).__name__)
        if request.writer.output_size > 0:
            raise ConnectionError("the answer has begun already")
        response = (_NO_HTTP if status < 500 else _FAILED).response()
        response.force_close()
        return response

    def log_exception(self, *args: Any, **kw: Any) -> None:
        """As `handle_error`: of which kind it is."""
        log().error("a connection failed", kind=type(kw.get("exc_info")).__name__)


_NO_HTTP = ProblemError(
    400, "no HTTP", "the request's head, or its body's form, is not as HTTP has it",
    "look for characters that are none, like a line break at the end of a token",
)  # fmt: skip
_FAILED = ProblemError(
    500, "internal error", "the daemon failed to answer", "look into its log, and report it"
)


class Listener:
    """Takes connections on an address, until `cleanup`."""

    def __init__(
        self, runner: web.AppRunner, bound: socket.socket, tls: Certificate | None
    ) -> None:
        """Encrypted if there is a certificate; the runner is set up."""
        assert runner.server is not None, "it is set up first"
        self._runner, self._server, self._bound, self._tls = runner, runner.server, bound, tls
        self._inside: dict[Connection, None] = {}
        self._most = min(MAX_CONNECTIONS, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)
        self._dropped, self._telling = 0, TokenBucket(1 / TOLD_EVERY, 1.0)
        bound.setblocking(False)  # noqa: FBT003  its only argument
        self._taking = asyncio.create_task(self._take())

    async def cleanup(self) -> None:
        """Take nobody any more; requests under way have a moment."""
        self._taking.cancel()
        await asyncio.wait([self._taking])
        self._bound.close()
        coming = [each.coming for each in self._inside if each.coming is not None]
        for task in coming:
            task.cancel()
        await asyncio.gather(*coming, return_exceptions=True)
        await self._runner.cleanup()

    async def _take(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                taken, _ = await loop.sock_accept(self._bound)
            except OSError as error:  # the machine, or all else here, has no room left
                self._tell(str(error.strerror))
                await asyncio.sleep(PROBE_EVERY)
                continue
            if self._room():
                visitor = Connection(self._server, self._gone)
                self._inside[visitor] = None
                visitor.coming = asyncio.create_task(self._let_in(visitor, taken))
            else:
                taken.close()
            await asyncio.sleep(0)  # others have their turn, however many come

    def _room(self) -> bool:
        """Whether one more may come; who sent nothing goes for it, or else who asks nothing."""
        if len(self._inside) < self._most:
            return True
        goes = next((each for each in self._inside if each.stranger), None)
        goes = goes or next((each for each in self._inside if each.idle), None)
        self._tell("so many are open, and of the others nothing is asked")
        if goes is not None:
            self._gone(goes)
            goes.leave()
        return goes is not None

    async def _let_in(self, visitor: Connection, taken: socket.socket) -> None:
        """Agree on encryption, if there is to be any."""
        context = None if self._tls is None else self._tls.context
        within = None if context is None else HEAD_WITHIN
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: visitor, taken, ssl=context, ssl_handshake_timeout=within
            )
        except OSError:  # it is gone, or speaks something else
            self._gone(visitor)
        except BaseException:
            self._gone(visitor)
            raise
        finally:
            visitor.coming = None

    def _gone(self, visitor: Connection) -> None:
        self._inside.pop(visitor, None)

    def _tell(self, why: str) -> None:
        self._dropped += 1
        if not self._telling.take():
            log().warning(
                "connections are refused or ended", why=why, count=self._dropped, most=self._most
            )
            self._dropped = 0


async def listen(
    app: web.Application, bound: socket.socket, tls: Certificate | None = None
) -> Listener:
    """Serve from now on, encrypted if there is a certificate, until `cleanup`."""
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=GOODBYE)
    await runner.setup()
    return Listener(runner, bound, tls)
