"""A daemon that waits for its turn on a database that another one has: what it says meanwhile."""

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
    """The lease, and when it is over: set once another daemon has taken it."""

    lease: PostgresLease
    over: asyncio.Event


class Candidate:
    """Looks at the lease, and takes it where nobody has it. Each call waits for the server."""

    def __init__(self, url: DatabaseUrl, place: str) -> None:
        """To be reached at `place`, for messages."""
        self.url, self._place = url, place
        self._holder = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
        self._desk: LeaseConnection | None = None
        self._since = 0.0
        self.seen: Seen | None = None

    def look(self, *, take: bool = True) -> tuple[LeaseConnection, int, float] | None:
        """The desk, the epoch and when it was asked for, if it is ours now. Raises JournalError.

        Ours it may be if we are to `take` it.
        """
        try:
            if self._desk is None:
                self._desk, self.seen = LeaseConnection(self.url), None
            seen, before = self._desk.look(), self.seen
            if before is None or before[:4] != seen[:4]:
                self._since = uptime()
            self.seen = seen
            if not (take and self._free(seen)):
                return None
            asked = uptime()
            epoch = self._desk.take(seen, self._holder, self._place)
        except BaseException:
            self.close()
            raise
        if epoch is None:
            return None
        desk, self._desk = self._desk, None
        return desk, epoch, asked

    def _free(self, seen: Seen) -> bool:
        """Given back, or run out by the server's clock and not renewed before our eyes either.

        After a time without the server, who had it gets as long to come back as we did.
        """
        return not seen.holder or (seen.left <= 0 and uptime() - self._since >= LEASE)

    def close(self) -> None:
        """Disconnect; it connects again when it looks."""
        if self._desk is not None:
            self._desk.close()
            self._desk = None


class Standby:
    """Answers on the daemon's address while another daemon leads."""

    def __init__(self, candidate: Candidate) -> None:
        """Say what this one sees."""
        self._candidate = candidate
        self.trouble = ""
        self.rests = False

    def app(self) -> web.Application:
        """It lives, and does not act; whatever else it is asked, it says who leads."""
        return waiting(self._problem, self._leads)

    def _leads(self) -> tuple[bool, int]:
        seen = self._candidate.seen
        return False, seen.epoch if seen else 0

    def _problem(self) -> ProblemError:
        seen = self._candidate.seen
        if self.trouble:  # it names hosts and users, and nobody is asked for a token here
            why = "the database cannot be asked who leads"
            return ProblemError(503, "stand-by", why, "look into the log", headers=RETRY)
        if self.rests and not (seen and seen.holder):
            why = "this daemon could not lead, and tries again soon; nobody leads"
            return ProblemError(503, "stand-by", why, "look into the log", headers=RETRY)
        if seen is None:
            return ProblemError(503, "stand-by", "starting", "wait", headers=RETRY)
        leader = seen.place if seen.holder else "nobody"
        detail = f"this daemon is a stand-by: {leader} leads (number {seen.epoch})"
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
    """Wait for the turn, answering on `bound`; None once it is to stop.

    For `rest` seconds, where it could not lead just now, it leaves the turn to others.

    Raises UserError where the database cannot be had at the beginning, unless it is `patient`.
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
    """Where others ask for it: who listens on all addresses is reached by the machine's name."""
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
    said, parts, turn, since = Standby(candidate), HealthRegistry(time.time), None, uptime()
    seen = candidate.seen
    log().info("stand-by", leader=seen.place if seen else "", epoch=seen.epoch if seen else 0)
    runner = await listen(said.app(), bound.dup(), certificate)
    ready("stand-by")
    try:
        while turn is None and not stop.is_set():
            said.rests = uptime() - since < rest
            await _sleep(stop)
            if stop.is_set():
                break
            if certificate is not None:
                parts.say("tls", *certificate.look())
            try:
                turn = await _look(candidate, take=uptime() - since >= rest)
                _tell(said, "")
            except JournalError as error:
                _tell(said, str(error))
    finally:
        await runner.cleanup()
    return turn


def _tell(said: Standby, trouble: str) -> None:
    """Log each change once."""
    if bool(trouble) is not bool(said.trouble):
        if trouble:
            log().warning("the lease cannot be looked at", why=trouble)
        else:
            log().info("the lease can be looked at again")
    said.trouble = trouble


async def _sleep(stop: asyncio.Event) -> None:
    try:
        await asyncio.wait_for(stop.wait(), LOOK_EVERY)
    except TimeoutError:
        return


async def _look(candidate: Candidate, *, take: bool) -> LeaseTerm | None:
    taken = await asyncio.to_thread(partial(candidate.look, take=take))
    if taken is None:
        return None
    over, loop = asyncio.Event(), asyncio.get_running_loop()
    desk, epoch, asked = taken
    lease = PostgresLease(candidate.url, desk, epoch, asked, lambda: _wake(loop, over))
    log().info("leading", epoch=epoch)
    return LeaseTerm(lease, over)


def _wake(loop: asyncio.AbstractEventLoop, over: asyncio.Event) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(over.set)
