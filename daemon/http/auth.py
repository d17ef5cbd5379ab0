"""Who may: one token in a file of its own, and how often."""

from __future__ import annotations

import hmac
import os
import secrets
import time
from pathlib import Path

from aiohttp import web

from daemon.http.limits import BURST, RATE, WRONG_BURST, WRONG_RATE
from daemon.http.problems import ProblemError
from replay.errors import UserError

TOKEN_BYTES = 32
"""Nobody guesses 256 bits."""

LEAST_TOKEN = 16
"""Characters of a token that somebody else wrote into the file: fewer could be guessed."""

OPEN = frozenset(("/healthz", "/readyz"))
"""What is said to everybody: they tell nothing but that the daemon lives."""


def make_token(path: Path) -> str:
    """The token in a file, which is made at the first start, for its owner's eyes alone.

    Raises UserError where the file cannot be read or made, or others can read it.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        made = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return read_token(path)
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}; give a token_file that can be made") from None
    with os.fdopen(made, "w", encoding="ascii") as file:
        file.write(secrets.token_urlsafe(TOKEN_BYTES) + "\n")
        file.flush()
        os.fsync(file.fileno())
    return read_token(path)


def read_token(path: Path) -> str:
    """The token in a file. Raises UserError where it cannot be read, is none, or is no secret."""
    try:
        token = path.read_text("ascii").strip()
        mode = path.stat().st_mode
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "is no token"
        raise UserError(f"{path}: {why}; start the daemon first, or set SIA_TOKEN_FILE") from None
    if mode & 0o077:
        raise UserError(f"{path}: others can read the token; chmod 600 {path}")
    if len(token) < LEAST_TOKEN or not token.isprintable() or " " in token:
        raise UserError(f"{path}: holds no token; remove it and start the daemon again")
    return token


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
