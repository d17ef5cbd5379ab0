"""`[mqtt]` of `sia.toml`: the broker, and the daemon's credentials for it."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta, Struct
from msgspec.structs import replace

from sia.wording import install_extra

PLAIN_PORT, TLS_PORT = 1883, 8883
"""Ports that IANA has assigned to MQTT."""

MAX_SECRET = 4096
"""Maximum bytes of a password file that the daemon reads; no password is longer."""

LOOPBACK = frozenset(("localhost", "127.0.0.1", "::1"))

Word = Annotated[str, Meta(max_length=200, pattern=r"^[^\u0000-\u001f\u007f]*(?!\n)$")]


class _Socket(ssl.SSLSocket):
    """A TLS socket that closes itself after a failed handshake, because paho does not close it."""

    def do_handshake(self, block: bool = False) -> None:  # noqa: FBT001, FBT002  the signature of the base class
        try:
            super().do_handshake(block)
        except BaseException:
            self.close()
            raise


class MqttConfig(Struct, frozen=True):
    """Address, protocol and credentials of the broker. Times are seconds."""

    cluster: Annotated[
        str, Meta(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*(?!\n)$", max_length=100)
    ] = "main"
    """Name of this daemon on the broker; each daemon of a broker needs its own."""
    broker: Literal["external", "embedded"] = "external"
    """`embedded` runs a broker inside the daemon, for trials; it listens on loopback only."""
    host: Annotated[Word, Meta(min_length=1)] = "127.0.0.1"
    port: Annotated[int, Meta(ge=1, le=65535)] | None = None
    version: Literal["5", "3.1.1"] = "5"
    """MQTT version. 3.1.1 has neither response topics nor a receive maximum."""
    user: Word = ""
    password_file: str = ""
    tls: bool = False
    ca: str = ""
    """PEM file of the authorities that sign the broker's certificate; default: the system's."""
    cert: str = ""
    """The daemon's client certificate, for brokers that authenticate clients by certificate."""
    key: str = ""
    keepalive: Annotated[int, Meta(ge=5, le=3600)] = 15
    client_id: Word = ""

    @property
    def where(self) -> str:
        """Return `HOST:PORT` for messages."""
        return f"{self.host}:{self.door}"

    @property
    def door(self) -> int:
        """Return the configured port, or the standard one."""
        return self.port or (TLS_PORT if self.tls else PLAIN_PORT)

    @property
    def name(self) -> str:
        """Return the MQTT client id; the broker keeps the daemon's session under this id."""
        return self.client_id or f"sia-{self.cluster}"

    @property
    def protocol(self) -> Literal["5", "3.1.1"]:
        """Return the MQTT version in use; the embedded broker supports only 3.1.1."""
        return "3.1.1" if self.broker == "embedded" else self.version

    def under(self, base: Path) -> MqttConfig:
        """Return a copy whose relative paths are resolved against the folder `base`."""
        names = ("password_file", "ca", "cert", "key")
        found = {name: getattr(self, name) for name in names}
        return replace(self, **{name: str(base / path) for name, path in found.items() if path})

    def password(self) -> str | None:
        """Read the password file. Raises OSError, and ValueError if the text is not UTF-8."""
        if not self.password_file:
            return None
        with Path(self.password_file).open("rb") as file:
            return file.read(MAX_SECRET).decode().rstrip("\r\n")

    def context(self) -> ssl.SSLContext | None:
        """Create a TLS context from the current files; None without TLS. Raises OSError."""
        if not self.tls:
            return None
        context = ssl.create_default_context(cafile=self.ca or None)
        context.sslsocket_class = _Socket
        if self.cert:
            context.load_cert_chain(self.cert, self.key or None)
        return context


def mqtt_problems(config: MqttConfig | None) -> Iterator[str]:
    """Yield one line for each problem of `[mqtt]`."""
    if config is None:
        return
    if config.broker == "embedded":
        yield from _embedded(config)
        return
    try:
        config.host.encode("idna")
    except UnicodeError:
        yield f"mqtt.host: {config.host!r} is not a host name; check it for extra dots"
    near = config.host in LOOPBACK
    if not near and not config.tls:
        yield f"mqtt.tls: {config.host} is another machine; set tls = true"
    if not near and not config.user and not config.cert:
        yield f"mqtt.user: {config.host} is another machine; set user and password_file, or cert"
    if config.password_file and not config.user:
        yield "mqtt.user: password_file needs a user; add it"
    for name in ("ca", "cert", "key"):
        if getattr(config, name) and not config.tls:
            yield f"mqtt.{name}: has no effect without TLS; set tls = true"
    if config.key and not config.cert:
        yield "mqtt.cert: key needs a certificate; add it"
    yield from _files(config)


def _files(config: MqttConfig) -> Iterator[str]:
    """Report files that cannot be read or used."""
    unread = False
    for name in ("password_file", "ca", "cert", "key"):
        path = getattr(config, name)
        try:
            if path:
                Path(path).read_bytes()
        except OSError as error:
            unread = True
            yield f"mqtt.{name}: {path}: {error.strerror}; name a readable file"
    if unread:
        return
    try:
        config.context()
    except (OSError, ValueError) as error:
        why = getattr(error, "reason", "") or error
        yield f"mqtt.ca: cannot load ca, cert and key ({why}); name PEM files that match"
    try:
        config.password()
    except ValueError:
        yield f"mqtt.password_file: {config.password_file}: not UTF-8; write only the password"


def _embedded(config: MqttConfig) -> Iterator[str]:
    if config.host not in LOOPBACK:
        yield f"mqtt.host: the embedded broker cannot listen on {config.host!r}; use 127.0.0.1"
    if find_spec("amqtt") is None:
        yield (
            "mqtt.broker: the embedded broker needs amqtt, which is not installed; "
            f"{install_extra('broker')}, or use an external broker"
        )
    for name in ("user", "password_file", "tls", "ca", "cert", "key"):
        if getattr(config, name):
            yield f"mqtt.{name}: the embedded broker has neither users nor TLS; remove the key"
