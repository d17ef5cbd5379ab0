"""A daemon from its start to its end: address, token, service, door."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, suppress
from time import perf_counter
from typing import TYPE_CHECKING

from daemon.build import Daemon, build
from daemon.config import Address, Config
from daemon.http.app import bind, make_app
from daemon.http.door import listen
from daemon.http.problems import ProblemError
from daemon.http.prometheus import Metrics
from daemon.http.waiting import RETRY, waiting
from daemon.journal import JournalError
from daemon.limits import PROBE_EVERY
from daemon.logs import log, tell
from daemon.mqtt.embedded import broker
from daemon.parts import Parts
from daemon.service import Service
from daemon.tls import Certificate, certificate_of, keep
from daemon.token import make_token

if TYPE_CHECKING:
    from daemon.lease import Lease


@asynccontextmanager
async def serving(
    config: Config, bound: socket.socket | None = None, lease: Lease | None = None
) -> AsyncIterator[tuple[Daemon, Address]]:
    """A daemon that serves, and where; it stops in order, and jobs go on.

    On the address that is `bound` already, if it is; with the `lease` of a PostgreSQL.

    Raises UserError where the address, the token file, the database or the machine cannot be had,
    with nothing begun.
    """
    async with broker(config.mqtt), _serving(config, bound, lease) as found:
        yield found


@asynccontextmanager
async def _serving(
    config: Config, bound: socket.socket | None, lease: Lease | None
) -> AsyncIterator[tuple[Daemon, Address]]:
    """As `serving`, where the broker is there that it is to have itself."""
    certificate = certificate_of(config.tls)
    bound = bound or bind(config.listen)
    daemon = None
    try:
        token = make_token(config.token_file)
        metrics = Metrics()
        began = perf_counter()
        log().info("restoring", database=str(config.database))
        async with _beginning(bound, certificate, lease):
            daemon = await asyncio.to_thread(build, config, metrics, lease)
            await daemon.service.start()
        newest = daemon.service.told
    except BaseException:
        bound.close()
        if daemon is not None:
            await _let_go(daemon)
        raise
    try:
        await daemon.hooks.open(newest)
        runner = await listen(make_app(daemon, config, token, metrics), bound, certificate)
        address = config.listen._replace(port=bound.getsockname()[1])
        log().info(
            "serving", url=address.url, database=str(config.database),
            token_file=str(config.token_file), jobs=len(daemon.service.book.jobs),
            after=f"{perf_counter() - began:.1f} s",
        )  # fmt: skip
        _warn(config, address)
        aside = [_tell(daemon.service, newest), daemon.hooks.run(), *_learning(daemon)]
        aside += [*_watching(daemon, lease), *_bus(daemon, config)]
        aside += _certified(daemon, certificate)
        async with _meanwhile(*aside):
            yield daemon, address
        log().info("stopping")
        await runner.cleanup()
    finally:
        await daemon.service.stop()
        trail = daemon.service.trail
        log().info("stopped", audit_records=trail.number, audit_head=trail.head)
        bound.close()


@asynccontextmanager
async def _beginning(
    bound: socket.socket, certificate: Certificate | None, lease: Lease | None
) -> AsyncIterator[None]:
    """Answer that a daemon lives which takes over: that may take long, and others look at it."""
    if lease is None:
        yield
        return
    why = ProblemError(503, "starting", "this daemon begins to lead", "wait", headers=RETRY)
    app = waiting(lambda: why, lambda: (lease.holds(), lease.epoch))
    runner = await listen(app, bound.dup(), certificate)
    try:
        yield
    finally:
        await runner.cleanup()


@asynccontextmanager
async def _meanwhile(*work: Coroutine[None, None, None]) -> AsyncIterator[None]:
    """Have all this be done until the end."""
    tasks = [asyncio.create_task(each) for each in work]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


async def _let_go(daemon: Daemon) -> None:
    """Of what a daemon that did not begin has opened: another one may, in this process too."""
    with suppress(Exception):
        await daemon.service.backend.close()
    daemon.journal.close()


def _watching(daemon: Daemon, lease: Lease | None) -> list[Coroutine[None, None, None]]:
    """Who says how the lease is, where there is one."""
    return [] if lease is None else [_watch(daemon.service.parts, lease)]


async def _watch(parts: Parts, lease: Lease) -> None:
    while True:
        lease.alive()
        why, _, mend = lease.trouble.rpartition("; ")
        parts.say("lease", why, mend)
        await asyncio.sleep(PROBE_EVERY)


def _learning(daemon: Daemon) -> list[Coroutine[None, None, None]]:
    """What forecasts learn by, if they are to."""
    if daemon.retraining is None:
        return []
    service = daemon.service
    return [daemon.retraining.run(lambda: service.engine, service.past_jobs)]


def _bus(daemon: Daemon, config: Config) -> list[Coroutine[None, None, None]]:
    """What is said and heard over MQTT, if the daemon is to be there."""
    if config.mqtt is None:
        return []
    from daemon.mqtt.gateway import Gateway  # noqa: PLC0415  few need it

    return [Gateway(daemon.service, config.mqtt, daemon.admission).run()]


async def _tell(service: Service, after: int) -> None:
    """Log what happens from that notice on; where the journal cannot be read, later."""
    while True:
        try:
            async for notice in service.notices(after):
                tell(notice)
                after = notice.seq
        except JournalError:
            await asyncio.sleep(PROBE_EVERY)
        else:
            return


def _certified(
    daemon: Daemon, certificate: Certificate | None
) -> list[Coroutine[None, None, None]]:
    """Who says how the certificate is, where there is one."""
    if certificate is None:
        return []
    parts = daemon.service.parts
    return [keep(certificate, lambda why, mend: parts.say("tls", why, mend))]


def _warn(config: Config, address: Address) -> None:
    """Say aloud what an operator may not have meant."""
    if not (address.loopback or config.tls.on):
        log().warning(
            "REACHABLE FROM OTHER MACHINES, without encryption of its own: whoever has a token can "
            "run commands here; let the proxy in front alone through, or give tls.certificate",
            listen=f"{address.host}:{address.port}",
        )


def stop_on_signals() -> asyncio.Event:
    """Is set by SIGTERM and SIGINT from now on."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    return stop


async def until(daemon: Daemon, *ends: asyncio.Event) -> None:
    """Serve until one of these. Raises what broke the service, if it breaks before."""
    told = [asyncio.ensure_future(end.wait()) for end in ends]
    broken = asyncio.ensure_future(daemon.service.finished())
    await asyncio.wait((*told, broken), return_when=asyncio.FIRST_COMPLETED)
    for each in told:
        each.cancel()
    if broken.done():
        broken.result()
    broken.cancel()
    with suppress(asyncio.CancelledError):
        await broken
