"""Who may come in: whoever has the token, and so often."""

from __future__ import annotations

import hmac
import time

from aiohttp import web

from daemon.http.limits import BURST, RATE, WRONG_BURST, WRONG_RATE
from daemon.http.problems import ProblemError

OPEN = frozenset(("/healthz", "/readyz"))
"""What is said to everybody: they tell nothing but that the daemon lives."""


class Bucket:
    """So many a second, and so many at once."""

    def __init__(self, rate: float, burst: float) -> None:
        """Begin full."""
        self._rate, self._burst, self._left = rate, burst, burst
        self._last = time.monotonic()

    def take(self) -> float:
        """0 where one more may be, otherwise the seconds until it may. O(1)."""
        now = time.monotonic()
        self._left = min(self._burst, self._left + (now - self._last) * self._rate)
        self._last = now
        if self._left < 1.0:
            return (1.0 - self._left) / self._rate
        self._left -= 1.0
        return 0.0


class Gate:
    """Lets those in who have the token, as often as they may."""

    def __init__(self, token: str) -> None:
        """Know the token."""
        self._expected = f"Bearer {token}".encode()
        self._right = Bucket(RATE, BURST)
        self._wrong = Bucket(WRONG_RATE, WRONG_BURST)

    def admit(self, request: web.Request) -> None:
        """Raises ProblemError for those who may not."""
        said = request.headers.get("Authorization", "").encode("utf-8", "surrogateescape")
        if hmac.compare_digest(said, self._expected):
            if wait := self._right.take():
                raise _too_often(wait)
            return
        if request.path in OPEN:
            return
        if wait := self._wrong.take():
            raise _too_often(wait)
        raise ProblemError(
            401,
            "no valid token",
            "the token is missing" if not said else "the token is not the daemon's",
            "send Authorization: Bearer and the token of the daemon's token_file",
            headers={"WWW-Authenticate": "Bearer"},
        )


def _too_often(wait: float) -> ProblemError:
    seconds = max(1, round(wait))
    return ProblemError(
        429,
        "too many requests",
        "requests come faster than the limit",
        f"wait {seconds} s, or send batches",
        headers={"Retry-After": str(seconds)},
    )
