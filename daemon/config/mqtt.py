"""`[mqtt]` of `sia.toml`: the broker, and who the daemon is there."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta, Struct
from msgspec.structs import replace

PLAIN_PORT, TLS_PORT = 1883, 8883
"""As registered for MQTT."""

MAX_SECRET = 4096
"""Bytes of a password file: longer ones are no passwords."""

LOOPBACK = frozenset(("localhost", "127.0.0.1", "::1"))

Word = Annotated[str, Meta(max_length=200, pattern=r"^[^\u0000-\u001f\u007f]*(?!\n)$")]


class _Socket(ssl.SSLSocket):
    """Is closed where nobody would: after a handshake that failed, paho lets go of it."""

    def do_handshake(self, block: bool = False) -> None:  # noqa: FBT001, FBT002  as there
        try:
            super().do_handshake(block)
        except BaseException:
            self.close()
            raise


class MqttConfig(Struct, frozen=True):
    """Where the broker is and how it is spoken to. Times are seconds."""

    cluster: Annotated[
        str, Meta(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*(?!\n)$", max_length=100)
    ] = "main"
    """Of several daemons on one broker, each has another."""
    broker: Literal["external", "embedded"] = "external"
    """`embedded` is a broker in the daemon itself, for a first try, on the loopback alone."""
    host: Annotated[Word, Meta(min_length=1)] = "127.0.0.1"
    port: Annotated[int, Meta(ge=1, le=65535)] | None = None
    version: Literal["5", "3.1.1"] = "5"
    """Of MQTT. 3.1.1 knows no response topics and no limit on what comes at a time."""
    user: Word = ""
    password_file: str = ""
    tls: bool = False
    ca: str = ""
    """Certificates of those who may vouch for the broker; the system's if none are named."""
    cert: str = ""
    """Ours, for brokers that know their clients by it."""
    key: str = ""
    keepalive: Annotated[int, Meta(ge=5, le=3600)] = 15
    client_id: Word = ""

    @property
    def where(self) -> str:
        """For people."""
        return f"{self.host}:{self.door}"

    @property
    def door(self) -> int:
        """The port."""
        return self.port or (TLS_PORT if self.tls else PLAIN_PORT)

    @property
    def name(self) -> str:
        """Who we are to the broker: it keeps what comes for us under that."""
        return self.client_id or f"sia-{self.cluster}"

    @property
    def protocol(self) -> Literal["5", "3.1.1"]:
        """The version that is spoken; the embedded broker knows no other than the older one."""
        return "3.1.1" if self.broker == "embedded" else self.version

    def under(self, base: Path) -> MqttConfig:
        """With files that are named relative to a folder."""
        names = ("password_file", "ca", "cert", "key")
        found = {name: getattr(self, name) for name in names}
        return replace(self, **{name: str(base / path) for name, path in found.items() if path})

    def password(self) -> str | None:
        """What the file says now. Raises OSError and ValueError."""
        if not self.password_file:
            return None
        with Path(self.password_file).open("rb") as file:
            return file.read(MAX_SECRET).decode().rstrip("\r\n")

    def context(self) -> ssl.SSLContext | None:
        """What TLS is done with, as the files are now. Raises OSError."""
        if not self.tls:
            return None
        context = ssl.create_default_context(cafile=self.ca or None)
        context.sslsocket_class = _Socket
        if self.cert:
            context.load_cert_chain(self.cert, self.key or None)
        return context


def mqtt_problems(config: MqttConfig | None) -> Iterator[str]:
    """A line for each thing that is wrong."""
    if config is None:
        return
    if config.broker == "embedded":
        yield from _embedded(config)
        return
    try:
        config.host.encode("idna")
    except UnicodeError:
        yield f"mqtt.host: {config.host!r} is no name of a host; look for dots that are too many"
    near = config.host in LOOPBACK
    if not near and not config.tls:
        yield f"mqtt.tls: {config.host} is another machine; write tls = true"
    if not near and not config.user and not config.cert:
        yield f"mqtt.user: {config.host} is another machine; give user and password_file, or cert"
    if config.password_file and not config.user:
        yield "mqtt.user: is missing beside password_file; add it"
    for name in ("ca", "cert", "key"):
        if getattr(config, name) and not config.tls:
            yield f"mqtt.{name}: is for TLS, which is off; write tls = true"
    if config.key and not config.cert:
        yield "mqtt.cert: is missing beside key; add it"
    yield from _files(config)


def _files(config: MqttConfig) -> Iterator[str]:
    """What cannot be read of what is named."""
    unread = False
    for name in ("password_file", "ca", "cert", "key"):
        path = getattr(config, name)
        try:
            if path:
                Path(path).read_bytes()
        except OSError as error:
            unread = True
            yield f"mqtt.{name}: {path}: {error.strerror}; give a file that can be read"
    if unread:
        return
    try:
        config.context()
    except (OSError, ValueError) as error:
        why = getattr(error, "reason", "") or error
        yield f"mqtt.ca: ca, cert and key do not make a context ({why}); give PEM files that fit"
    try:
        config.password()
    except ValueError:
        yield f"mqtt.password_file: {config.password_file}: is no UTF-8; write the password alone"


def _embedded(config: MqttConfig) -> Iterator[str]:
    if config.host not in LOOPBACK:
        yield f"mqtt.host: is {config.host!r}; the embedded broker listens on 127.0.0.1 alone"
    if find_spec("amqtt") is None:
        yield "mqtt.broker: amqtt is missing; pip install 'sia-scheduler[broker]', or name a broker"
    for name in ("user", "password_file", "tls", "ca", "cert", "key"):
        if getattr(config, name):
            yield f"mqtt.{name}: the embedded broker asks for nothing; leave it out"
