"""The life of a daemon: bind, recover, serve, stop."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING

from daemon.config.config import Address, Config
from daemon.config.tls import Certificate, certificate_of, keep
from daemon.doors.http.listener import listen
from daemon.doors.http.metrics.exposition import PrometheusMetrics
from daemon.doors.http.not_ready import RETRY, waiting
from daemon.doors.mqtt.embedded import broker
from daemon.model.access import public_notice
from daemon.model.errors import JournalError
from daemon.model.limits import PROBE_EVERY
from daemon.process.application import bind, make_app
from daemon.process.build import Daemon, build
from daemon.runtime.background import BackgroundTask, meanwhile
from daemon.runtime.health import HealthRegistry
from daemon.runtime.job_token import ReportVariables
from daemon.runtime.logs import log, tell
from daemon.runtime.token_file import make_token
from daemon.service.service import Service
from daemon.wire.problems import ProblemError

if TYPE_CHECKING:
    from daemon.process.lease import PostgresLease


@asynccontextmanager
async def serving(
    config: Config,
    bound: socket.socket | None = None,
    lease: PostgresLease | None = None,
    certificate: Certificate | None = None,
) -> AsyncIterator[tuple[Daemon, Address]]:
    """Serve while the context is open; yield the daemon and its address. Jobs outlive the daemon.

    `bound` is a socket that is bound already, `lease` the lease of a PostgreSQL. `certificate` is
    the one in use before: its files may be changing at this moment.

    Raises UserError, with nothing started, if the address, the token file, the database or the
    machine is unavailable.
    """
    async with broker(config.mqtt), _serving(config, bound, lease, certificate) as found:
        yield found


@asynccontextmanager
async def _serving(
    config: Config,
    bound: socket.socket | None,
    lease: PostgresLease | None,
    certificate: Certificate | None,
) -> AsyncIterator[tuple[Daemon, Address]]:
    """Serve, once an embedded broker runs; see `serving`."""
    certificate = certificate or certificate_of(config.tls)
    bound = bound or bind(config.listen)
    daemon = None
    try:
        token = make_token(config.token_file)
        metrics = PrometheusMetrics()
        began = perf_counter()
        log().info("restoring", database=str(config.database))
        async with _beginning(bound, certificate, lease):
            url = config.url_for_jobs(bound.getsockname()[1])
            reports = ReportVariables(url, token)
            daemon = await asyncio.to_thread(build, config, metrics, lease, reports)
            await daemon.service.start()
        newest = daemon.service.last_notice
    except BaseException:
        bound.close()
        if daemon is not None:
            await _let_go(daemon)
        raise
    try:
        await daemon.hooks.open(newest)
        door = await listen(make_app(daemon, config, token, metrics), bound, certificate)
        try:
            address = config.listen._replace(port=bound.getsockname()[1])
            log().info(
                "serving", url=address.url, database=str(config.database),
                token_file=str(config.token_file), jobs=len(daemon.service.book.jobs),
                after=f"{perf_counter() - began:.1f} s",
            )  # fmt: skip
            _warn(config, address)
            aside = _aside(daemon, config, newest, lease, certificate)
            async with meanwhile(daemon.service.parts, *aside):
                yield daemon, address
            log().info("stopping")
        finally:
            await door.cleanup()
    finally:
        await daemon.service.stop()
        trail = daemon.service.trail
        log().info("stopped", audit_records=trail.number, audit_head=trail.head)
        bound.close()


@asynccontextmanager
async def _beginning(
    bound: socket.socket, certificate: Certificate | None, lease: PostgresLease | None
) -> AsyncIterator[None]:
    """Answer requests while recovery runs: health checks must see a live process."""
    if lease is None:
        yield
        return
    why = ProblemError(503, "starting", "this daemon is becoming the leader", "wait", headers=RETRY)
    app = waiting(lambda: why, lambda: (lease.holds(), lease.epoch))
    runner = await listen(app, bound.dup(), certificate)
    try:
        yield
    finally:
        await runner.cleanup()


async def _let_go(daemon: Daemon) -> None:
    """Close what a daemon that failed to start had opened, so that another can open it."""
    with suppress(Exception):
        await daemon.service.backend.close()
    daemon.journal.close()


def _aside(
    daemon: Daemon,
    config: Config,
    newest: int,
    lease: PostgresLease | None,
    certificate: Certificate | None,
) -> Iterator[BackgroundTask]:
    """Yield the background tasks of this configuration."""
    service = daemon.service
    parts = service.parts
    yield BackgroundTask("log", lambda: _tell(service, newest))
    yield BackgroundTask("webhooks", daemon.hooks.run)
    yield BackgroundTask("usage", daemon.usage.run)
    if config.estimates:
        yield BackgroundTask("estimates", daemon.eta.run)
    if daemon.retraining is not None:
        learn = daemon.retraining.run
        yield BackgroundTask(
            "retraining", lambda: learn(lambda: service.engine, service.observed_jobs)
        )
    if lease is not None:
        yield BackgroundTask("lease", lambda: _watch(parts, lease))
    if config.mqtt is not None:
        from daemon.doors.mqtt.gateway import Gateway  # noqa: PLC0415  few need it

        mqtt = config.mqtt
        yield BackgroundTask(
            "mqtt", lambda: Gateway(service, mqtt, daemon.admission, daemon.eta).run()
        )
    if certificate is not None:
        yield BackgroundTask("tls", lambda: keep(certificate, partial(parts.say, "tls")))


async def _watch(parts: HealthRegistry, lease: PostgresLease) -> None:
    while True:
        lease.alive()
        why, _, mend = lease.trouble.rpartition("; ")
        parts.say("lease", why, mend)
        await asyncio.sleep(PROBE_EVERY)


async def _tell(service: Service, after: int) -> None:
    """Log all notices after number `after`; wait while the journal cannot be read."""
    while True:
        try:
            async for notice in service.notices(after):
                after = notice.seq  # first, so that a notice that fails is skipped next time
                if (public := public_notice(notice)) is not None:
                    tell(public)
        except JournalError:
            await asyncio.sleep(PROBE_EVERY)
        except Exception:  # noqa: BLE001  a defect with one notice must not hide the others
            log().exception("cannot log an event", seq=after)
            await asyncio.sleep(PROBE_EVERY)
        else:
            return


def _warn(config: Config, address: Address) -> None:
    """Warn about a configuration that an operator may not have intended."""
    if not (address.loopback or config.tls.on):
        log().warning(
            "REACHABLE FROM OTHER MACHINES without TLS: anyone with a token can run commands here. "
            "Allow only the proxy in front to connect, or set tls.certificate",
            listen=f"{address.host}:{address.port}",
        )


def stop_on_signals() -> asyncio.Event:
    """Return an event that SIGTERM and SIGINT set."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    return stop


async def until(daemon: Daemon, *ends: asyncio.Event) -> None:
    """Wait until one of the events is set. Raises the service's exception if it fails before."""
    waits = [asyncio.ensure_future(end.wait()) for end in ends]
    broken = asyncio.ensure_future(daemon.service.finished())
    await asyncio.wait((*waits, broken), return_when=asyncio.FIRST_COMPLETED)
    for each in waits:
        each.cancel()
    if broken.done():
        broken.result()
    broken.cancel()
    with suppress(asyncio.CancelledError):
        await broken
