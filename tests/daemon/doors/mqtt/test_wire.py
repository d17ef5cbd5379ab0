"""A connection to a broker that hangs: nobody waits for it without end, and it stops at once."""

import asyncio
import signal
import socket
import threading
from contextlib import asynccontextmanager, contextmanager

import aiomqtt
import pytest

from daemon.config.mqtt import MqttConfig
from daemon.doors.mqtt.connection import Wire, WireError
from daemon.doors.mqtt.reconnecting import Link, Presence
from tests.support.daemons.daemons import until

HERE = Presence("sia/v1/main/state", b"online", b"offline")

LET_IN = bytes((0x20, 3, 0, 0, 0))
"""CONNACK of MQTT 5."""

FOR_EVER = 3600.0
"""Seconds: far more than a test lasts."""


def story(tell):
    """Run a coroutine function as a test, with what pytest gives it."""

    def test(broker):
        asyncio.run(asyncio.wait_for(tell(broker), 120))

    test.__name__ = tell.__name__
    return test


@asynccontextmanager
async def linked(port, **more):
    """A link that is being connected, and its task."""
    config = MqttConfig(port=port, keepalive=int(FOR_EVER))
    link = Link(config, "w", ["sia/x"], lambda _: None, lambda *_: None, presence=HERE, **more)
    task = asyncio.create_task(link.run())
    try:
        yield link, task
    finally:
        task.cancel()
        await asyncio.wait((task,))


@contextmanager
def frozen(broker):
    """It is there, and says nothing."""
    broker.process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        broker.process.send_signal(signal.SIGCONT)


async def overfull(wire):
    """As much under way as there is room for, and one more that waits for it."""
    sent = [await wire.send("sia/x", b"1") for _ in range(wire._room._value)]
    late = asyncio.create_task(wire.send("sia/late", b"2"))
    await asyncio.sleep(0)
    return sent, late


@story
async def test_a_sender_that_waits_for_room_learns_that_the_connection_ended(broker):
    """It is the daemon that ends it, while the broker says nothing."""
    async with linked(broker.port) as (link, task):
        await link.up.wait()
        with frozen(broker):
            sent, late = await overfull(link._wire)
            link.stop()
            await task
        for each in sent:
            with pytest.raises(WireError):
                await each
        with pytest.raises(WireError):
            await (await late)


@story
async def test_a_connection_without_confirmations_is_closed(broker):
    """The broker may answer all else."""
    loop = asyncio.get_running_loop()
    async with linked(broker.port) as (link, _):
        await link.up.wait()
        wire, session = link._wire, link.session
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("daemon.doors.mqtt.connection.TIMEOUT", 0.05)
            ended = asyncio.ensure_future(wire.ended())
            for number in range(30):  # one is under way all the time, and each is confirmed
                wire._unconfirmed = {number: loop.create_future()}
                await asyncio.sleep(0.005)
            assert not ended.done()
            (last,) = wire._unconfirmed.values()
            with pytest.raises(WireError):
                await last
        assert isinstance(await ended, WireError)
        await until(lambda: link.session > session and link.up.is_set())


@contextmanager
def dumb(says=b""):
    """Open a port that sends only these bytes to each client; yield what it received from each."""
    heard = []

    def listen():
        while True:
            try:
                taken, _ = door.accept()
            except OSError:
                return
            with taken:
                heard.append(b"")
                while found := taken.recv(1000):
                    heard[-1] += found
                    taken.sendall(says[: len(says) * (heard[-1] == found)])

    door = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=listen)
    thread.start()
    try:
        yield door.getsockname()[1], heard
    finally:
        door.shutdown(socket.SHUT_RDWR)
        thread.join(20)
        door.close()


@pytest.mark.parametrize("says", [b"", LET_IN])
def test_stopping_does_not_wait_for_a_silent_broker(says, monkeypatch):
    """Neither who it is, nor that it heard what we want to read."""

    async def tell():
        with dumb(says) as (port, heard):
            async with linked(port) as (link, task):
                await until(lambda: heard and (b"sia/x" if says else b"MQTT") in heard[0])
                link.stop()
                await asyncio.wait_for(task, 20)

    monkeypatch.setattr("daemon.doors.mqtt.connection.TIMEOUT", FOR_EVER)
    asyncio.run(tell())


def test_a_connection_that_is_stopped_while_it_connects_stays_closed(monkeypatch):
    """The stand-by is that client by then, and would be thrown out."""
    began, goes_on, made = threading.Event(), threading.Event(), Wire._client_connect

    def slow(wire):
        began.set()
        assert goes_on.wait(20)
        made(wire)

    async def tell():
        with dumb() as (port, heard):
            async with linked(port) as (link, task):
                await until(began.is_set)
                link.stop()
                await asyncio.wait_for(task, 20)
            goes_on.set()
            await asyncio.get_running_loop().shutdown_default_executor()
            await until(lambda: heard)
        assert heard == [b""]

    monkeypatch.setattr(aiomqtt.Client, "_client_connect", slow)
    asyncio.run(tell())
