"""Send one request to a receiver, and interpret the response."""

from __future__ import annotations

import os
import socket
import time
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from enum import Enum
from math import inf
from typing import NamedTuple

import aiohttp

from daemon.config.webhook_limits import LONGEST_WISH, MAX_ANSWER
from daemon.config.webhooks import WebhookConfig
from daemon.doors.webhooks.signature import Secrets
from daemon.runtime.trust import trusting
from sia import __version__

WAITS = (408, 425, 429)
"""4xx statuses that are temporary."""


class DeliveryVerdict(Enum):
    """Consequence of a response."""

    DELIVERED = "delivered"
    LATER = "later"
    REFUSED = "refused"
    GONE = "gone"


class PostResult(NamedTuple):
    """Result of one request. `wait`: Retry-After in seconds; `status` 0: no response."""

    verdict: DeliveryVerdict
    status: int = 0
    why: str = ""
    mend: str = ""
    wait: float = 0.0


class WebhookClient:
    """HTTP client for one receiver with at most two connections: deliveries and tests."""

    def __init__(self, config: WebhookConfig, secrets: Secrets) -> None:
        """Create the client. Raises UserError if the certificates cannot be read."""
        self._config, self._secrets = config, secrets
        self._tls = True if config.ca_file is None else trusting(config.ca_file)
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=2, ssl=self._tls),
                cookie_jar=aiohttp.DummyCookieJar(),
                trust_env=False,  # ignore proxy variables: the operator configured the URL
                auto_decompress=False,
                headers={"User-Agent": f"sia/{__version__}", "Content-Type": "application/json"},
            )
        return self._session

    async def send(self, body: bytes, delivery: str, within: float = inf) -> PostResult:
        """Send a body once, signed with the current time. Does not raise for receiver errors.

        The timeout is the smaller of `within` and the configured one, in seconds.
        """
        within = min(within, self._config.timeout)
        headers = {
            "X-Sia-Signature": self._secrets.header(body, int(time.time())),
            "X-Sia-Delivery": delivery,
        }
        try:
            async with self._open().post(
                self._config.url,
                data=body,
                headers=headers,
                allow_redirects=False,
                timeout=aiohttp.ClientTimeout(total=within),
            ) as answer:
                outcome = _judged(answer.status, answer.headers.get("Retry-After", ""))
                with suppress(aiohttp.ClientError, TimeoutError, OSError):
                    await answer.content.read(MAX_ANSWER)  # allows connection reuse
                return outcome
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            return _failed(error, within)


def _failed(error: Exception, within: float) -> PostResult:
    """Describe a failed request without the URL, which may contain a secret."""
    mend = "check that the receiver is running"
    if isinstance(error, TimeoutError):
        why = f"no answer within {within:g} s"
    elif isinstance(error, aiohttp.ClientConnectorCertificateError):
        reason = getattr(error.certificate_error, "verify_message", "") or "it does not match"
        why = f"certificate verification failed: {reason}"
        mend = "use a certificate for the receiver's name, or set ca_file to the issuing CA"
    elif isinstance(error, aiohttp.ClientSSLError):
        why, mend = "TLS handshake failed", "check that the receiver supports TLS 1.2 or newer"
    elif isinstance(error, aiohttp.ClientConnectorError):
        why = _unreached(error.os_error)
    elif isinstance(error, aiohttp.ServerDisconnectedError):
        why = "the receiver closed the connection without a response"
    else:
        why = f"no answer: {type(error).__name__}"
    return PostResult(DeliveryVerdict.LATER, 0, why, mend)


def _unreached(error: OSError) -> str:
    """Describe a connection error by its system error; asyncio's text names only addresses."""
    if isinstance(error, socket.gaierror):
        return "host name not found"
    return os.strerror(error.errno).lower() if error.errno else "the host cannot be reached"


def _judged(status: int, wish: str) -> PostResult:
    """Interpret a status."""
    if 200 <= status < 300:
        return PostResult(DeliveryVerdict.DELIVERED, status)
    why = f"the receiver answers {status}"
    if status == 410:
        mend = "remove the webhook, change its url, or run: sia webhook retry"
        return PostResult(DeliveryVerdict.GONE, status, f"{why} (gone)", mend)
    if 300 <= status < 400:
        mend = "set url to the redirect's target"
        return PostResult(
            DeliveryVerdict.REFUSED, status, f"{why}; redirects are not followed", mend
        )
    if 400 <= status < 500 and status not in WAITS:
        mend = "see the receiver's log; refused deliveries are in: sia webhook dead"
        return PostResult(DeliveryVerdict.REFUSED, status, why, mend)
    return PostResult(DeliveryVerdict.LATER, status, why, "check the receiver", seconds_of(wish))


def seconds_of(wish: str) -> float:
    """Parse a Retry-After header to seconds, within bounds; 0 if it cannot be parsed."""
    if wish.isascii() and wish.isdigit():
        wanted = float(wish[:10])
    else:
        try:
            wanted = (parsedate_to_datetime(wish) - datetime.now(UTC)).total_seconds()
        except (ValueError, TypeError, OverflowError):
            return 0.0
    return min(max(0.0, wanted), LONGEST_WISH)
