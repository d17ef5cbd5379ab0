"""A daemon from its start to its end: address, token, service, door."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from daemon.build import Daemon, build
from daemon.config import Address, Config
from daemon.http.app import bind, listen, make_app
from daemon.http.prometheus import Metrics
from daemon.logs import log
from daemon.token import make_token


@asynccontextmanager
async def serving(config: Config) -> AsyncIterator[tuple[Daemon, Address]]:
    """A daemon that serves, and where; it stops in order, and jobs go on.

    Raises UserError where the address, the token file, the database or the machine cannot be had,
    with nothing begun.
    """
    bound = bind(config.listen)
    try:
        token = make_token(config.token_file)
        metrics = Metrics()
        daemon = build(config, metrics)
        await daemon.service.start()
    except BaseException:
        bound.close()
        raise
    try:
        runner = await listen(make_app(daemon, config, token, metrics), bound)
        address = Address(config.listen.host, bound.getsockname()[1])
        log().info(
            "serving", url=address.url, database=str(config.database),
            token_file=str(config.token_file), jobs=len(daemon.service.book.jobs),
        )  # fmt: skip
        _warn(address)
        async with _learning(daemon):
            yield daemon, address
        log().info("stopping")
        await runner.cleanup()
    finally:
        await daemon.service.stop()
        bound.close()


@asynccontextmanager
async def _learning(daemon: Daemon) -> AsyncIterator[None]:
    """Meanwhile forecasts learn, if they are to."""
    if daemon.retraining is None:
        yield
        return
    service = daemon.service
    learning = asyncio.create_task(daemon.retraining.run(lambda: service.engine, service.past_jobs))
    try:
        yield
    finally:
        learning.cancel()
        with suppress(asyncio.CancelledError):
            await learning


def _warn(address: Address) -> None:
    """Say aloud what an operator may not have meant."""
    if not address.loopback:
        log().warning(
            "REACHABLE FROM OTHER MACHINES, without encryption: whoever has the token can run "
            "commands here; put TLS in front, or listen on 127.0.0.1",
            listen=f"{address.host}:{address.port}",
        )


def stop_on_signals() -> asyncio.Event:
    """Is set by SIGTERM and SIGINT from now on."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    return stop


async def until(stop: asyncio.Event, daemon: Daemon) -> None:
    """Serve until then. Raises what broke the service, if it breaks before."""
    told = asyncio.ensure_future(stop.wait())
    broken = asyncio.ensure_future(daemon.service.finished())
    await asyncio.wait((told, broken), return_when=asyncio.FIRST_COMPLETED)
    told.cancel()
    if broken.done():
        broken.result()
    broken.cancel()
    with suppress(asyncio.CancelledError):
        await broken
