"""The daemon's certificate: checked before it is shown, loaded anew when its files change."""

from __future__ import annotations

import asyncio
import os
import signal
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from daemon.config.access import TlsConfig
from daemon.config.config import Address
from sia.console.errors import UserError

WARN_BEFORE = 14 * 86400.0
"""Seconds before its end at which a certificate is said to need a new one: time for people who are
on holiday."""

LOOK_EVERY = 10.0
"""Seconds between two looks at the files; SIGHUP looks at once."""

OTHERS = 0o027
"""Rights on the key's file that others than its owner and its group must not have, nor the group
to write."""

DAY = 86400.0

EXPIRED, NOT_YET = 10, 9
"""OpenSSL's numbers for what is wrong with a certificate."""


class CertificateHealth(NamedTuple):
    """What is wrong with a certificate, and the mend; nothing if nothing is."""

    why: str = ""
    mend: str = ""


class Certificate:
    """What is shown to clients.

    Attributes:
        context: For whoever listens; connections that are open keep what they began with.
        expires: When it ends, in seconds since the epoch.
    """

    def __init__(self, config: TlsConfig) -> None:
        """Load it. Raises UserError where it cannot be, or clients would refuse it."""
        self._config = config
        self._seen = self._files()
        self.expires = checked(config)
        self.context = _context(config)
        self._failed = CertificateHealth()

    def look(self, *, again: bool = False) -> CertificateHealth:
        """Load what has changed, or all `again`; what cannot be loaded leaves what was before."""
        files = self._files()
        if again or files != self._seen:
            self._seen = files
            try:
                self.expires = checked(self._config)
                _load(self.context, self._config)
                self._failed = CertificateHealth()
            except UserError as error:
                what, _, mend = error.format_message().rpartition("; ")
                self._failed = CertificateHealth(f"the one of before is shown: {what}", mend)
        return self._failed if self._failed.why else self._age()

    def _age(self) -> CertificateHealth:
        left = self.expires - time.time()
        where = self._config.certificate
        if left <= 0:
            return CertificateHealth(f"{where}: has expired", "have another one issued")
        if left <= WARN_BEFORE:
            return CertificateHealth(
                f"{where}: expires in {left / DAY:.0f} days", "have another one issued"
            )
        return CertificateHealth()

    def _files(self) -> tuple[object, ...]:
        """What tells that a file is another one."""
        config = self._config
        return tuple(_look_of(path) for path in (config.certificate, config.key, config.client_ca))


async def keep(certificate: Certificate, say: Callable[[str, str], None]) -> None:
    """Look at a certificate now and then, and at once at SIGHUP, and say how it is."""
    news, loop = asyncio.Event(), asyncio.get_running_loop()
    with suppress(ValueError, RuntimeError):  # not the main thread
        loop.add_signal_handler(signal.SIGHUP, news.set)
    try:
        while True:
            say(*certificate.look(again=news.is_set()))
            news.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(news.wait(), LOOK_EVERY)
    finally:
        survive_hangup()


def survive_hangup() -> None:
    """SIGHUP ends nothing from now on, whether or not there is a certificate to look at."""
    with suppress(ValueError, RuntimeError):  # not the main thread
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, int)


def certificate_of(config: TlsConfig) -> Certificate | None:
    """The one of a configuration; None where it has none. Raises UserError."""
    return Certificate(config) if config.on else None


def tls_problems(tls: TlsConfig, listen: Address) -> Iterator[str]:
    """A line for each thing that is wrong with how the daemon encrypts, or does not."""
    if bool(tls.certificate) is not bool(tls.key):
        lacks, has = ("key", "certificate") if tls.certificate else ("certificate", "key")
        yield f"tls.{lacks}: is missing beside tls.{has}; give both"
    elif tls.on:
        try:
            checked(tls)
        except UserError as error:
            yield f"tls: {error.format_message()}"
    elif tls.client_ca:
        yield "tls.client_ca: nobody is asked for one without tls.certificate; give that, and a key"
    if not (listen.loopback or tls.certificate or tls.terminated_by_proxy):
        yield (
            f"daemon.listen: {listen.host} can be reached from other machines, without encryption; "
            "give tls.certificate and tls.key, or, behind a proxy, tls.terminated_by_proxy = true"
        )


def checked(config: TlsConfig) -> float:
    """When the certificate ends. Raises UserError where it cannot be, with the mend."""
    _check_key(Path(config.key))
    return _not_after(_context(config), config)


def _check_key(path: Path) -> None:
    try:
        mode = path.stat().st_mode
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}; give tls.key a file that is there") from None
    if mode & OTHERS:
        raise UserError(f"{path}: others can read or change the key; chmod 600 {path}")


def _context(config: TlsConfig) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    _load(context, config)
    return context


def _load(context: ssl.SSLContext, config: TlsConfig) -> None:
    """Have it show the certificate. Raises UserError."""
    asked = []

    def no_password() -> str:
        """Nobody is asked on a terminal; OpenSSL does not say by itself that it wanted one."""
        asked.append(config.key)
        return ""

    try:
        context.load_cert_chain(config.certificate, config.key, password=no_password)
    except ssl.SSLError as error:
        if asked:
            mend = f"take it off (openssl pkey -in {config.key} -out NEW), or give another key"
            raise UserError(f"{config.key}: the key has a password; {mend}") from None
        raise UserError(_unusable(config, error)) from None
    except OSError as error:
        path = error.filename or config.certificate
        raise UserError(f"{path}: {error.strerror}; give a file that can be read") from None
    if not config.client_ca:
        return
    try:
        context.load_verify_locations(config.client_ca)
    except OSError as error:
        why = "contains no certificates" if isinstance(error, ssl.SSLError) else error.strerror
        raise UserError(f"{config.client_ca}: {why}; give tls.client_ca a PEM file") from None
    context.verify_mode = ssl.CERT_REQUIRED


def _unusable(config: TlsConfig, error: ssl.SSLError) -> str:
    if error.reason == "KEY_VALUES_MISMATCH":
        what = f"{config.certificate}: is not the certificate of the key {config.key}"
        return f"{what}; give tls.certificate and tls.key of one pair"
    what = f"{config.certificate}, {config.key}: are no certificate and key in PEM"
    return f"{what}; give files that begin with -----BEGIN"


def _not_after(server: ssl.SSLContext, config: TlsConfig) -> float:
    """When it ends: found by a handshake in memory with a client that trusts it.

    Raises UserError where such a client would refuse it.
    """
    server.verify_mode = ssl.CERT_NONE  # this client has none to show
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    client.load_verify_locations(config.certificate)
    try:
        shown = _handshake(server, client)
    except ssl.SSLCertVerificationError as error:
        raise UserError(f"{config.certificate}: {_refused(error)}") from None
    except ssl.SSLError as error:
        why = (error.reason or "it does not work").lower().replace("_", " ")
        mend = "have another one issued"
        raise UserError(f"{config.certificate}: clients would refuse it: {why}; {mend}") from None
    return ssl.cert_time_to_seconds(str(shown["notAfter"]))


def _refused(error: ssl.SSLCertVerificationError) -> str:
    if error.verify_code == EXPIRED:
        return "has expired; have another one issued"
    if error.verify_code == NOT_YET:
        return "is not valid yet; wait, or look at this machine's clock"
    return f"clients would refuse it: {error.verify_message}; have another one issued"


def _handshake(server: ssl.SSLContext, client: ssl.SSLContext) -> dict[str, object]:
    """What the client sees of the server."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    asks = client.wrap_bio(to_client, to_server)
    answers = server.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(4):  # more than any handshake takes
        for side in (asks, answers):
            with suppress(ssl.SSLWantReadError):
                side.do_handshake()
    return dict(asks.getpeercert() or {})


def _look_of(path: str) -> object:
    try:
        found = os.stat(path) if path else None  # noqa: PTH116  "" is none
    except OSError:
        return None
    return found and (found.st_mtime_ns, found.st_size, found.st_ino)
