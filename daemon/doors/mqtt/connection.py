"""One connection to a broker: acknowledges when it is told to, publishes many at a time, in order.

`aiomqtt` acknowledges what has come as soon as it is queued, and waits for one publication at a
time; both are other ways here, by what paho offers below it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import aiomqtt
import paho.mqtt.client as mqtt
from paho.mqtt.enums import MQTTErrorCode
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

from daemon.config.mqtt import MqttConfig
from daemon.config.mqtt_limits import (
    FAREWELL,
    MAX_PACKET,
    OVERHEAD,
    PROTOCOL_PACKET,
    SESSION,
    TIMEOUT,
    UNACKNOWLEDGED,
    WINDOW,
)
from daemon.runtime.logs import log

DENIED = 0x80
"""Reasons from here on are refusals (MQTT 5)."""

HUNG_UP = "it hung up before it said anything; mqtt.tls may not be as it wants it"

TOO_LARGE = 0x95
"""The reason for what is larger than the broker takes: it would hang up instead of saying so."""

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
        may: asked right before anything goes out.

    Attributes:
        most: Bytes of a packet that the broker takes.
    """

    def __init__(
        self,
        config: MqttConfig,
        name: str,
        will: aiomqtt.Will | None,
        receive: Receive,
        may: Callable[[], bool] = lambda: True,
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
        self.most = PROTOCOL_PACKET if five else MAX_PACKET
        self._receive, self._may = receive, may
        self._read_publish = self._client._handle_publish  # noqa: SLF001  it has no other hook
        self._client._handle_publish = self._take  # type: ignore[method-assign]  # noqa: SLF001
        self._readable = True
        self._client.manual_ack_set(True)  # noqa: FBT003  paho's own
        self._client.connect_timeout = TIMEOUT / 2
        self._disconnected.add_done_callback(_looked_at)
        self._unconfirmed: dict[int, asyncio.Future[int]] = {}
        self._room = asyncio.Semaphore(WINDOW)
        self._paused = False
        self._failed = False

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
        size = OVERHEAD + len(topic.encode()) + len(payload)
        if size + (len(with_.pack()) if with_ else 0) > self.most:  # type: ignore[no-untyped-call]
            refused: asyncio.Future[int] = self._loop.create_future()
            refused.set_result(TOO_LARGE)
            return refused
        await self._room.acquire()
        if self._failed or self._disconnected.done() or not self._may():
            self._room.release()
            raise WireError("not connected, or another daemon acts")
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
        """Wait for the end of the connection: why it ended, if it was not meant to.

        One over which nothing is confirmed any more is ended.
        """
        before = None
        while not self._disconnected.done():
            await asyncio.wait((self._disconnected,), timeout=TIMEOUT)
            oldest = next(iter(self._unconfirmed.values()), None)
            if oldest is not None and oldest is before and not self._paused:
                self.drop()
            before = oldest
        return self._disconnected.exception()

    async def leave(self) -> None:
        """Disconnect, if the broker hears of it soon; one that is being made comes to nothing."""
        self._fail()
        if _came(self._connected):
            with suppress(aiomqtt.MqttError, TimeoutError):
                async with asyncio.timeout(FAREWELL):
                    await self.__aexit__(None, None, None)
        self._client._sock_close()  # noqa: SLF001  the broker may not know that it ended

    def _fail(self) -> None:
        """Whoever waits for a confirmation, or to send, waits no longer."""
        self._failed = True
        for future in self._unconfirmed.values():
            if not future.done():
                future.set_exception(WireError("the connection is gone"))
        self._unconfirmed.clear()

    def drop(self) -> None:
        """End the connection, so that what was not acknowledged comes again."""
        if not self._disconnected.done():
            self._disconnected.set_exception(WireError("dropped"))

    def _on_socket_open(self, client: mqtt.Client, userdata: Any, sock: Any) -> None:
        """As `aiomqtt` does, but that reading can be paused. In the thread that connects.

        It may come to it after we left: then the broker must not hear that this client is there.
        """
        if self._failed:
            sock.close()
            raise OSError("nobody waits for it any more")
        self._loop.call_soon_threadsafe(self._begin, sock)

    def _begin(self, sock: Any) -> None:
        if self._is(sock):
            self._loop.add_reader(sock, self._read)
            self._misc_task = self._loop.create_task(self._misc_loop())

    def _on_socket_register_write(self, client: mqtt.Client, userdata: Any, sock: Any) -> None:
        """As `aiomqtt` does, but that the socket may be gone when it comes to it. In any thread."""
        self._loop.call_soon_threadsafe(self._write_on, sock)

    def _write_on(self, sock: Any) -> None:
        if self._is(sock):
            self._loop.add_writer(sock, self._write)

    def _is(self, sock: object) -> bool:
        """Whether it is still ours; else it is closed, and its number may be another's."""
        return sock is self._client.socket()

    def _write(self) -> None:
        try:
            self._client.loop_write()
        except Exception as error:  # noqa: BLE001  whatever it is, the connection is no use
            if not self._disconnected.done():
                self._disconnected.set_exception(error)

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
        self.most = getattr(properties, "MaximumPacketSize", self.most)
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
            self._connected.exception()  # perhaps nobody waits for it any more
        super()._on_disconnect(client, userdata, flags, reason_code, properties)

    def _take(self) -> MQTTErrorCode:
        """A message has come. What paho cannot read is dropped: else it came again for ever."""
        self._readable = False
        try:
            return self._read_publish()
        except Exception as error:
            if self._readable:
                raise
            packet = self._client._in_packet  # noqa: SLF001
            body = bytes(packet["packet"])
            end = 2 + int.from_bytes(body[:2])
            topic = body[2:end].decode(errors="replace")
            log().warning(
                "message that is no MQTT dropped", topic=topic[:200], why=str(error)[:200]
            )
            qos = packet["command"] >> 1 & 3
            self.ack(int.from_bytes(body[end : end + 2]), qos)
            return MQTTErrorCode.MQTT_ERR_SUCCESS

    def _on_message(self, client: mqtt.Client, userdata: Any, message: mqtt.MQTTMessage) -> None:
        self._readable = True
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


def _came(connected: asyncio.Future[None]) -> bool:
    """Whether the broker has let us in."""
    return connected.done() and not connected.cancelled() and connected.exception() is None


def _looked_at(future: asyncio.Future[Any]) -> None:
    """Whether anybody asks for it or not."""
    if not future.cancelled():
        future.exception()


def _asked() -> Properties:
    """What a broker is to heed: how much may be under way, and how long it waits for us."""
    asked = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
    asked.ReceiveMaximum = UNACKNOWLEDGED
    asked.SessionExpiryInterval = SESSION
    asked.MaximumPacketSize = MAX_PACKET
    return asked
