"""The door itself: who connects and says nothing, and what is no HTTP."""

import asyncio
import gc
import gzip
import json
import socket
import subprocess
import sys
from contextlib import ExitStack, suppress

import pytest
from aiohttp import web

from daemon.config.config import Address
from daemon.doors.http.listener import listen
from daemon.process.application import bind
from tests.daemon.backends.local.test_logs import CONFIG as LOCAL
from tests.daemon.cli.test_commands import Served

pytestmark = pytest.mark.usefixtures("leaves_nothing")

FILES = 256


class Narrow(Served):
    """A daemon that may have few files open, as 1,000 sockets are few for an attacker."""

    def begin(self):
        sia = [sys.executable, "-m", "sia", "serve", "--config", str(self.config)]
        with self._log.open("w") as log:
            self.process = subprocess.Popen(
                ["sh", "-c", f'ulimit -n {FILES}; exec "$@"', "sh", *sia],
                stdout=subprocess.PIPE, stderr=log, text=True,
            )  # fmt: skip
        self.first = self.process.stdout.readline()

    @property
    def place(self):
        host, port = self.first.split()[2].removeprefix("http://").rstrip(";").split(":")
        return host, int(port)


def talk(place, text):
    """All that is answered to this, until the other side has had enough."""
    with socket.create_connection(place, timeout=20) as connection:
        connection.sendall(text)
        said = b""
        while piece := connection.recv(65536):
            said += piece
    return said.decode()


@pytest.fixture
def daemon(tmp_path):
    served = Narrow(tmp_path, LOCAL.replace("[daemon]", '[daemon]\nlog_level = "debug"'))
    yield served
    if served.process.poll() is None:
        served.end()


def test_a_silent_connection_does_not_delay_others(daemon):
    with ExitStack() as stack:
        for _ in range(FILES + 50):
            stack.enter_context(socket.create_connection(daemon.place))
        health = talk(
            daemon.place, b"GET /healthz HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
        )
        assert health.startswith("HTTP/1.1 200")
        done = daemon("submit", "--pool", "vision", "--id", "a", "--wait", "--", "true")
        assert (done.returncode, done.stdout) == (0, "a finished\n")
    assert daemon.end() == 0
    lines = [json.loads(line) for line in daemon.log.splitlines()]
    told = [line for line in lines if line["event"] == "connections are refused or ended"]
    assert [line["most"] for line in told] == [FILES // 2]
    assert len(lines) < 100


def test_a_silent_connection_is_closed(monkeypatch):
    monkeypatch.setattr("daemon.doors.http.listener.HEAD_WITHIN", 0.1)

    async def story():
        bound = bind(Address("127.0.0.1", 0))
        door = await listen(web.Application(), bound)
        try:
            reader, writer = await asyncio.open_connection(*bound.getsockname())
            writer.write(b"GET /healthz HTTP/1.1\r\nHost:")
            async with asyncio.timeout(10):
                with suppress(ConnectionError):
                    assert await reader.read() == b""
            writer.close()
        finally:
            await door.cleanup()

    asyncio.run(story())


def test_a_listener_that_stops_leaves_no_client_without_an_end():
    """However far the connection got: it is answered or closed, and its socket is not lost."""

    async def story(steps):
        bound = bind(Address("127.0.0.1", 0))
        door = await listen(web.Application(), bound)
        await asyncio.sleep(0.001)  # it accepts
        with socket.create_connection(bound.getsockname()) as client:
            client.settimeout(0)
            client.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
            for _ in range(steps):
                await asyncio.sleep(0)
            await door.cleanup()
            async with asyncio.timeout(20):
                with suppress(ConnectionError):
                    said = await asyncio.get_running_loop().sock_recv(client, 1000)
                    assert not said or said.startswith(b"HTTP/1.1 404")

    gc.disable()  # it would close a lost socket by chance
    try:
        for steps in range(12):
            asyncio.run(story(steps))
    finally:
        gc.enable()


TOKEN = "hush-of-the-token"
GET = "GET /v1/jobs HTTP/1.1\r\nHost: a\r\n"
POST = "POST /v1/jobs HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n"
NO_HTTP = (
    f"{GET}Authorization: Bearer {TOKEN}\r\r\n\r\n",
    f"{GET}Authorization: Bearer {TOKEN}\0\r\n\r\n",
    f"GET /v1/jobs?{TOKEN}\x01 HTTP/9\r\nHost: a\r\n\r\n",
    f"{TOKEN}\r\n\r\n",
    f"{POST}Authorization: Bearer MACHINE\r\n\r\n{TOKEN}\r\n",
)


def test_compressed_bodies_are_refused():
    """A handler gets the bytes that were sent; those that nobody reads cost no more than that."""
    packed = gzip.compress(b"a" * 1000)
    head = f"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {len(packed)}\r\n"
    got = []

    async def keep(request):
        got.append(await request.read())
        return web.Response()

    async def story():
        bound = bind(Address("127.0.0.1", 0))
        app = web.Application()
        app.router.add_post("/", keep)
        door = await listen(app, bound)
        try:
            reader, writer = await asyncio.open_connection(*bound.getsockname())
            writer.write(f"{head}Content-Encoding: gzip\r\n\r\n".encode() + packed)
            assert await reader.readline() == b"HTTP/1.1 200 OK\r\n"
            writer.close()
        finally:
            await door.cleanup()

    asyncio.run(story())
    assert got == [packed]


def test_a_request_that_is_not_http_is_neither_echoed_nor_logged(daemon):
    machine = (daemon.config.parent / "state" / "token").read_text().strip()
    shown = ""
    for text in NO_HTTP:
        said = talk(daemon.place, text.replace("MACHINE", machine).encode())
        assert said.split()[1] == "400"
        assert "application/problem+json" in said
        shown += said
    assert daemon.end() == 0
    shown += daemon.log
    assert shown.count("refused request") >= len(NO_HTTP)
    for secret in (TOKEN, machine):
        assert secret not in shown
    for line in daemon.log.splitlines():
        assert json.loads(line)["event"]
