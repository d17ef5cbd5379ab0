"""MQTT gateway: one client for the topics of all pools."""

from __future__ import annotations

import asyncio
from functools import partial

import paho.mqtt.client as mqtt

from daemon.answers.estimates.estimator import EtaService
from daemon.config.mqtt import MqttConfig
from daemon.doors.mqtt.events import Events
from daemon.doors.mqtt.inbound import Inbound
from daemon.doors.mqtt.pool_states import States
from daemon.doors.mqtt.reconnecting import Link, Presence
from daemon.doors.mqtt.replies import Replies
from daemon.doors.mqtt.supervised import again
from daemon.doors.mqtt.topics import DOORS, Topics
from daemon.service.admission import Admission
from daemon.service.service import Service

PART = "mqtt"

ONLINE, OFFLINE = b"online", b"offline"


class Gateway:
    """Receives messages and publishes events while it runs; reconnects to the broker."""

    def __init__(
        self,
        service: Service,
        config: MqttConfig,
        admission: Admission | None = None,
        eta: EtaService | None = None,
    ) -> None:
        """Create the gateway of a started service."""
        self._say = partial(service.parts.say, PART)
        topics = Topics(config.cluster)
        self.link = Link(
            config,
            config.name,
            [topics.every(door) for door in DOORS.values()],
            self._receive,
            self._say,
            presence=Presence(topics.state, ONLINE, OFFLINE),
            may=service.fence.holds,
        )
        replies = Replies(
            self.link, topics, service.clock.now, lambda pool: pool in service.book.pools
        )
        self._inbound = Inbound(service, self.link, topics, replies, admission, eta)
        self._work = (
            self._inbound.run,
            Events(service, self.link, topics).run,
            States(service, self.link, topics).run,
        )

    def _receive(self, message: mqtt.MQTTMessage) -> None:
        self._inbound.receive(message)

    async def run(self) -> None:
        """Run until cancelled, then publish the offline state and disconnect."""
        linked = asyncio.create_task(again(self.link.run, self._say))
        tasks = [asyncio.create_task(again(work, self._say)) for work in self._work]
        try:
            await asyncio.wait((linked, *tasks))
        finally:
            for task in tasks:
                task.cancel()
            self.link.stop()
            await asyncio.gather(linked, *tasks, return_exceptions=True)
