"""A standby: waits for the lease of a database that another daemon leads, and answers meanwhile."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import time
from functools import partial
from ipaddress import ip_address
from typing import NamedTuple

from aiohttp import web

from daemon.config.config import Address
from daemon.config.database import DatabaseUrl
from daemon.config.tls import Certificate
from daemon.doors.http.listener import listen
from daemon.doors.http.not_ready import RETRY, waiting
from daemon.model.errors import JournalError
from daemon.process.lease import LEASE, LOOK_EVERY, LeaseConnection, PostgresLease, Seen
from daemon.runtime.clock import uptime
from daemon.runtime.health import HealthRegistry
from daemon.runtime.logs import log
from daemon.runtime.sd_notify import ready
from daemon.wire.problems import ProblemError
from sia.console.errors import UserError


class LeaseTerm(NamedTuple):
    """A held lease, and an event that is set when another daemon takes it."""

    lease: PostgresLease
    over: asyncio.Event


class Candidate:
    """Checks the lease, and takes it if it is free. Calls block on the server."""

    def __init__(self, url: DatabaseUrl, place: str) -> None:
        """Compete for the lease; `place` is the address shown to others."""
        self.url, self._place = url, place
        self._holder = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
        self._connection: LeaseConnection | None = None
        self._since = 0.0
        self.seen: Seen | None = None

    def look(self, *, take: bool = True) -> tuple[LeaseConnection, int, float] | None:
        """Check the lease, and with `take` take it if it is free.

        Return (connection, epoch, time of the request) if this daemon now holds the lease, else
        None. Raises JournalError.
        """
        try:
            if self._connection is None:
                self._connection, self.seen = LeaseConnection(self.url), None
            seen, before = self._connection.look(), self.seen
            if before is None or before[:4] != seen[:4]:
                self._since = uptime()
            self.seen = seen
            if not (take and self._free(seen)):
                return None
            asked = uptime()
            epoch = self._connection.take(seen, self._holder, self._place)
        except BaseException:
            self.close()
            raise
        if epoch is None:
            return None
        connection, self._connection = self._connection, None
        return connection, epoch, asked

    def _free(self, seen: Seen) -> bool:
        """Return whether the lease was released, or has expired without a renewal seen here.

        So after an outage of the server, the holder has `LEASE` seconds to renew the lease.
        """
        return not seen.holder or (seen.left <= 0 and uptime() - self._since >= LEASE)

    def close(self) -> None:
        """Disconnect; `look` connects again."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class Standby:
    """Answers requests on the daemon's address while another daemon leads."""

    def __init__(self, candidate: Candidate) -> None:
        """Answer with what `candidate` sees."""
        self._candidate = candidate
        self.trouble = ""
        self.rests = False

    def app(self) -> web.Application:
        """Return an application that reports liveness and otherwise names the leader."""
        return waiting(self._problem, self._leads)

    def _leads(self) -> tuple[bool, int]:
        seen = self._candidate.seen
        return False, seen.epoch if seen else 0

    def _problem(self) -> ProblemError:
        seen = self._candidate.seen
        if self.trouble:  # the text names hosts and users, and requests here carry no checked token
            why = "the database that names the leader is unreachable"
            return ProblemError(503, "stand-by", why, "see its log", headers=RETRY)
        if self.rests and not (seen and seen.holder):
            why = "this daemon failed to lead and will try again; there is no leader"
            return ProblemError(503, "stand-by", why, "see its log", headers=RETRY)
        if seen is None:
            return ProblemError(503, "stand-by", "starting", "wait", headers=RETRY)
        leader = seen.place if seen.holder else "nobody"
        detail = f"this daemon is a standby; {leader} leads (epoch {seen.epoch})"
        return ProblemError(503, "stand-by", detail, f"ask {leader}", headers=RETRY)


async def stand_by(
    url: DatabaseUrl,
    address: Address,
    bound: socket.socket,
    stop: asyncio.Event,
    certificate: Certificate | None = None,
    *,
    patient: bool = False,
    rest: float = 0.0,
) -> LeaseTerm | None:
    """Wait for the lease, answering requests on `bound`; return None once `stop` is set.

    For the first `rest` seconds the daemon does not take the lease, after a failure to lead.

    Raises UserError if the database is unreachable at the beginning, unless `patient`.
    """
    candidate = Candidate(url, _place(address, bound))
    try:
        turn = None
        try:
            turn = await _look(candidate, take=not rest)
        except JournalError as error:
            if not patient:
                raise UserError(f"{url}: {error}") from error
        if turn is None:
            turn = await _wait(candidate, bound, stop, certificate, rest)
        return turn
    finally:
        candidate.close()


def _place(address: Address, bound: socket.socket) -> str:
    """Return the address shown to others: the host name if the daemon listens on all addresses."""
    host, port = bound.getsockname()[:2]
    here = socket.gethostname() if ip_address(host).is_unspecified else address.host
    return address._replace(host=here, port=port).url


async def _wait(
    candidate: Candidate,
    bound: socket.socket,
    stop: asyncio.Event,
    certificate: Certificate | None,
    rest: float,
) -> LeaseTerm | None:
    standby, parts, turn, since = Standby(candidate), HealthRegistry(time.time), None, uptime()
    seen = candidate.seen
    log().info("stand-by", leader=seen.place if seen else "", epoch=seen.epoch if seen else 0)
    runner = await listen(standby.app(), bound.dup(), certificate)
    ready("stand-by")
    try:
        while turn is None and not stop.is_set():
            standby.rests = uptime() - since < rest
            await _sleep(stop)
            if stop.is_set():
                break
            if certificate is not None:
                parts.say("tls", *certificate.look())
            try:
                turn = await _look(candidate, take=uptime() - since >= rest)
                _tell(standby, "")
            except JournalError as error:
                _tell(standby, str(error))
    finally:
        await runner.cleanup()
    return turn


def _tell(standby: Standby, trouble: str) -> None:
    """Log each change once."""
    if bool(trouble) is not bool(standby.trouble):
        if trouble:
            log().warning("cannot check the lease", why=trouble)
        else:
            log().info("the lease can be checked again")
    standby.trouble = trouble


async def _sleep(stop: asyncio.Event) -> None:
    try:
        async with asyncio.timeout(LOOK_EVERY):
            await stop.wait()
    except TimeoutError:
        return


async def _look(candidate: Candidate, *, take: bool) -> LeaseTerm | None:
    taken = await asyncio.to_thread(partial(candidate.look, take=take))
    if taken is None:
        return None
    over, loop = asyncio.Event(), asyncio.get_running_loop()
    connection, epoch, asked = taken
    lease = PostgresLease(candidate.url, connection, epoch, asked, lambda: _wake(loop, over))
    log().info("leading", epoch=epoch)
    return LeaseTerm(lease, over)


def _wake(loop: asyncio.AbstractEventLoop, over: asyncio.Event) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(over.set)
