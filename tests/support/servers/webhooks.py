"""Webhook receivers on the loopback interface, and daemons that deliver to them."""

import asyncio
import hashlib
import hmac
import ssl
import subprocess
from contextlib import asynccontextmanager, contextmanager
from threading import Thread
from types import SimpleNamespace

from aiohttp import web
from msgspec import json

from daemon.config.config import Address
from daemon.config.webhooks import WebhookConfig
from daemon.process.serve import serving
from tests.support.daemons.daemons import submit, until
from tests.support.daemons.doors import config_in

SECRET = "a-secret-that-nobody-guesses"


class Receiver:
    """A receiver that gives the answers of the test, and keeps the requests in order.

    `answer` is a status, or a function from the events' numbers to a status or response.
    """

    def __init__(self, answer=200, port=0, tls=None):
        self.answer, self.port, self.tls = answer, port, tls
        self.got = []

    @property
    def url(self):
        return f"{'https' if self.tls else 'http'}://127.0.0.1:{self.port}/events?key=hidden"

    @property
    def numbers(self):
        """Return the numbers of the events accepted, repetitions included."""
        return [seq for got in self.got if got.status == 200 for seq in got.numbers]

    async def start(self):
        app = web.Application(client_max_size=2**24)
        app.router.add_post("/events", self._take)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port, ssl_context=self.tls)
        await site.start()
        self.port = site._server.sockets[0].getsockname()[1]
        return self

    async def stop(self):
        await self._runner.cleanup()

    async def _take(self, request):
        body = await request.read()
        said = json.decode(body)
        numbers = [event["seq"] for event in said["events"]]
        got = SimpleNamespace(
            body=body,
            headers=request.headers,
            numbers=numbers,
            events=said["events"],
            status=0,
            at=asyncio.get_running_loop().time(),
        )
        self.got.append(got)
        answer = self.answer(numbers) if callable(self.answer) else self.answer
        if asyncio.iscoroutine(answer):
            answer = await answer
        response = answer if isinstance(answer, web.Response) else web.Response(status=answer)
        got.status = response.status
        return response


@asynccontextmanager
async def receiver(answer=200, **more):
    made = await Receiver(answer, **more).start()
    try:
        yield made
    finally:
        await made.stop()


@asynccontextmanager
async def rude(what):
    """Yield the URL of a receiver that answers any request with these bytes and closes."""

    async def answer(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(what)
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"


@contextmanager
def receiving(answer=200, **more):
    """Run such a receiver in a thread, for tests without an event loop."""
    loop = asyncio.new_event_loop()
    thread = Thread(target=loop.run_forever)
    thread.start()
    made = Receiver(answer, **more)
    try:
        asyncio.run_coroutine_threadsafe(made.start(), loop).result(10)
        yield made
    finally:
        asyncio.run_coroutine_threadsafe(made.stop(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def signed(got, secret=SECRET):
    """Return whether a request is signed with this secret."""
    marks = got.headers["X-Sia-Signature"].split(",")
    moment = marks[0].removeprefix("t=")
    body = f"{moment}.".encode() + got.body
    right = hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()
    return f"v1={right}" in marks


def secret_in(folder, secret=SECRET, name="secret"):
    path = folder / name
    path.write_text(secret + "\n")
    path.chmod(0o600)
    return path


def hook(folder, url, name="ops", **more):
    """Return a webhook to this receiver."""
    url = getattr(url, "url", url)
    secret = secret_in(folder)
    sets = {key: frozenset(more.pop(key)) for key in ("events", "pools") if key in more}
    return WebhookConfig(name, url, secret, **sets, **more)


@asynccontextmanager
async def telling(folder, *hooks, **settings):
    """Run a daemon with these webhooks."""
    config = config_in(folder, webhooks=hooks, listen=Address("127.0.0.1", 0), **settings)
    async with serving(config) as (daemon, address):
        yield SimpleNamespace(
            service=daemon.service, hooks=daemon.hooks, url=address.url, config=config
        )


async def happens(service, count, pool="vision", prefix="job"):
    """Submit a number of held jobs; each causes one event."""
    jobs = [submit(f"{prefix}{i}", pool, hold=True) for i in range(count)]
    for answer in await service.submit(jobs):
        assert answer.new, answer


async def told_all(daemon, *receivers, seconds=10.0):
    """Wait until the webhooks have delivered all events."""
    wanted = daemon.service.last_notice
    for each in receivers:
        await until(lambda each=each: each.numbers and each.numbers[-1] >= wanted, seconds)


def certificate(folder, name):
    """Make a self-signed certificate for a name or address, and its key."""
    key, cert = folder / f"{name}.key", folder / f"{name}.pem"
    kind = "IP" if name[0].isdigit() else "DNS"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
         "-nodes", "-keyout", key, "-out", cert, "-days", "2", "-subj", f"/CN={name}",
         "-addext", f"subjectAltName={kind}:{name}"],
        check=True, capture_output=True,
    )  # fmt: skip
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(cert, key)
    return cert, context


def parts(daemon):
    """Return the reason of each unhealthy component."""
    return {part.name: part.why for part in daemon.service.parts.all() if not part.ok}
