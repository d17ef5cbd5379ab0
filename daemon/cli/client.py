"""HTTP client of the daemon for the command line: address, token, TLS, retries, failover."""

from __future__ import annotations

import os
import re
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from urllib.parse import SplitResult, quote, urlsplit

import msgspec
from click import ClickException

from daemon.config.config import Address
from daemon.config.read import find_config, peek
from daemon.runtime.token_file import checked_token, read_token
from daemon.runtime.trust import trusting
from sia.console.errors import UserError

T = TypeVar("T")

TIMEOUT = 30.0
"""Socket timeout of a request in seconds; a batch of 10,000 jobs takes a few seconds."""

SILENCE = 60.0
"""Seconds without a byte, heartbeats included, after which `follow` reconnects."""

PATIENCE = 60.0
"""Seconds for which `patiently` retries: a restart of the daemon takes less."""

RETRY = 1.0
"""Seconds between two attempts of `patiently`."""

CUT_OFF = {
    "http": "check SIA_URL: if the server uses TLS, write https://",
    "https": "if the server asks for a client certificate, set SIA_CERT_FILE and SIA_KEY_FILE",
}
"""Fix by URL scheme when the server closes the connection without an answer."""

STANDS_BY = "stand-by"
"""Title of a standby's refusal. A standby carries out nothing, so another daemon can be asked."""

AWAY = HTTPStatus.SERVICE_UNAVAILABLE

DENIED, UNREACHABLE = 1, 3
"""Exit codes: the daemon refused the request; no daemon answered."""

OTHER_HOST, OTHER_ADDRESS = 62, 64
"""OpenSSL's error codes for a certificate of another host name or address."""


class _Mend(msgspec.Struct):
    """The fix of one wrong value in a refusal."""

    mend: str


class DeniedError(ClickException):
    """The daemon refused the request."""

    exit_code = DENIED

    def __init__(self, status: int, details: Mapping[str, Any]) -> None:
        """Take the message from the daemon's problem details: what is wrong and how to fix it."""
        self.status = status
        mend = "" if _says_all(details) else details.get("mend", "")
        super().__init__(f"{details.get('detail') or status}{'; ' if mend else ''}{mend}")


def _says_all(details: Mapping[str, Any]) -> bool:
    """Return whether `detail` has the fix of each wrong value, so that nobody must look it up.

    False for errors of another form, which a proxy in front of the daemon may answer.
    """
    try:
        errors = msgspec.convert(details.get("errors", ()), tuple[_Mend, ...])
    except msgspec.ValidationError:
        return False
    said = str(details.get("detail", ""))
    return bool(errors) and all(error.mend and error.mend in said for error in errors)


class UnreachableError(ClickException):
    """No daemon answers at the address."""

    exit_code = UNREACHABLE


class NotLeaderError(Exception):
    """No daemon answers at an address, or a standby does; the client tries the next address."""

    def __init__(self, error: ClickException) -> None:
        """Keep the error to raise if no other address answers."""
        super().__init__(str(error))
        self.error = error


class Endpoint(NamedTuple):
    """Addresses of the daemon and its standbys, the token, and certificate files (PEM)."""

    urls: tuple[str, ...]
    token: str
    ca: str = ""
    """CA certificates to trust in addition to the system's."""
    certificate: str = ""
    """Client certificate, for a daemon that requires one; `key` is its private key."""
    key: str = ""


def find(config: Path | None) -> Endpoint:
    """Return the endpoint from SIA_URL, SIA_TOKEN and related variables, else from sia.toml.

    Raises UserError if no token is found.
    """
    settings = peek(find_config(config))
    named = os.environ.get("SIA_URL")
    if named is None and not settings.listen.port:
        raise UserError(
            "daemon.listen: port 0 lets the daemon choose one; set SIA_URL to the address that "
            "sia serve prints"
        )
    named = settings.listen.from_here.url if named is None else named
    urls = tuple(checked_url(url.strip().rstrip("/")) for url in named.split(","))
    get = os.environ.get
    own = "" if "SIA_URL" in os.environ else settings.tls.certificate
    ca, certificate = get("SIA_CA_FILE", own), get("SIA_CERT_FILE", "")
    return Endpoint(
        urls, _token(settings.token_file), ca, certificate, get("SIA_KEY_FILE", certificate)
    )


def checked_url(url: str) -> str:
    """Return the URL. Raises UserError if it is malformed or would send the token unencrypted."""
    try:
        parts = urlsplit(url)
        host = parts.hostname if parts.port != 0 else None
    except ValueError:
        host = None
    if host is None or parts.scheme not in ("http", "https"):
        raise UserError(f"SIA_URL: {url!r} is not an address; write one like http://127.0.0.1:8642")
    insecure = parts.scheme == "http" and not Address(host, 0).loopback
    if insecure and "SIA_INSECURE" not in os.environ:
        raise UserError(
            f"SIA_URL: {url} would send the token unencrypted; write https://, or set "
            "SIA_INSECURE=1 if something else encrypts the connection"
        )
    return url


def _token(usual: Path) -> str:
    """Return the token of SIA_TOKEN, else of the file in SIA_TOKEN_FILE, else of `usual`."""
    token = os.environ.get("SIA_TOKEN", "").strip()
    if token:
        return checked_token(token, "SIA_TOKEN", "set it to a token, or unset it")
    named = os.environ.get("SIA_TOKEN_FILE")
    if named is None:
        return read_token(usual)
    return read_token(Path(named), "start the daemon first, or name its token with SIA_TOKEN_FILE")


class Client:
    """Client of one daemon: reuses its connection, and fails over to the endpoint's other URLs."""

    def __init__(self, where: Endpoint) -> None:
        """Store the endpoint; the first request connects."""
        self._where, self._url = where, where.urls[0]
        self._connected: HTTPConnection | None = None
        self._tls: ssl.SSLContext | None = None

    @property
    def _at(self) -> SplitResult:
        return urlsplit(self._url)

    def _each(self, ask: Callable[[], T]) -> T:
        """Call `ask` for each URL until one leads. Raises the last error if none does."""
        urls, first = self._where.urls, self._where.urls.index(self._url)
        for i in range(len(urls)):
            self._url = urls[(first + i) % len(urls)]
            try:
                return ask()
            except NotLeaderError as error:
                self.close()
                last = error.error
        self._url = urls[first]
        raise last

    def close(self) -> None:
        """Close the connection."""
        if self._connected is not None:
            self._connected.close()
        self._connected = None

    def get(self, path: str, **query: Any) -> Any:
        """Return the JSON at a path. Like all requests, raises DeniedError and UnreachableError."""
        pairs = [f"{key}={quote(str(value))}" for key, value in query.items() if value is not None]
        return self.ask("GET", f"{path}?{'&'.join(pairs)}" if pairs else path)

    def patiently(self, ask: Callable[[], T]) -> T:
        """Return the result of `ask`, retrying for PATIENCE seconds while the daemon restarts."""
        until = time.monotonic() + PATIENCE
        while True:
            try:
                return ask()
            except UnreachableError:
                if time.monotonic() >= until:
                    raise
            except DeniedError as error:
                if error.status != AWAY:
                    raise
                if time.monotonic() >= until:
                    raise UnreachableError(str(error)) from None
            time.sleep(RETRY)

    def ask(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> Any:
        """Send a request and return the JSON of the answer, or None if the answer is empty."""
        data = body if isinstance(body, bytes | None) else msgspec.json.encode(body)
        response, text = self._send(method, path, data, headers or {})
        try:
            value = msgspec.json.decode(text) if text else None
        except msgspec.DecodeError:
            raise UnreachableError(
                f"{self._url}: the answer is not from sia serve; check SIA_URL"
            ) from None
        if response.status >= 400:
            raise DeniedError(response.status, value if isinstance(value, dict) else {})
        return value

    def piece(self, path: str) -> tuple[bytes, str | None]:
        """Return the bytes at a path, and the path of the next piece (None after the last)."""
        response, body = self._send("GET", path, None, {})
        if response.status >= 400:
            raise DeniedError(response.status, _problem(body))
        link = re.match(r'<([^>]*)>; rel="next"', response.getheader("Link", ""))
        return body, None if link is None else link[1]

    def _send(
        self, method: str, path: str, data: bytes | None, headers: Mapping[str, str]
    ) -> tuple[HTTPResponse, bytes]:
        return self._each(lambda: self._send_there(method, path, data, headers))

    def _send_there(
        self, method: str, path: str, data: bytes | None, headers: Mapping[str, str]
    ) -> tuple[HTTPResponse, bytes]:
        reused = self._connected is not None
        try:
            response = self._request(method, path, data, headers, TIMEOUT)
            body = response.read()
        except ConnectionRefusedError as error:  # the request was not sent
            raise NotLeaderError(self._unreachable(error)) from None
        except (OSError, HTTPException) as error:
            self.close()
            if reused and method == "GET":  # the daemon closed an idle connection
                return self._send_there(method, path, data, headers)
            if method == "GET":
                raise NotLeaderError(self._unreachable(error)) from None
            raise self._unreachable(error) from None
        if response.status == AWAY:
            problem = _problem(body)
            if (
                method == "GET" or problem.get("title") == STANDS_BY
            ):  # otherwise the leader may have carried it out
                raise NotLeaderError(DeniedError(response.status, problem))
        return response, body

    def _request(
        self,
        method: str,
        path: str,
        data: bytes | None,
        headers: Mapping[str, str],
        timeout: float,
    ) -> HTTPResponse:
        connection = self._connected
        if connection is None:
            connection = self._connected = self._connection(timeout)
        sent = {"Authorization": f"Bearer {self._where.token}", **headers}
        if data is not None:
            sent["Content-Type"] = "application/json"
        connection.request(method, self._at.path + path, data, sent)
        return connection.getresponse()

    def _connection(self, timeout: float) -> HTTPConnection:
        host, port = self._at.hostname, self._at.port
        assert host is not None, "checked_url requires a host"
        if self._at.scheme == "http":
            return HTTPConnection(host, port, timeout=timeout)
        if self._tls is None:
            self._tls = _tls_of(self._where)
        return HTTPSConnection(host, port, timeout=timeout, context=self._tls)

    def _unreachable(self, error: BaseException) -> UnreachableError:
        if isinstance(error, ssl.SSLError):
            return UnreachableError(f"{self._url}: {_distrust(error)}")
        why = getattr(error, "strerror", None) or str(error) or type(error).__name__
        mend = "start sia serve, or set SIA_URL"
        if isinstance(
            error, HTTPException | ConnectionResetError
        ):  # a server answered, but not HTTP
            mend = CUT_OFF[self._at.scheme]
        return UnreachableError(f"{self._url}: {why.lower()}; {mend}")

    def follow(self, after: int | None) -> Iterator[dict[str, Any]]:
        """Yield events as they happen, without end; resume after a broken connection."""
        begun = False
        while True:
            headers = {"Accept": "text/event-stream"}
            if after is not None:
                headers["Last-Event-ID"] = str(after)
            self.close()
            try:
                response = self._request("GET", "/v1/events", None, headers, SILENCE)
                if response.status >= 400 and not (begun and response.status == AWAY):
                    raise DeniedError(response.status, _problem(response.read()))
                begun = True
                for number, event in _events(response):
                    after = number
                    if event is not None:
                        yield event
            except (OSError, HTTPException):
                pass
            self.close()
            ready = partial(self.get, "/readyz")
            if begun:
                self.patiently(ready)
            else:
                ready()  # raises if no daemon answers or none leads


def _problem(body: bytes) -> dict[str, Any]:
    """Return the problem details of a refusal; empty if the body is not from sia serve."""
    try:
        value = msgspec.json.decode(body) if body else {}
    except msgspec.DecodeError:
        return {}
    return value if isinstance(value, dict) else {}


def _events(response: HTTPResponse) -> Iterator[tuple[int, dict[str, Any] | None]]:
    """Yield (number, None) for each id of the stream and (number, event) for each event."""
    number = 0
    for line in response:
        if line.startswith(b"id: "):
            number = int(line.removeprefix(b"id: "))
            yield number, None
        elif line.startswith(b"data: "):
            yield number, msgspec.json.decode(line.removeprefix(b"data: "))


def at(name: str) -> str:
    """Quote a name as a part of a path. Raises UserError for a name that cannot exist."""
    if name in ("", ".", ".."):
        raise UserError(
            f"{name!r} is not a valid name; sia jobs, sia pools and sia nodes list names"
        )
    return quote(name, safe="")


def _tls_of(where: Endpoint) -> ssl.SSLContext:
    """Return a context with the system's and the endpoint's certificates. Raises UserError."""
    context = trusting(where.ca, system=True, mend="set SIA_CA_FILE to a PEM file")
    if where.certificate:
        try:
            context.load_cert_chain(where.certificate, where.key, password=lambda: "")
        except OSError as error:
            mend = "set SIA_CERT_FILE and SIA_KEY_FILE to PEM files without a password"
            raise UserError(f"{where.certificate}: {_unusable(error)}; {mend}") from None
    return context


def _unusable(error: OSError) -> str:
    if not isinstance(error, ssl.SSLError):
        return error.strerror or str(error)
    if error.reason == "KEY_VALUES_MISMATCH":
        return "does not belong to the key in SIA_KEY_FILE"
    return "contains no certificates"


def _distrust(error: ssl.SSLError) -> str:
    """Describe why the TLS handshake failed, and the fix."""
    if isinstance(error, ssl.SSLCertVerificationError):
        if error.verify_code in (OTHER_HOST, OTHER_ADDRESS):
            what = error.verify_message.rstrip(".").replace("Hostname mismatch, c", "c")
            return f"{what[:1].lower()}{what[1:]}; set SIA_URL to a name in the certificate"
        return (
            f"the server's certificate is not trusted: {error.verify_message}; "
            "set SIA_CA_FILE to the certificate of its issuer"
        )
    reason = (error.reason or str(error)).lower().replace("_", " ")
    if error.reason in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE"):
        return "the server does not use TLS; write http:// in SIA_URL"
    if "certificate required" in reason or "handshake failure" in reason:
        return "the server requires a client certificate; set SIA_CERT_FILE and SIA_KEY_FILE"
    return f"TLS handshake failed: {reason}; check SIA_URL and the daemon's certificate"
