"""One connection to a broker: acknowledges when it is told to, publishes many at a time, in order.

`aiomqtt` acknowledges what has come as soon as it is queued, and waits for one publication at a
time; both are other ways here, by what paho offers below it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import aiomqtt
import paho.mqtt.client as mqtt
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

from daemon.config_mqtt import MqttConfig
from daemon.mqtt.limits import MAX_PACKET, SESSION, TIMEOUT, UNACKNOWLEDGED, WINDOW

DENIED = 0x80
"""Reasons from here on are refusals (MQTT 5)."""

HUNG_UP = "it hung up before it said anything; mqtt.tls may not be as it wants it"

Receive = Callable[[mqtt.MQTTMessage], None]


class WireError(Exception):
    """The connection is gone: what was not confirmed may not have come."""


class Wire(aiomqtt.Client):
    """Connects on `async with`, which raises `aiomqtt.MqttError`. For one use.

    Args:
        config: where and as whom.
        name: the client's id; the broker keeps a session under it.
        will: what the broker says of us when we are gone without a word.
        receive: hears of each message, on the loop; must not raise.
    """

    def __init__(
        self, config: MqttConfig, name: str, will: aiomqtt.Will | None, receive: Receive
    ) -> None:
        """Nothing is connected yet. Raises OSError, ValueError where a file cannot be read."""
        five = config.protocol == "5"
        super().__init__(
            config.host,
            config.door,
            username=config.user or None,
            password=config.password(),
            identifier=name,
            protocol=aiomqtt.ProtocolVersion.V5 if five else aiomqtt.ProtocolVersion.V311,
            will=will,
            clean_session=None if five else False,
            clean_start=False if five else mqtt.MQTT_CLEAN_START_FIRST_ONLY,
            properties=_asked() if five else None,
            keepalive=config.keepalive,
            timeout=TIMEOUT,
            max_inflight_messages=WINDOW,
            tls_context=config.context(),
        )
        self.five = five
        self._receive = receive
        self._client.manual_ack_set(True)  # noqa: FBT003  paho's own
        self._client.connect_timeout = TIMEOUT / 2
        self._unconfirmed: dict[int, asyncio.Future[int]] = {}
        self._room = asyncio.Semaphore(WINDOW)
        self._paused = False

    def pause(self) -> None:
        """Read nothing more for now: what comes waits at the broker."""
        sock = self._client.socket()
        if sock is not None and not self._paused:
            self._paused = True
            self._loop.remove_reader(sock)

    def resume(self) -> None:
        """Read on."""
        sock = self._client.socket()
        if self._paused and sock is not None:
            self._paused = False
            self._loop.add_reader(sock, self._read)
            self._read()  # TLS may have had more already

    def ack(self, mid: int, qos: int) -> None:
        """A message that has come needs not come again."""
        if qos and not self._disconnected.done():
            self._client.ack(mid, qos)

    async def send(
        self, topic: str, payload: bytes, *, retain: bool = False, with_: Properties | None = None
    ) -> asyncio.Future[int]:
        """Publish with QoS 1, after what was sent before; waits only while too much is under way.

        The future has the broker's reason (0x80 and above: it refused), or raises WireError.
        """
        await self._room.acquire()
        if self._disconnected.done():
            self._room.release()
            raise WireError("not connected")
        info = self._client.publish(topic, payload, 1, retain, with_)
        if info.rc != mqtt.MQTT_ERR_SUCCESS:
            self._room.release()
            raise WireError(mqtt.error_string(info.rc))
        future: asyncio.Future[int] = self._loop.create_future()
        future.add_done_callback(self._seen)
        self._unconfirmed[info.mid] = future
        return future

    def _seen(self, future: asyncio.Future[int]) -> None:
        """Whether anybody waits for it or not, it was looked at."""
        self._room.release()
        if not future.cancelled():
            future.exception()

    async def ended(self) -> BaseException | None:
        """Wait for the end of the connection: why it ended, if it was not meant to."""
        await asyncio.wait((self._disconnected,))
        return self._disconnected.exception()

    def fail(self) -> None:
        """Whoever waits for a confirmation waits no longer."""
        for future in self._unconfirmed.values():
            if not future.done():
                future.set_exception(WireError("the connection is gone"))
        self._unconfirmed.clear()
        if self._disconnected.done() and not self._disconnected.cancelled():
            self._disconnected.exception()  # whoever wanted to know has asked

    def _on_socket_open(self, client: mqtt.Client, userdata: Any, sock: Any) -> None:
        """As `aiomqtt` does, but that reading can be paused. In the thread that connects."""
        self._loop.call_soon_threadsafe(self._begin, sock.fileno())

    def _begin(self, number: int) -> None:
        self._loop.add_reader(number, self._read)
        self._misc_task = self._loop.create_task(self._misc_loop())

    def _read(self) -> None:
        try:
            while not self._paused:
                self._client.loop_read()
                sock = self._client.socket()
                if not getattr(sock, "pending", int)():
                    return
        except Exception as error:  # noqa: BLE001  whatever it is, the connection is no use
            if not self._disconnected.done():
                self._disconnected.set_exception(error)

    def _on_connect(
        self,
        client: mqtt.Client,
        userdata: Any,
        flags: mqtt.ConnectFlags,
        reason_code: ReasonCode,
        properties: Properties | None = None,
    ) -> None:
        most = getattr(properties, "ReceiveMaximum", WINDOW)
        if most < WINDOW:  # more would have the broker hang up
            self._room = asyncio.Semaphore(most)
        super()._on_connect(client, userdata, flags, reason_code, properties)

    def _on_disconnect(
        self,
        client: mqtt.Client,
        userdata: Any,
        flags: mqtt.DisconnectFlags,
        reason_code: ReasonCode,
        properties: Properties | None = None,
    ) -> None:
        if not self._connected.done():  # `aiomqtt` would wait until its time is up
            self._connected.set_exception(aiomqtt.MqttError(HUNG_UP))
        super()._on_disconnect(client, userdata, flags, reason_code, properties)

    def _on_message(self, client: mqtt.Client, userdata: Any, message: mqtt.MQTTMessage) -> None:
        self._receive(message)

    def _on_publish(
        self,
        client: mqtt.Client,
        userdata: Any,
        mid: int,
        reason_code: ReasonCode,
        properties: Properties,
    ) -> None:
        future = self._unconfirmed.pop(mid, None)
        if future is not None and not future.done():
            future.set_result(reason_code.value)


def _asked() -> Properties:
    """What a broker is to heed: how much may be under way, and how long it waits for us."""
    asked = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
    asked.ReceiveMaximum = UNACKNOWLEDGED
    asked.SessionExpiryInterval = SESSION
    asked.MaximumPacketSize = MAX_PACKET
    return asked
