"""A connection that reconnects with exponential backoff and jitter, and reports its problems."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from secrets import SystemRandom
from time import monotonic
from typing import Any, NamedTuple, TypeVar

import aiomqtt
import paho.mqtt.client as mqtt
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions

from daemon.config.mqtt import MqttConfig
from daemon.config.mqtt_limits import (
    BACK_OFF,
    BACK_OFF_MOST,
    FAREWELL,
    PROTOCOL_PACKET,
    STEADY,
    TIMEOUT,
)
from daemon.doors.mqtt.connection import DENIED, TOO_LARGE, Receive, Wire, WireError
from daemon.model.limits import PROBE_EVERY

T = TypeVar("T")

Say = Callable[[str, str], None]
"""Takes reason and fix of a problem; two empty strings mean healthy."""


LEVELS = 6
"""Topic levels that identify pool and purpose; replies differ in further levels."""


class ConnectionProblem(NamedTuple):
    """Why there is no connection, and the fix."""

    why: str
    mend: str


class Presence(NamedTuple):
    """A retained topic that tells whether this client is online."""

    topic: str
    here: bytes
    gone: bytes


class Link:
    """A client of a broker that reconnects and renews its subscriptions.

    Attributes:
        up: Set while connected and subscribed.
        session: Number of the connection, starting at 1.
    """

    def __init__(
        self,
        config: MqttConfig,
        name: str,
        filters: Sequence[str],
        receive: Receive,
        say: Say,
        *,
        presence: Presence | None = None,
        may: Callable[[], bool] = lambda: True,
        as_published: bool = True,
    ) -> None:
        """Create a client that connects only while `may` returns True.

        `as_published` (MQTT 5): keep the retain flag of messages as they were published.
        """
        self._as_published = as_published
        self._config, self._name, self._filters = config, name, filters
        self._receive, self._say, self._may, self._presence = receive, say, may, presence
        self._wire: Wire | None = None
        self._denied: set[str] = set()
        self._stop = asyncio.Event()
        self.up = asyncio.Event()
        self.session = 0

    async def run(self) -> None:
        """Stay connected until `stop`."""
        tries = 0
        while not self._stop.is_set():
            if not self._may():
                await self._pause(PROBE_EVERY)
                continue
            began = monotonic()
            trouble = await self._once()
            if self._stop.is_set():
                return
            self._say(*trouble)
            tries = 0 if monotonic() - began > STEADY else tries + 1
            most = min(BACK_OFF_MOST, BACK_OFF * 2 ** min(tries, 16))  # bounds the power
            await self._pause(SystemRandom().uniform(0, most))

    def stop(self) -> None:
        """Publish the offline state, disconnect and end `run`."""
        self._stop.set()

    async def _pause(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stop.wait()

    async def _once(self) -> ConnectionProblem:
        """Run one connection from start to end."""
        config = self._config
        try:
            will = None
            if self._presence is not None:
                will = aiomqtt.Will(self._presence.topic, self._presence.gone, 1, retain=True)
            wire = Wire(config, self._name, will, self._receive, self._may)
        except (OSError, ValueError) as error:
            return _unread(config, error)
        self.session += 1
        self._wire = wire  # set before connecting: a resumed session delivers messages at once
        try:
            return await self._connect(wire) or await self._serve(wire)
        except (aiomqtt.MqttError, WireError) as error:
            return ConnectionProblem(f"{config.where}: {error}", _ALIVE)
        finally:
            self.up.clear()
            self._wire = None
            await wire.leave()

    async def _connect(self, wire: Wire) -> ConnectionProblem | None:
        """Connect; return the problem if the broker refuses."""
        try:
            await self._unless_stopped(wire.__aenter__())
        except aiomqtt.MqttError as error:
            return _refused(self._config, error)
        except ValueError:  # includes UnicodeError, for a malformed host name
            return ConnectionProblem(f"{self._config.where}: no such host", "check mqtt.host")
        return None

    async def _unless_stopped(self, work: Coroutine[Any, Any, T]) -> T:
        """Await work, but not beyond `stop`. Raises WireError when stopped."""
        task, stop = asyncio.ensure_future(work), asyncio.ensure_future(self._stop.wait())
        try:
            await asyncio.wait((task, stop), return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise WireError("stopped")
            return task.result()
        finally:
            task.cancel()
            stop.cancel()

    async def _serve(self, wire: Wire) -> ConnectionProblem:
        refused = await self._unless_stopped(self._begin(wire))
        if refused is not None:
            return refused
        self._denied.clear()
        self.up.set()
        self._say("", "")
        stop = asyncio.ensure_future(self._stop.wait())
        end = asyncio.ensure_future(wire.ended())
        try:
            await asyncio.wait((stop, end), return_when=asyncio.FIRST_COMPLETED)
            if not end.done():
                await self._farewell(wire)
                return ConnectionProblem("stopped", "")
            return _lost(self._config, self._name, end.result())
        finally:
            stop.cancel()
            end.cancel()

    async def _begin(self, wire: Wire) -> ConnectionProblem | None:
        """Subscribe and publish the online state; return the problem if the broker refuses."""
        if self._filters and max(await self._subscribed(wire)) >= DENIED:
            return ConnectionProblem(f"the broker denies reading {', '.join(self._filters)}", _ACL)
        if self._presence is not None and await self._present(wire, self._presence) >= DENIED:
            return ConnectionProblem(f"the broker denies writing {self._presence.topic}", _ACL)
        return None

    async def _present(self, wire: Wire, presence: Presence) -> int:
        """Publish the online state; return the reason code. Raises WireError on timeout."""
        try:
            async with asyncio.timeout(TIMEOUT):
                return await (await wire.send(presence.topic, presence.here, retain=True))
        except TimeoutError:
            raise WireError("no answer") from None

    async def _subscribed(self, wire: Wire) -> list[int]:
        """Subscribe; return the reason code of each filter."""
        if wire.five:
            options = SubscribeOptions(qos=1, retainAsPublished=self._as_published)
            codes = await wire.subscribe([(each, options) for each in self._filters])
        else:
            codes = await wire.subscribe([(each, 1) for each in self._filters])
        return [_number(code) for code in codes]

    async def _farewell(self, wire: Wire) -> None:
        with suppress(TimeoutError, WireError):
            async with asyncio.timeout(FAREWELL):
                if self._presence is not None:
                    sent = await wire.send(self._presence.topic, self._presence.gone, retain=True)
                    await sent

    @property
    def most(self) -> int:
        """Maximum packet size of the broker in bytes."""
        return PROTOCOL_PACKET if self._wire is None else self._wire.most

    async def send(
        self, topic: str, payload: bytes, *, retain: bool = False, with_: Properties | None = None
    ) -> asyncio.Future[int]:
        """See `Wire.send`. Raises WireError while there is no connection."""
        if self._wire is None:
            raise WireError("not connected")
        sent = await self._wire.send(topic, payload, retain=retain, with_=with_)
        sent.add_done_callback(partial(self._heed, topic))
        return sent

    def _heed(self, topic: str, sent: asyncio.Future[int]) -> None:
        """Report topics that the broker denies, and when it allows them again."""
        if sent.cancelled() or sent.exception() is not None or not self.up.is_set():
            return
        door, before = "/".join(topic.split("/")[:LEVELS]), len(self._denied)
        if DENIED <= sent.result() != TOO_LARGE:
            self._denied.add(door)
        else:
            self._denied.discard(door)
        if len(self._denied) != before:
            names = ", ".join(sorted(self._denied)[:3])
            self._say(*((f"the broker denies writing {names}", _ACL) if names else ("", "")))

    def drop(self, session: int) -> None:
        """Close the connection of a session, so that unacknowledged messages come again."""
        if self._wire is not None and session == self.session:
            self._wire.drop()

    def pause(self, on: bool) -> None:  # noqa: FBT001
        """Pause or resume reading."""
        if self._wire is not None:
            (self._wire.pause if on else self._wire.resume)()

    def ack(self, message: mqtt.MQTTMessage, session: int) -> None:
        """Acknowledge a message of a session."""
        if self._wire is not None and session == self.session:
            self._wire.ack(message.mid, message.qos)


_ALIVE = "check that the broker is running and reachable"
_ACL = "allow it in the broker's ACL (docs/operate/mqtt.md)"
_LOGIN = "check mqtt.user, mqtt.password_file and the broker's user accounts"

REASONS = {
    1: ("does not support this MQTT version", 'set version = "3.1.1" under [mqtt]'),
    2: ("rejects the client id", "change mqtt.client_id"),
    4: ("rejects user or password", _LOGIN),
    5: ("rejects user or password", _LOGIN),
    0x84: ("does not support this MQTT version", 'set version = "3.1.1" under [mqtt]'),
    0x85: ("rejects the client id", "change mqtt.client_id"),
    0x86: ("rejects user or password", _LOGIN),
    0x87: ("does not authorize this client", _LOGIN),
    0x8A: ("has banned this client", _LOGIN),
}
"""Reason codes of a refused connection; codes below 6 are those of MQTT 3.1.1."""


def _number(code: object) -> int:
    """Return a reason code of either MQTT version as a number."""
    found = getattr(code, "value", code)
    return found if isinstance(found, int) else 0


def _unread(config: MqttConfig, error: Exception) -> ConnectionProblem:
    """Return the problem for a file that cannot be read."""
    name = getattr(error, "filename", None)
    why = getattr(error, "strerror", None) or getattr(error, "reason", None) or "cannot be read"
    if isinstance(error, UnicodeDecodeError):
        name, why = config.password_file, "is not UTF-8"
    what = f"{name}: {why}" if name else f"cannot use mqtt.ca, cert and key: {why}"
    return ConnectionProblem(what, "run sia serve --check")


def _refused(config: MqttConfig, error: aiomqtt.MqttError) -> ConnectionProblem:
    """Return the problem for a refused connection."""
    where = config.where
    if isinstance(error, aiomqtt.MqttCodeError):
        code = _number(error.rc)
        what, mend = REASONS.get(code, (f"refuses ({error})", "see the broker's log"))
        return ConnectionProblem(f"{where}: {what}", mend)
    cause = error.__context__
    if isinstance(cause, ssl.SSLCertVerificationError):
        why = cause.verify_message
        return ConnectionProblem(
            f"{where}: certificate verification failed ({why})",
            "set mqtt.ca to the issuing CA, and mqtt.host to a name in the certificate",
        )
    if isinstance(cause, ConnectionRefusedError):
        return ConnectionProblem(
            f"{where}: connection refused", "start the broker, or check mqtt.port"
        )
    if isinstance(cause, ssl.SSLError) or (config.tls and isinstance(cause, ConnectionError)):
        mend = "check that the port uses TLS, and that mqtt.cert is accepted"
        return ConnectionProblem(
            f"{where}: TLS failed ({getattr(cause, 'reason', '') or cause})", mend
        )
    if isinstance(cause, socket.gaierror):
        return ConnectionProblem(f"{where}: no such host", "check mqtt.host")
    why = getattr(cause, "strerror", None) or str(error) or type(error).__name__
    return ConnectionProblem(f"{where}: {why}", _ALIVE)


def _lost(config: MqttConfig, name: str, error: BaseException | None) -> ConnectionProblem:
    """Return the problem for a connection that was lost."""
    code = getattr(getattr(error, "rc", None), "value", None)
    if code == 0x8E:
        mend = "give each cluster its own mqtt.client_id; a standby shares the leader's"
        return ConnectionProblem(f"{config.where}: another client connected as {name!r}", mend)
    mend = f"{_ALIVE}, and that no other client connects as {name!r}"
    return ConnectionProblem(f"{config.where}: the connection was lost", mend)
