"""Daemons and other clients of an MQTT broker, and the messages they receive."""

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
    """A client of the broker that keeps the messages it received, by topic."""

    def __init__(self, client):
        self.client = client
        self.heard = []
        self.retained = {}
        self.hear = None  # called for each message instead of keeping it

    async def listen(self):
        async for message in self.client.messages:
            topic = message.topic.value
            if self.hear is not None:
                self.hear(topic, message.payload)
                continue
            self.heard.append((topic, message.payload, message.properties))
            if message.retain:
                self.retained[topic] = message.payload
            elif not message.payload:  # an empty payload clears a retained message
                self.retained.pop(topic, None)

    def on(self, topic):
        """Return the JSON of all messages on a topic, in order."""
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
    """Connect a client that subscribes to these topics."""
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
    """Return the configuration of a daemon on a free port, with its broker at this port."""
    bus = MqttConfig(**{"port": port, "keepalive": 5, **(mqtt or {})})
    return config_in(folder, **{"mqtt": bus, "listen": Address("127.0.0.1", 0), **settings})


@asynccontextmanager
async def daemon_on(folder, port, **settings):
    """Run a daemon; yield it once it is connected to the broker."""
    async with serving(on_bus(folder, port, **settings)) as (daemon, _):
        await until(lambda: is_well(daemon, "mqtt"))
        yield daemon.service


def part(service, name):
    """Return the health of a component, if reported."""
    return next((each for each in service.parts.all() if each.name == name), None)


def is_well(daemon, name):
    found = part(daemon.service, name)
    return found is not None and found.ok
