"""One connection to a broker, with manual acknowledgements and pipelined publishing.

`aiomqtt` acknowledges a message as soon as it is queued, and waits for each publication. This
client acknowledges on request and keeps several publications in flight, through paho's API.
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
"""Smallest reason code of a failure (MQTT 5)."""

HUNG_UP = "the broker closed the connection without an answer; check mqtt.tls"

TOO_LARGE = 0x95
"""Reason code for a packet above the broker's limit. Sending it would close the connection."""

Receive = Callable[[mqtt.MQTTMessage], None]


class WireError(Exception):
    """The connection is lost. Publications that were not confirmed may not have arrived."""


class Wire(aiomqtt.Client):
    """Connects on `async with`, which raises `aiomqtt.MqttError`. Use once.

    Args:
        config: address and credentials of the broker.
        name: client id; the broker keeps a session under it.
        will: last will, published by the broker when the connection is lost.
        receive: called for each message on the event loop; must not raise.
        may: checked before each publication.

    Attributes:
        most: Maximum packet size of the broker in bytes.
    """

    def __init__(
        self,
        config: MqttConfig,
        name: str,
        will: aiomqtt.Will | None,
        receive: Receive,
        may: Callable[[], bool] = lambda: True,
    ) -> None:
        """Prepare a connection. Raises OSError or ValueError if a file cannot be read."""
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
        self._read_publish = self._client._handle_publish  # noqa: SLF001  paho has no public hook
        self._client._handle_publish = self._take  # type: ignore[method-assign]  # noqa: SLF001
        self._readable = True
        self._client.manual_ack_set(True)  # noqa: FBT003  paho's signature
        self._client.connect_timeout = TIMEOUT / 2
        self._disconnected.add_done_callback(_looked_at)
        self._unconfirmed: dict[int, asyncio.Future[int]] = {}
        self._room = asyncio.Semaphore(WINDOW)
        self._paused = False
        self._failed = False

    def pause(self) -> None:
        """Stop reading, so that messages queue up at the broker."""
        sock = self._client.socket()
        if sock is not None and not self._paused:
            self._paused = True
            self._loop.remove_reader(sock)

    def resume(self) -> None:
        """Continue to read."""
        sock = self._client.socket()
        if self._paused and sock is not None:
            self._paused = False
            self._loop.add_reader(sock, self._read)
            self._read()  # TLS may have buffered data

    def ack(self, mid: int, qos: int) -> None:
        """Acknowledge a message, so that the broker does not send it again."""
        if qos and not self._disconnected.done():
            self._client.ack(mid, qos)

    async def send(
        self, topic: str, payload: bytes, *, retain: bool = False, with_: Properties | None = None
    ) -> asyncio.Future[int]:
        """Publish with QoS 1 in order; waits only if too many publications are in flight.

        The future returns the broker's reason code (0x80 and above: refused) or raises WireError.
        """
        size = OVERHEAD + len(topic.encode()) + len(payload)
        if size + (len(with_.pack()) if with_ else 0) > self.most:  # type: ignore[no-untyped-call]
            refused: asyncio.Future[int] = self._loop.create_future()
            refused.set_result(TOO_LARGE)
            return refused
        await self._room.acquire()
        if self._failed or self._disconnected.done() or not self._may():
            self._room.release()
            raise WireError("not connected, or another daemon is the leader")
        info = self._client.publish(topic, payload, 1, retain, with_)
        if info.rc != mqtt.MQTT_ERR_SUCCESS:
            self._room.release()
            raise WireError(mqtt.error_string(info.rc))
        future: asyncio.Future[int] = self._loop.create_future()
        future.add_done_callback(self._seen)
        self._unconfirmed[info.mid] = future
        return future

    def _seen(self, future: asyncio.Future[int]) -> None:
        """Release a slot, and mark the exception as retrieved."""
        self._room.release()
        if not future.cancelled():
            future.exception()

    async def ended(self) -> BaseException | None:
        """Wait for the end of the connection; return why it ended, or None if intended.

        A connection on which the oldest publication stays unconfirmed for `TIMEOUT` is closed.
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
        """Disconnect within `FAREWELL` seconds, and abort a connection attempt."""
        self._fail()
        if _came(self._connected):
            with suppress(aiomqtt.MqttError, TimeoutError):
                async with asyncio.timeout(FAREWELL):
                    await self.__aexit__(None, None, None)
        self._client._sock_close()  # noqa: SLF001  the attempt may still be in progress

    def _fail(self) -> None:
        """Fail all pending publications."""
        self._failed = True
        for future in self._unconfirmed.values():
            if not future.done():
                future.set_exception(WireError("the connection is lost"))
        self._unconfirmed.clear()

    def drop(self) -> None:
        """Close the connection, so that the broker resends what was not acknowledged."""
        if not self._disconnected.done():
            self._disconnected.set_exception(WireError("dropped"))

    def _on_socket_open(self, client: mqtt.Client, userdata: Any, sock: Any) -> None:
        """Register the socket as `aiomqtt` does, but so that reading can be paused.

        Runs on the connecting thread, possibly after `leave`. Then the socket must be closed before
        the broker sees this client id connected.
        """
        if self._failed:
            sock.close()
            raise OSError("the connection attempt was cancelled")
        self._loop.call_soon_threadsafe(self._begin, sock)

    def _begin(self, sock: Any) -> None:
        if self._is(sock):
            forget(self._loop, sock)
            self._loop.add_reader(sock, self._read)
            self._misc_task = self._loop.create_task(self._misc_loop())

    def _on_socket_register_write(self, client: mqtt.Client, userdata: Any, sock: Any) -> None:
        """Register as `aiomqtt` does, on any thread; the socket may be closed by then."""
        self._loop.call_soon_threadsafe(self._write_on, sock)

    def _write_on(self, sock: Any) -> None:
        if self._is(sock):
            self._loop.add_writer(sock, self._write)

    def _is(self, sock: object) -> bool:
        """Return whether a socket is still ours; a closed one's number may have been reused."""
        return sock is self._client.socket()

    def _write(self) -> None:
        try:
            self._client.loop_write()
        except Exception as error:  # noqa: BLE001  any error makes the connection unusable
            if not self._disconnected.done():
                self._disconnected.set_exception(error)

    def _read(self) -> None:
        try:
            while not self._paused:
                self._client.loop_read()
                sock = self._client.socket()
                if not getattr(sock, "pending", int)():
                    return
        except Exception as error:  # noqa: BLE001  any error makes the connection unusable
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
        if most < WINDOW:  # exceeding the limit would make the broker disconnect
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
        if not self._connected.done():  # `aiomqtt` would wait for its timeout
            self._connected.set_exception(aiomqtt.MqttError(HUNG_UP))
            self._connected.exception()  # mark as retrieved: nobody may be waiting
        super()._on_disconnect(client, userdata, flags, reason_code, properties)

    def _take(self) -> MQTTErrorCode:
        """Handle a packet. A malformed one is dropped, or the broker would resend it forever."""
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
            log().warning("malformed MQTT message dropped", topic=topic[:200], why=str(error)[:200])
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


def forget(loop: asyncio.AbstractEventLoop, sock: Any) -> None:
    """Remove the loop's callbacks of an earlier socket that had the file number of this new one.

    The connecting thread may close a socket before the loop has removed its reader or writer. The
    system then forgets the number but the loop does not, and would never read the new socket.
    """
    for remove in (loop.remove_reader, loop.remove_writer):
        with suppress(OSError):  # the system does not know the number; the loop now forgets it, too
            remove(sock)


def _came(connected: asyncio.Future[None]) -> bool:
    """Return whether the broker accepted the connection."""
    return connected.done() and not connected.cancelled() and connected.exception() is None


def _looked_at(future: asyncio.Future[Any]) -> None:
    """Mark a future's exception as retrieved."""
    if not future.cancelled():
        future.exception()


def _asked() -> Properties:
    """Return the CONNECT properties: receive window, session expiry and packet size."""
    asked = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
    asked.ReceiveMaximum = UNACKNOWLEDGED
    asked.SessionExpiryInterval = SESSION
    asked.MaximumPacketSize = MAX_PACKET
    return asked
