"""A daemon that does not serve yet: what it says while it waits for its turn, and takes it over."""

import asyncio
import socket
import threading
from contextlib import asynccontextmanager
from functools import partial

import aiohttp
import pytest
from buses import peer
from daemons import until
from servers import free_port

import daemon.serving
from daemon.config import Address, Config
from daemon.config_database import DatabaseUrl
from daemon.config_mqtt import MqttConfig
from daemon.turns import serve_in_turn


@asynccontextmanager
async def member(folder, url, host="127.0.0.1", **more):
    """A daemon in its turn, and how to ask it."""
    stop, port = asyncio.Event(), free_port()
    config = Config(
        database=url, token_file=folder / f"token{port}", models=folder / "models",
        listen=Address(host, port), forecast="none", **more,
    )  # fmt: skip

    async def ask(path, headers=None):
        try:
            async with http.get(f"http://127.0.0.1:{port}{path}", headers=headers) as answer:
                return answer.status, await answer.text()
        except aiohttp.ClientConnectionError:
            return 0, ""  # it has not begun to listen

    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(5)) as http:
        task = asyncio.create_task(serve_in_turn(config, url, stop, lambda _: None))
        try:
            yield ask, port
        finally:
            stop.set()
            await task


async def becomes(ask, path, status):
    async with asyncio.timeout(20):
        while (await ask(path))[0] != status:  # noqa: ASYNC110  nobody tells
            await asyncio.sleep(0.05)


@pytest.fixture
def url(postgres):
    return DatabaseUrl(postgres.database("standby"))


def test_a_daemon_that_takes_over_says_that_it_lives(tmp_path, url, monkeypatch):
    """However long that takes: whoever looks at it must not end it meanwhile."""
    began, goes_on, build = threading.Event(), threading.Event(), daemon.serving.build

    def slow(*words):
        began.set()
        assert goes_on.wait(20)
        return build(*words)

    async def story():
        async with member(tmp_path, url) as (ask, _):
            await until(began.is_set)
            assert (await ask("/healthz"))[0] == 200
            assert "sia_leader 1\n" in (await ask("/metrics"))[1]
            status, said = await ask("/readyz")
            assert (status, "begins to lead" in said) == (503, True)
            goes_on.set()
            await becomes(ask, "/readyz", 200)

    monkeypatch.setattr("daemon.serving.build", slow)
    asyncio.run(story())


def test_a_stand_by_says_who_leads_and_on_which_machine(tmp_path, url):
    """The address of a leader that listens on all of them is of no use elsewhere."""

    async def story():
        async with member(tmp_path, url, "0.0.0.0") as (leader, port):
            await becomes(leader, "/readyz", 200)
            async with member(tmp_path, url) as (ask, _):
                await becomes(ask, "/healthz", 200)
                assert f"ask http://{socket.gethostname()}:{port}" in (await ask("/v1/jobs"))[1]
                assert (
                    "sia_leader 0\n# TYPE sia_epoch gauge\nsia_epoch 1\n"
                    in (await ask("/metrics"))[1]
                )

    asyncio.run(story())


def test_a_stand_by_goes_on_with_what_came_on_the_bus_for_the_leader(tmp_path, url, broker):
    """Both are one client of the broker, which keeps what comes while neither is there."""
    bus = MqttConfig(port=broker.port, keepalive=5)

    async def story():
        submit = "sia/v1/main/pool/vision/submit"
        async with peer(broker.port, "sia/v1/main/state") as one:
            async with member(tmp_path, url, mqtt=bus) as (leader, _):
                await becomes(leader, "/readyz", 200)
                await until(lambda: one.heard, 20)
            await one.say(submit, {"id": "between", "gpus": 1, "hold": True})
            async with member(tmp_path, url, mqtt=bus) as (ask, port):
                token = (tmp_path / f"token{port}").read_text
                await becomes(ask, "/readyz", 200)
                auth = {"Authorization": f"Bearer {token().strip()}"}
                await becomes(partial(ask, headers=auth), "/v1/jobs/between", 200)
                await until(lambda: [p for _, p, _ in one.heard][-1] == b"online", 20)
        assert [p for _, p, _ in one.heard][:3] == [b"online", b"offline", b"online"]

    asyncio.run(story())
