"""One request to a receiver, and what its answer means."""

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
"""Answers of 4xx that mean later, and not never."""


class DeliveryVerdict(Enum):
    """What an answer means for what was sent."""

    DELIVERED = "delivered"
    LATER = "later"
    REFUSED = "refused"
    GONE = "gone"


class PostResult(NamedTuple):
    """Of one request. `wait` is what the receiver asks for, in seconds; `status` 0 is no answer."""

    verdict: DeliveryVerdict
    status: int = 0
    why: str = ""
    mend: str = ""
    wait: float = 0.0


class WebhookClient:
    """A way to one receiver, over a connection that is kept while it works, two for a trial."""

    def __init__(self, config: WebhookConfig, secrets: Secrets) -> None:
        """Nothing is sent yet. Raises UserError where the certificates cannot be read."""
        self._config, self._secrets = config, secrets
        self._tls = True if config.ca_file is None else trusting(config.ca_file)
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        """Let go of the connection."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=2, ssl=self._tls),
                cookie_jar=aiohttp.DummyCookieJar(),
                trust_env=False,  # the operator said where it goes
                auto_decompress=False,
                headers={"User-Agent": f"sia/{__version__}", "Content-Type": "application/json"},
            )
        return self._session

    async def send(self, body: bytes, delivery: str, within: float = inf) -> PostResult:
        """Send it once; the signature is of now. Raises nothing that a receiver can cause.

        Waits for the answer so many seconds, or as long as the configuration says.
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
                    await answer.content.read(MAX_ANSWER)  # so that its connection is used again
                return outcome
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            return _failed(error, within)


def _failed(error: Exception, within: float) -> PostResult:
    """No answer; said without the URL, which errors repeat and which may hold a secret."""
    mend = "see that the receiver is up"
    if isinstance(error, TimeoutError):
        why = f"no answer within {within:g} s"
    elif isinstance(error, aiohttp.ClientConnectorCertificateError):
        reason = getattr(error.certificate_error, "verify_message", "") or "it does not match"
        why = f"its certificate is refused: {reason}"
        mend = "give it one for its name, or name who signed it in ca_file"
    elif isinstance(error, aiohttp.ClientSSLError):
        why, mend = "no TLS is to be had with it", "see that it takes TLS 1.2 or newer there"
    elif isinstance(error, aiohttp.ClientConnectorError):
        why = _unreached(error.os_error)
    elif isinstance(error, aiohttp.ServerDisconnectedError):
        why = "it ended the connection without an answer"
    else:
        why = f"no answer: {type(error).__name__}"
    return PostResult(DeliveryVerdict.LATER, 0, why, mend)


def _unreached(error: OSError) -> str:
    """Why nobody was there, as the system says it: asyncio names addresses instead."""
    if isinstance(error, socket.gaierror):
        return "its name is not known"
    return os.strerror(error.errno).lower() if error.errno else "it cannot be reached"


def _judged(status: int, wish: str) -> PostResult:
    """What a status means."""
    if 200 <= status < 300:
        return PostResult(DeliveryVerdict.DELIVERED, status)
    why = f"it answers {status}"
    if status == 410:
        mend = "leave the webhook out, give another url, or: sia webhook retry"
        return PostResult(DeliveryVerdict.GONE, status, f"{why}: it wants no more", mend)
    if 300 <= status < 400:
        mend = "give the url to which it leads"
        return PostResult(
            DeliveryVerdict.REFUSED, status, f"{why}, and redirects are not followed", mend
        )
    if 400 <= status < 500 and status not in WAITS:
        mend = "see why it refuses; what is given up is in: sia webhook dead"
        return PostResult(DeliveryVerdict.REFUSED, status, why, mend)
    return PostResult(
        DeliveryVerdict.LATER, status, why, "see that the receiver is well", seconds_of(wish)
    )


def seconds_of(wish: str) -> float:
    """What a Retry-After asks for, within bounds; 0 where it says nothing."""
    if wish.isascii() and wish.isdigit():
        wanted = float(wish[:10])
    else:
        try:
            wanted = (parsedate_to_datetime(wish) - datetime.now(UTC)).total_seconds()
        except (ValueError, TypeError, OverflowError):
            return 0.0
    return min(max(0.0, wanted), LONGEST_WISH)
