"""The daemon's TLS certificate: checked at the start, reloaded when its files change."""

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
"""Seconds before expiry at which the daemon starts to warn; operators may be on holiday."""

LOOK_EVERY = 10.0
"""Seconds between two checks of the files; SIGHUP triggers a check at once."""

OTHERS = 0o027
"""Mode bits that the key file must not have: any access by others, and write and execute access by
the group."""

DAY = 86400.0

EXPIRED, NOT_YET = 10, 9
"""OpenSSL's verification error codes."""


class CertificateHealth(NamedTuple):
    """The health of a certificate: the reason and the fix; both are empty if it is well."""

    why: str = ""
    mend: str = ""


class Certificate:
    """The daemon's server certificate.

    Attributes:
        context: TLS context of the server; open connections keep the certificate they started with.
        expires: Expiry, in seconds since the epoch.
    """

    def __init__(self, config: TlsConfig) -> None:
        """Load the certificate. Raises UserError if this fails or clients would reject it."""
        self._config = config
        self._seen = self._files()
        self.expires = checked(config)
        self.context = _context(config)
        self._failed = CertificateHealth()

    def look(self, *, again: bool = False) -> CertificateHealth:
        """Reload the files if they changed, or if `again`. After a failure the old ones stay."""
        files = self._files()
        if again or files != self._seen:
            self._seen = files
            try:
                self.expires = checked(self._config)
                _load(self.context, self._config)
                self._failed = CertificateHealth()
            except UserError as error:
                what, _, mend = error.format_message().rpartition("; ")
                self._failed = CertificateHealth(
                    f"cannot reload, the previous certificate stays in use: {what}", mend
                )
        return self._failed if self._failed.why else self._age()

    def _age(self) -> CertificateHealth:
        left = self.expires - time.time()
        where = self._config.certificate
        if left <= 0:
            return CertificateHealth(f"{where}: has expired", "renew the certificate")
        if left <= WARN_BEFORE:
            return CertificateHealth(
                f"{where}: expires in {left / DAY:.0f} days", "renew the certificate"
            )
        return CertificateHealth()

    def _files(self) -> tuple[object, ...]:
        """Return values that change when one of the files is replaced."""
        config = self._config
        return tuple(_look_of(path) for path in (config.certificate, config.key, config.client_ca))


async def keep(certificate: Certificate, say: Callable[[str, str], None]) -> None:
    """Check the certificate every `LOOK_EVERY` s and at SIGHUP, and report its health to `say`."""
    news, loop = asyncio.Event(), asyncio.get_running_loop()
    with suppress(ValueError, RuntimeError):  # not the main thread
        loop.add_signal_handler(signal.SIGHUP, news.set)
    try:
        while True:
            say(*certificate.look(again=news.is_set()))
            news.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_EVERY):
                    await news.wait()
    finally:
        survive_hangup()


def survive_hangup() -> None:
    """Ignore SIGHUP from now on, so that a reload signal does not stop the daemon."""
    with suppress(ValueError, RuntimeError):  # not the main thread
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, int)


def certificate_of(config: TlsConfig) -> Certificate | None:
    """Load the configured certificate; None if TLS is off. Raises UserError."""
    return Certificate(config) if config.on else None


def tls_problems(tls: TlsConfig, listen: Address) -> Iterator[str]:
    """Yield one line for each problem of `[tls]`."""
    if bool(tls.certificate) is not bool(tls.key):
        lacks, has = ("key", "certificate") if tls.certificate else ("certificate", "key")
        yield f"tls.{lacks}: is missing, but tls.{has} is set; set both"
    elif tls.on:
        try:
            checked(tls)
        except UserError as error:
            yield f"tls: {error.format_message()}"
    elif tls.client_ca:
        yield "tls.client_ca: has no effect without TLS; set tls.certificate and tls.key"
    if not (listen.loopback or tls.certificate or tls.terminated_by_proxy):
        yield (
            f"daemon.listen: other machines can reach {listen.host} without encryption; "
            "set tls.certificate and tls.key, or, behind a proxy, tls.terminated_by_proxy = true"
        )


def checked(config: TlsConfig) -> float:
    """Check the certificate and return its expiry. Raises UserError with the fix."""
    _check_key(Path(config.key))
    return _not_after(_context(config), config)


def _check_key(path: Path) -> None:
    try:
        mode = path.stat().st_mode
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}; set tls.key to an existing file") from None
    if mode & OTHERS:
        raise UserError(f"{path}: other users can read or change the key; run chmod 600 {path}")


def _context(config: TlsConfig) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    _load(context, config)
    return context


def _load(context: ssl.SSLContext, config: TlsConfig) -> None:
    """Load the certificate, key and client authorities into a context. Raises UserError."""
    asked = []

    def no_password() -> str:
        """Record that OpenSSL asked for a password, and keep it from prompting on a terminal."""
        asked.append(config.key)
        return ""

    try:
        context.load_cert_chain(config.certificate, config.key, password=no_password)
    except ssl.SSLError as error:
        if asked:
            mend = f"remove it (openssl pkey -in {config.key} -out NEW), or use another key"
            raise UserError(f"{config.key}: the key has a password; {mend}") from None
        raise UserError(_unusable(config, error)) from None
    except OSError as error:
        path = error.filename or config.certificate
        raise UserError(f"{path}: {error.strerror}; name a readable file") from None
    if not config.client_ca:
        return
    try:
        context.load_verify_locations(config.client_ca)
    except OSError as error:
        why = "contains no certificates" if isinstance(error, ssl.SSLError) else error.strerror
        raise UserError(f"{config.client_ca}: {why}; set tls.client_ca to a PEM file") from None
    context.verify_mode = ssl.CERT_REQUIRED


def _unusable(config: TlsConfig, error: ssl.SSLError) -> str:
    if error.reason == "KEY_VALUES_MISMATCH":
        what = f"{config.certificate}: the certificate does not match the key {config.key}"
        return f"{what}; set tls.certificate and tls.key to a matching pair"
    what = f"{config.certificate}, {config.key}: not a certificate and a key in PEM format"
    return f"{what}; name files that begin with -----BEGIN"


def _not_after(server: ssl.SSLContext, config: TlsConfig) -> float:
    """Return the expiry, from an in-memory handshake with a client that trusts the certificate.

    Raises UserError if that client would reject the certificate.
    """
    server.verify_mode = ssl.CERT_NONE  # this client has no certificate
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    client.load_verify_locations(config.certificate)
    try:
        shown = _handshake(server, client)
    except ssl.SSLCertVerificationError as error:
        raise UserError(f"{config.certificate}: {_refused(error)}") from None
    except ssl.SSLError as error:
        why = (error.reason or "the handshake failed").lower().replace("_", " ")
        mend = "use another certificate"
        raise UserError(f"{config.certificate}: clients would reject it: {why}; {mend}") from None
    return ssl.cert_time_to_seconds(str(shown["notAfter"]))


def _refused(error: ssl.SSLCertVerificationError) -> str:
    if error.verify_code == EXPIRED:
        return "has expired; renew the certificate"
    if error.verify_code == NOT_YET:
        return "is not valid yet; wait, or check this machine's clock"
    return f"clients would reject it: {error.verify_message}; use another certificate"


def _handshake(server: ssl.SSLContext, client: ssl.SSLContext) -> dict[str, object]:
    """Run a handshake in memory and return the server's certificate as the client sees it."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    asks = client.wrap_bio(to_client, to_server)
    answers = server.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(4):  # more rounds than a handshake needs
        for side in (asks, answers):
            with suppress(ssl.SSLWantReadError):
                side.do_handshake()
    return dict(asks.getpeercert() or {})


def _look_of(path: str) -> object:
    try:
        found = os.stat(path) if path else None  # noqa: PTH116  an empty path is not set
    except OSError:
        return None
    return found and (found.st_mtime_ns, found.st_size, found.st_ino)
