"""A daemon that does not serve yet: what it says while it waits for its turn, and takes it over."""

import asyncio
import socket
import threading
from contextlib import asynccontextmanager
from functools import partial

import aiohttp
import pytest

import daemon.process.leadership
import daemon.process.serve
from daemon.config.config import Address, Config
from daemon.config.database import DatabaseUrl
from daemon.config.mqtt import MqttConfig
from daemon.process.leadership import REST, REST_MOST, serve_in_turn
from daemon.process.standby import Candidate
from tests.support.daemons.daemons import until
from tests.support.servers.mqtt import peer
from tests.support.servers.servers import free_port


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
    async with asyncio.timeout(60):
        while (await ask(path))[0] != status:  # noqa: ASYNC110  nobody tells
            await asyncio.sleep(0.05)


@pytest.fixture
def url(postgres):
    return DatabaseUrl(postgres.database("standby"))


def test_a_daemon_that_takes_over_reports_that_it_is_alive(tmp_path, url, monkeypatch):
    """However long that takes: whoever looks at it must not end it meanwhile."""
    began, goes_on, build = threading.Event(), threading.Event(), daemon.process.serve.build

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
            assert (status, "is becoming the leader" in said) == (503, True)
            goes_on.set()
            await becomes(ask, "/readyz", 200)

    monkeypatch.setattr("daemon.process.serve.build", slow)
    asyncio.run(story())


def test_a_stand_by_names_the_leader_and_its_machine(tmp_path, url):
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


def epoch(postgres):
    return int(postgres.run("SELECT epoch FROM sia.lease", "standby").stdout)


@pytest.fixture
def damaged(tmp_path, url, postgres):
    """Tables that nobody can go on with; what mends them."""

    async def first():
        async with member(tmp_path, url) as (ask, _):
            await becomes(ask, "/readyz", 200)

    asyncio.run(first())
    postgres.run("ALTER TABLE sia.records RENAME TO gone", "standby")
    return partial(postgres.run, "ALTER TABLE sia.gone RENAME TO records", "standby")


def test_a_daemon_that_cannot_lead_lets_others_try_first(
    tmp_path, url, postgres, damaged, monkeypatch
):
    """It says so meanwhile, and does not take the lease time and again."""

    async def could_not(ask):
        async with asyncio.timeout(60):
            while "failed to lead" not in (await ask("/readyz"))[1]:  # noqa: ASYNC110
                await asyncio.sleep(0.05)

    async def story():
        async with member(tmp_path, url) as (one, _):
            await could_not(one)
            assert epoch(postgres) == 2
            damaged()
            async with member(tmp_path, url) as (ask, port):
                await becomes(ask, "/readyz", 200)
                assert epoch(postgres) == 3
                async with asyncio.timeout(60):
                    while f"127.0.0.1:{port} leads" not in (await one("/readyz"))[1]:  # noqa: ASYNC110
                        await asyncio.sleep(0.05)

    monkeypatch.setattr("daemon.process.leadership.REST", 3600.0)
    monkeypatch.setattr("daemon.process.leadership.REST_MOST", 3600.0)
    asyncio.run(story())


def test_a_daemon_that_cannot_lead_retries_with_growing_pauses(tmp_path, url, damaged, monkeypatch):
    rests, stand_by = [], daemon.process.leadership.stand_by

    async def notes(*words, rest, **more):
        rests.append(rest)
        if len(rests) == 8:
            damaged()
        return await stand_by(*words, rest=rest / 1000, **more)

    async def story():
        async with member(tmp_path, url) as (ask, _):
            await becomes(ask, "/readyz", 200)

    monkeypatch.setattr("daemon.process.leadership.stand_by", notes)
    monkeypatch.setattr("daemon.process.standby.LOOK_EVERY", 0.05)
    asyncio.run(story())
    assert rests[:8] == [0.0, REST, 2 * REST, 4 * REST, 8 * REST, 16 * REST, REST_MOST, REST_MOST]


def test_a_stopping_daemon_does_not_take_the_lease(tmp_path, url, monkeypatch):
    """Otherwise the daemon would recover its whole state only to stop."""
    asked, look = threading.Event(), Candidate.look

    def late(candidate, **more):
        asked.set()
        assert stopped.wait(20)
        return look(candidate, **more)

    def never(*_):
        raise AssertionError("it began to lead")

    async def story():
        async with member(tmp_path, url):
            await until(asked.is_set)
            asyncio.get_running_loop().call_later(0.05, stopped.set)

    stopped = threading.Event()
    monkeypatch.setattr(Candidate, "look", late)
    monkeypatch.setattr("daemon.process.serve.build", never)
    asyncio.run(story())
    candidate = Candidate(url, "http://here")
    monkeypatch.setattr(Candidate, "look", look)
    desk, epoch, _ = candidate.look()  # it was given back at once
    desk.close()
    assert epoch == 2


def test_a_stand_by_continues_with_messages_that_were_sent_to_the_leader(tmp_path, url, broker):
    """Both are one client of the broker, which keeps what comes while neither is there."""
    bus = MqttConfig(port=broker.port, keepalive=5)

    async def story():
        submit = "sia/v1/main/pool/default/submit"
        async with peer(broker.port, "sia/v1/main/state") as one:
            async with member(tmp_path, url, mqtt=bus) as (leader, _):
                await becomes(leader, "/readyz", 200)
                await until(lambda: one.heard)
            await one.say(submit, {"id": "between", "gpus": 1, "hold": True})
            async with member(tmp_path, url, mqtt=bus) as (ask, port):
                token = (tmp_path / f"token{port}").read_text
                await becomes(ask, "/readyz", 200)
                auth = {"Authorization": f"Bearer {token().strip()}"}
                await becomes(partial(ask, headers=auth), "/v1/jobs/between", 200)
                await until(lambda: [p for _, p, _ in one.heard][-1] == b"online")
        assert [p for _, p, _ in one.heard][:3] == [b"online", b"offline", b"online"]

    asyncio.run(story())
