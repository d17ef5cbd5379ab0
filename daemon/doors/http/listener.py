"""Accept HTTP connections, limit their number, and answer requests that are not valid HTTP.

The journal, jobs and webhooks need file descriptors, too. So clients get at most half of them. To
make room, the listener first closes a connection that has not sent a request yet.
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
"""Maximum number of connections; also at most half of the process's file limit. Ten times the
maximum number of event streams; they take a few MB of memory."""

HEAD_WITHIN = 10.0
"""Seconds that a connection has for the TLS handshake, and then for the head of its first request.
A slow link needs one or two."""

TOLD_EVERY = 60.0
"""Minimum seconds between two log lines about closed connections."""

SHUTDOWN_SECONDS = 5.0
"""Seconds that running requests get to finish when the daemon stops."""


class Connection(web.RequestHandler):
    """One HTTP connection."""

    def __init__(self, server: web.Server, gone: Callable[[Connection], None]) -> None:
        """Create a connection that calls `gone` when it is closed."""
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            access_log=None,  # type: ignore[arg-type]  # None disables the access log
            auto_decompress=False,  # before authentication, 2 MB could inflate to 2 GiB
        )
        self._gone = gone
        self._limit: asyncio.TimerHandle | None = None
        self.coming: asyncio.Task[None] | None = None

    @property
    def stranger(self) -> bool:
        """Whether the connection has never sent a complete request head."""
        return not self._request_count

    @property
    def idle(self) -> bool:
        """Whether no request is in progress."""
        return not self._request_in_progress

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start the timer for the first request."""
        super().connection_made(transport)
        self._limit = self._loop.call_later(HEAD_WITHIN, self._look)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Stop the timer and unregister."""
        if self._limit is not None:
            self._limit.cancel()
        super().connection_lost(exc)
        self._gone(self)

    def _look(self) -> None:
        if self.stranger:
            self.leave()

    def leave(self) -> None:
        """Close the connection immediately."""
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
        """Answer without quoting the request in response or log: a bad line may have a token."""
        write = log().debug if status < 500 else log().error
        write("refused request", status=status, kind=type(exc).__name__)
        if request.writer.output_size > 0:
            raise ConnectionError("the response has already started")
        response = (_NO_HTTP if status < 500 else _FAILED).response()
        response.force_close()
        return response

    def log_exception(self, *args: Any, **kw: Any) -> None:
        """Log only the type of an error, for the same reason as in `handle_error`."""
        log().error("a connection failed", kind=type(kw.get("exc_info")).__name__)


_NO_HTTP = ProblemError(
    400, "invalid HTTP", "the head or the body of the request is not valid HTTP",
    "check for stray characters, such as a line break at the end of a token",
)  # fmt: skip
_FAILED = ProblemError(
    500, "internal error", "the daemon failed to answer", "see its log, and report the defect"
)


class Listener:
    """Accept connections on a bound socket until `cleanup`."""

    def __init__(
        self, runner: web.AppRunner, bound: socket.socket, tls: Certificate | None
    ) -> None:
        """Start to accept connections, with TLS if there is a certificate."""
        assert runner.server is not None, "the runner is set up"
        self._runner, self._server, self._bound, self._tls = runner, runner.server, bound, tls
        self._inside: dict[Connection, None] = {}
        self._most = min(MAX_CONNECTIONS, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)
        self._dropped, self._telling = 0, TokenBucket(1 / TOLD_EVERY, 1.0)
        bound.setblocking(False)  # noqa: FBT003  its only argument
        self._loop = asyncio.get_running_loop()
        self._again: asyncio.TimerHandle | None = None
        self._start()

    async def cleanup(self) -> None:
        """Stop accepting, and give running requests `SHUTDOWN_SECONDS` seconds to finish."""
        self._stop()
        self._bound.close()
        await asyncio.sleep(0)  # a task cancelled before its first step would not close its socket
        coming = [each.coming for each in self._inside if each.coming is not None]
        for task in coming:
            task.cancel()
        await asyncio.gather(*coming, return_exceptions=True)
        await self._runner.cleanup()

    def _start(self) -> None:
        # Not loop.sock_accept: if it is cancelled after it has accepted a connection, that
        # connection leaks.
        self._again = None
        self._loop.add_reader(self._bound, self._take)

    def _stop(self) -> None:
        self._loop.remove_reader(self._bound)
        if self._again is not None:
            self._again.cancel()

    def _take(self) -> None:
        """Accept only one connection, so that a flood of them leaves time for other tasks."""
        try:
            taken, _ = self._bound.accept()
        except (BlockingIOError, ConnectionAbortedError):  # the client has left
            return
        except OSError as error:  # out of file descriptors or memory
            self._tell(str(error.strerror))
            self._stop()
            self._again = self._loop.call_later(PROBE_EVERY, self._start)
            return
        if self._room():
            visitor = Connection(self._server, self._gone)
            self._inside[visitor] = None
            visitor.coming = asyncio.create_task(self._let_in(visitor, taken))
        else:
            taken.close()

    def _room(self) -> bool:
        """Make room for a connection: close one that has sent no request, or else an idle one."""
        if len(self._inside) < self._most:
            return True
        goes = next((each for each in self._inside if each.stranger), None)
        goes = goes or next((each for each in self._inside if each.idle), None)
        self._tell("the limit is reached")
        if goes is not None:
            self._gone(goes)
            goes.leave()
        return goes is not None

    async def _let_in(self, visitor: Connection, taken: socket.socket) -> None:
        """Run the TLS handshake, if there is a certificate, and start the protocol."""
        context = None if self._tls is None else self._tls.context
        within = None if context is None else HEAD_WITHIN
        try:
            await self._loop.connect_accepted_socket(
                lambda: visitor, taken, ssl=context, ssl_handshake_timeout=within
            )
        except OSError:  # the client has disconnected or does not speak TLS
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
    """Serve an application on a bound socket, with TLS if there is a certificate."""
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=SHUTDOWN_SECONDS)
    await runner.setup()
    return Listener(runner, bound, tls)
