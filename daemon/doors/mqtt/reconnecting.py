"""A connection that comes back: exponential waits, full jitter, words for what is wrong."""

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
"""Takes why it is not well, and the mend; two empty ones where it is."""


LEVELS = 6
"""Of a topic, that say whose it is and what for: answers differ in those that follow."""


class ConnectionProblem(NamedTuple):
    """Why there is no connection, and the mend."""

    why: str
    mend: str


class Presence(NamedTuple):
    """A retained topic that says whether we are there."""

    topic: str
    here: bytes
    gone: bytes


class Link:
    """One client of a broker, that subscribes to the same whenever it is connected.

    Attributes:
        up: Set while connected and subscribed.
        session: Grows by one with each connection.
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
        """Be this client, as long as `may` says so.

        `as_published` (MQTT 5): whether a message that is news, and to be retained, says so too.
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
        """Be connected as far as it can be, until `stop`."""
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
            most = min(BACK_OFF_MOST, BACK_OFF * 2 ** min(tries, 16))  # more is no float
            await self._pause(SystemRandom().uniform(0, most))

    def stop(self) -> None:
        """Say farewell and end `run`."""
        self._stop.set()

    async def _pause(self, seconds: float) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._stop.wait(), seconds)

    async def _once(self) -> ConnectionProblem:
        """One connection, from its beginning to its end."""
        config = self._config
        try:
            will = None
            if self._presence is not None:
                will = aiomqtt.Will(self._presence.topic, self._presence.gone, 1, retain=True)
            wire = Wire(config, self._name, will, self._receive, self._may)
        except (OSError, ValueError) as error:
            return _unread(config, error)
        self.session += 1
        self._wire = wire  # what comes at once, of a session that goes on, is of this one
        try:
            return await self._connect(wire) or await self._serve(wire)
        except (aiomqtt.MqttError, WireError) as error:
            return ConnectionProblem(f"{config.where}: {error}", _ALIVE)
        finally:
            self.up.clear()
            self._wire = None
            await wire.leave()

    async def _connect(self, wire: Wire) -> ConnectionProblem | None:
        """Why nobody let us in, if so."""
        try:
            await self._unless_stopped(wire.__aenter__())
        except aiomqtt.MqttError as error:
            return _refused(self._config, error)
        except ValueError:  # UnicodeError among them: what no name of a host may look like
            return ConnectionProblem(f"{self._config.where}: no such host", "look at mqtt.host")
        return None

    async def _unless_stopped(self, work: Coroutine[Any, Any, T]) -> T:
        """What comes of it; a broker that hangs holds up nobody who stops. Raises WireError."""
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
        """Subscribe, and say that we are there: why the broker does not let us, if so."""
        if self._filters and max(await self._subscribed(wire)) >= DENIED:
            return ConnectionProblem(
                f"the broker lets us not read {', '.join(self._filters)}", _ACL
            )
        if self._presence is not None and await self._present(wire, self._presence) >= DENIED:
            return ConnectionProblem(f"the broker lets us not write {self._presence.topic}", _ACL)
        return None

    async def _present(self, wire: Wire, presence: Presence) -> int:
        """What the broker says of it. Raises WireError where it says nothing."""
        try:
            async with asyncio.timeout(TIMEOUT):
                return await (await wire.send(presence.topic, presence.here, retain=True))
        except TimeoutError:
            raise WireError("no answer") from None

    async def _subscribed(self, wire: Wire) -> list[int]:
        """What the broker says of each filter."""
        if wire.five:
            options = SubscribeOptions(qos=1, retainAsPublished=self._as_published)
            said = await wire.subscribe([(each, options) for each in self._filters])
        else:
            said = await wire.subscribe([(each, 1) for each in self._filters])
        return [_number(code) for code in said]

    async def _farewell(self, wire: Wire) -> None:
        with suppress(TimeoutError, WireError):
            async with asyncio.timeout(FAREWELL):
                if self._presence is not None:
                    sent = await wire.send(self._presence.topic, self._presence.gone, retain=True)
                    await sent

    @property
    def most(self) -> int:
        """Bytes of a packet that the broker takes; while there is none, any."""
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
        """Say what the broker does not let us write, and that it does so again."""
        if sent.cancelled() or sent.exception() is not None or not self.up.is_set():
            return
        door, before = "/".join(topic.split("/")[:LEVELS]), len(self._denied)
        if DENIED <= sent.result() != TOO_LARGE:
            self._denied.add(door)
        else:
            self._denied.discard(door)
        if len(self._denied) != before:
            names = ", ".join(sorted(self._denied)[:3])
            self._say(*((f"the broker lets us not write {names}", _ACL) if names else ("", "")))

    def drop(self, session: int) -> None:
        """End that connection: what was not acknowledged comes again in the next one."""
        if self._wire is not None and session == self.session:
            self._wire.drop()

    def pause(self, on: bool) -> None:  # noqa: FBT001
        """Read nothing more for now, or read on."""
        if self._wire is not None:
            (self._wire.pause if on else self._wire.resume)()

    def ack(self, message: mqtt.MQTTMessage, session: int) -> None:
        """A message that came in that session needs not come again."""
        if self._wire is not None and session == self.session:
            self._wire.ack(message.mid, message.qos)


_ALIVE = "look whether the broker lives and answers"
_ACL = "allow it in the broker's ACL (docs/mqtt.md)"
_LOGIN = "look at mqtt.user and mqtt.password_file, and at who may log in at the broker"

REASONS = {
    1: ("speaks no such version of MQTT", 'write version = "3.1.1" under [mqtt]'),
    2: ("takes no such client id", "give another mqtt.client_id"),
    4: ("refuses user or password", _LOGIN),
    5: ("refuses user or password", _LOGIN),
    0x84: ("speaks no such version of MQTT", 'write version = "3.1.1" under [mqtt]'),
    0x85: ("takes no such client id", "give another mqtt.client_id"),
    0x86: ("refuses user or password", _LOGIN),
    0x87: ("does not let us in", _LOGIN),
    0x8A: ("has banned us", _LOGIN),
}
"""What a broker answers to who comes, by reason code; below 6 by MQTT 3.1.1."""


def _number(code: object) -> int:
    """A reason, of either version of MQTT."""
    found = getattr(code, "value", code)
    return found if isinstance(found, int) else 0


def _unread(config: MqttConfig, error: Exception) -> ConnectionProblem:
    """A file of ours."""
    name = getattr(error, "filename", None)
    why = getattr(error, "strerror", None) or getattr(error, "reason", None) or "cannot be read"
    if isinstance(error, UnicodeDecodeError):
        name, why = config.password_file, "is no UTF-8"
    what = f"{name}: {why}" if name else f"ca, cert and key make no context: {why}"
    return ConnectionProblem(what, "see: sia serve --check")


def _refused(config: MqttConfig, error: aiomqtt.MqttError) -> ConnectionProblem:
    """Why nobody let us in."""
    where = config.where
    if isinstance(error, aiomqtt.MqttCodeError):
        code = _number(error.rc)
        what, mend = REASONS.get(code, (f"refuses ({error})", "look into the broker's log"))
        return ConnectionProblem(f"{where}: {what}", mend)
    cause = error.__context__
    if isinstance(cause, ssl.SSLCertVerificationError):
        why = cause.verify_message
        return ConnectionProblem(
            f"{where}: its certificate does not match ({why})",
            "name who vouches for it in mqtt.ca, and the broker as in its certificate in mqtt.host",
        )
    if isinstance(cause, ConnectionRefusedError):
        return ConnectionProblem(
            f"{where}: nobody listens", "start the broker, or look at mqtt.port"
        )
    if isinstance(cause, ssl.SSLError) or (config.tls and isinstance(cause, ConnectionError)):
        mend = "look whether that port speaks TLS, and whether it wants another mqtt.cert"
        return ConnectionProblem(f"{where}: no TLS ({getattr(cause, 'reason', '') or cause})", mend)
    if isinstance(cause, socket.gaierror):
        return ConnectionProblem(f"{where}: no such host", "look at mqtt.host")
    why = getattr(cause, "strerror", None) or str(error) or type(error).__name__
    return ConnectionProblem(f"{where}: {why}", _ALIVE)


def _lost(config: MqttConfig, name: str, error: BaseException | None) -> ConnectionProblem:
    """Why a connection ended."""
    code = getattr(getattr(error, "rc", None), "value", None)
    if code == 0x8E:
        mend = "give each cluster another mqtt.client_id; its stand-by has the same"
        return ConnectionProblem(f"{config.where}: another client came as {name!r}", mend)
    mend = f"{_ALIVE}, and that nobody else comes as client {name!r}"
    return ConnectionProblem(f"{config.where}: the connection is gone", mend)
