"""A daemon on a PostgreSQL that others use too: stand-by, leader, and stand-by again."""

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
"""Seconds for which one that could not lead leaves the lease to others; twice as many each time."""

REST_MOST = 15.0
"""Seconds likewise, at most; who led for longer begins anew with short ones."""


async def serve_in_turn(
    config: Config, url: DatabaseUrl, stop: asyncio.Event, say: Callable[[Address], None]
) -> None:
    """Lead whenever it is this daemon's turn, until it is to stop; `say` where it serves.

    Raises UserError where the address, the database or the machine cannot be had.
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
    """Until the turn is over; the lease is given back where nobody has taken it.

    False where it could not lead, though nobody else has taken over.
    """
    try:
        async with serving(config, bound, turn.lease, certificate) as (daemon, address):
            say(address)
            await until(daemon, stop, turn.over)
            if turn.lease.lost:
                log().error("another daemon has taken over; this one is a stand-by from now on")
    except (UserError, JournalError) as error:
        broken = isinstance(error, JournalError) or isinstance(error.__cause__, JournalError)
        if not (broken or turn.lease.lost):
            raise
        log().error("cannot lead; a stand-by from now on", why=str(error))
        return turn.lease.lost
    else:
        return True
    finally:
        await asyncio.to_thread(turn.lease.close)
