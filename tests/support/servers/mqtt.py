"""Daemons on a bus, and others there: what they hear, what they say."""

import asyncio
import json
from contextlib import asynccontextmanager, suppress

import aiomqtt
from aiomqtt import ProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from daemon.config.config import Address
from daemon.config.mqtt import MqttConfig
from daemon.process.serve import serving
from tests.support.daemons.daemons import until
from tests.support.daemons.doors import config_in

V5 = {"protocol": ProtocolVersion.V5, "clean_start": True}


class Peer:
    """Somebody on the bus; remembers what it heard, by topic."""

    def __init__(self, client):
        self.client = client
        self.heard = []
        self.retained = {}
        self.hear = None  # takes all of it instead, where a test has so much

    async def listen(self):
        async for message in self.client.messages:
            topic = message.topic.value
            if self.hear is not None:
                self.hear(topic, message.payload)
                continue
            self.heard.append((topic, message.payload, message.properties))
            if message.retain:
                self.retained[topic] = message.payload
            elif not message.payload:  # what the broker kept there is cleared
                self.retained.pop(topic, None)

    def on(self, topic):
        """All that came there, in order, as JSON."""
        return [json.loads(payload) for at, payload, _ in self.heard if at.endswith(topic)]

    async def say(self, topic, body, *, reply=None, correlation=None, retain=False, qos=1):
        properties = None
        if reply is not None or correlation is not None:
            properties = Properties(PacketTypes.PUBLISH)
            if reply is not None:
                properties.ResponseTopic = reply
            if correlation is not None:
                properties.CorrelationData = correlation
        payload = body if isinstance(body, bytes) else json.dumps(body).encode()
        await self.client.publish(topic, payload, qos, retain, properties)


@asynccontextmanager
async def peer(port, *filters, **more):
    """Somebody who listens to these."""
    async with aiomqtt.Client("127.0.0.1", port, **{**V5, **more}) as client:
        client.pending_calls_threshold = 10_000
        one = Peer(client)
        for each in filters:
            await client.subscribe(each, qos=1)
        listening = asyncio.create_task(one.listen())
        try:
            yield one
        finally:
            listening.cancel()
            with suppress(asyncio.CancelledError, aiomqtt.MqttError):
                await listening


def on_bus(folder, port, *, mqtt=None, **settings):
    """The configuration of a daemon on a free port, with its bus there."""
    bus = MqttConfig(**{"port": port, "keepalive": 5, **(mqtt or {})})
    return config_in(folder, **{"mqtt": bus, "listen": Address("127.0.0.1", 0), **settings})


@asynccontextmanager
async def daemon_on(folder, port, **settings):
    """A daemon that serves, once it is on the bus."""
    async with serving(on_bus(folder, port, **settings)) as (daemon, _):
        await until(lambda: is_well(daemon, "mqtt"))
        yield daemon.service


def part(service, name):
    """How a part is, if it has said so."""
    return next((each for each in service.parts.all() if each.name == name), None)


def is_well(daemon, name):
    found = part(daemon.service, name)
    return found is not None and found.ok
