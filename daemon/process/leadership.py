"""Leadership on a shared PostgreSQL: a daemon is standby, then leader, then standby again."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

from daemon.config.config import Address, Config
from daemon.config.database import DatabaseUrl
from daemon.config.tls import Certificate, certificate_of
from daemon.model.errors import JournalError
from daemon.process.application import bind
from daemon.process.serve import serving, until
from daemon.process.standby import LeaseTerm, stand_by
from daemon.runtime.clock import uptime
from daemon.runtime.logs import log
from sia.console.errors import UserError

REST = 0.5
"""Seconds for which a daemon that failed to lead leaves the lease to others; doubled after each
failure."""

REST_MOST = 15.0
"""Maximum seconds of such a pause. A daemon that has led for longer begins with `REST` again."""


async def serve_in_turn(
    config: Config, url: DatabaseUrl, stop: asyncio.Event, say: Callable[[Address], None]
) -> None:
    """Lead whenever this daemon holds the lease, until `stop` is set.

    Calls `say` with the address each time it starts to serve. Raises UserError if the address,
    the database or the machine is unavailable.
    """
    certificate = certificate_of(config.tls)
    bound = bind(config.listen)
    try:
        began, rest = False, 0.0
        while not stop.is_set():
            turn = await stand_by(
                url, config.listen, bound, stop, certificate, patient=began, rest=rest
            )
            began, since = True, uptime()
            if turn is not None and stop.is_set():
                await asyncio.to_thread(turn.lease.close)
            elif turn is not None:
                led = await _lead(config, bound.dup(), turn, stop, say, certificate)
                before = rest if uptime() - since <= REST_MOST else 0.0
                rest = 0.0 if led else min(max(REST, 2 * before), REST_MOST)
    finally:
        bound.close()


async def _lead(
    config: Config,
    bound: socket.socket,
    turn: LeaseTerm,
    stop: asyncio.Event,
    say: Callable[[Address], None],
    certificate: Certificate | None,
) -> bool:
    """Serve until the lease ends or `stop` is set, then release the lease unless it was lost.

    Return False if this daemon failed to lead while no other had taken over.
    """
    try:
        async with serving(config, bound, turn.lease, certificate) as (daemon, address):
            say(address)
            await until(daemon, stop, turn.over)
            if turn.lease.lost:
                log().error("another daemon has taken over; this one is now a standby")
    except (UserError, JournalError) as error:
        broken = isinstance(error, JournalError) or isinstance(error.__cause__, JournalError)
        if not (broken or turn.lease.lost):
            raise
        log().error("cannot lead; this daemon is now a standby", why=str(error))
        return turn.lease.lost
    else:
        return True
    finally:
        await asyncio.to_thread(turn.lease.close)
