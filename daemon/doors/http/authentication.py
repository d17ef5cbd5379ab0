"""Who comes in: whoever has a token, and so often."""

from __future__ import annotations

import hmac
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from aiohttp import web

from daemon.doors.http.sessions import Session, Sessions
from daemon.model.access import MACHINE, Principal
from daemon.model.book import TokenRecord
from daemon.model.limits import MAX_TOKENS
from daemon.runtime.rate_limit import TokenBucket, TokenBuckets
from daemon.runtime.token_file import cluster_of, digest_of
from daemon.wire.limits import (
    ADDRESSES,
    BURST,
    RATE,
    WRONG_AT_ONCE,
    WRONG_BURST,
    WRONG_EACH,
    WRONG_RATE,
)
from daemon.wire.problems import ProblemError

if TYPE_CHECKING:
    from daemon.service.service import Service

SEND = "send Authorization: Bearer and a token of this daemon; see: sia token create"


class Credentials(NamedTuple):
    """What somebody comes with: the digest of a token, or why it is none."""

    digest: str = ""
    why: str = ""
    token: str = ""
    """The token itself, where that is what was sent."""


class TokenAuth:
    """Knows tokens by their digests, and lets those who have one in as often as they may.

    Attributes:
        sessions: Of browsers, whose cookies count for pages alone.
    """

    def __init__(self, service: Service, token: str, cluster: str, sessions: Sessions) -> None:
        """Know the machine's token; the book has the others."""
        self._service, self._cluster = service, cluster
        self.sessions = sessions
        self._machine = digest_of(token)
        self._right = TokenBuckets(RATE, BURST, MAX_TOKENS + 1)
        self._wrong = TokenBucket(WRONG_RATE, WRONG_BURST)
        self._wrong_of = TokenBuckets(WRONG_EACH, WRONG_AT_ONCE, ADDRESSES)

    def admit(self, request: web.Request) -> Principal:
        """Whoever asks. Raises ProblemError for those who may not come in."""
        shown = self._shown(request)
        who = self._owner(shown)
        if who is None:
            self.knock(request)
            raise self._refusal(shown)
        return who

    def knock(self, request: web.Request) -> None:
        """Count a wrong token of the address that asks. Raises ProblemError after too many.

        Who types one in is counted before anything is read of it, whatever it will be.
        """
        if wait := self._wrong_of.take(request.remote or ""):
            raise too_often(wait)

    def enter(self, token: str) -> Session:
        """A session for a token that was typed in, if it counts. Raises ProblemError."""
        shown = _as_token(token)
        if self._owner(shown) is None:
            raise self._refusal(shown)
        return Session(shown.digest, self._life(shown.digest) or 0)

    def _owner(self, shown: Credentials) -> Principal | None:
        """Who has that token, if it is one. Raises ProblemError where they come too often."""
        who = self._known(shown.digest) if shown.digest else None
        if who is not None and (wait := self._right.take(who.name)):
            raise too_often(wait)
        return who

    def _refusal(self, shown: Credentials) -> ProblemError:
        """What is said to a wrong token."""
        if wait := self._wrong.take():
            return too_often(wait)
        return ProblemError(
            401, "no valid token", shown.why or self._why(shown), SEND,
            headers={"WWW-Authenticate": "Bearer"},
        )  # fmt: skip

    def _shown(self, request: web.Request) -> Credentials:
        """A header goes before a cookie: who sends one means it."""
        said = request.headers.get("Authorization", "")
        cookie = "" if said else self.sessions.said(request)
        if cookie:
            session = self.sessions.read(cookie)
            if session is None or self._life(session.digest) not in (None, session.life):
                return Credentials(why="the session is over")
            return Credentials(session.digest)
        kind, _, token = said.partition(" ")
        if token and kind.lower() != "bearer":
            return Credentials(why="the token does not come as Bearer")
        return _as_token(token)

    def _known(self, digest: str) -> Principal | None:
        """Whose token has this digest. What is looked up tells nothing of what is secret."""
        if hmac.compare_digest(digest, self._machine):
            return MACHINE
        record = self._counts(digest)
        return None if record is None else who_of(record)

    def _counts(self, digest: str) -> TokenRecord | None:
        """The token that was issued with this digest, as long as it counts."""
        record = self._service.book.tokens.get(digest)
        if record is None or record.over(self._service.clock.now()):
            return None
        return record

    def _life(self, digest: str) -> int | None:
        """How often all sessions of a token were ended; None of one that there is not."""
        book = self._service.book
        if hmac.compare_digest(digest, self._machine):
            return book.signed_out
        record = book.tokens.get(digest)
        return None if record is None else record.signed_out

    def lasting(self, request: web.Request) -> Callable[[], bool]:
        """Says whether who came in some time ago would do so now. O(1)."""
        return lambda: self._known(self._shown(request).digest) is not None

    def _why(self, shown: Credentials) -> str:
        """Why it is none, as far as its bearer may know."""
        record = self._service.book.tokens.get(shown.digest)
        if record is not None:
            return f"the token {record.name} has expired"
        other = cluster_of(shown.token)
        if other is not None and other != self._cluster:
            return f"the token is for cluster {other!r}, and this is {self._cluster!r}"
        return "the token is not the daemon's, or was revoked"


def _as_token(token: str) -> Credentials:
    return (
        Credentials(digest_of(token), token=token)
        if token
        else Credentials(why="the token is missing")
    )


def who_of(record: TokenRecord) -> Principal:
    """Whoever has that token."""
    return Principal(record.name, record.role, frozenset(record.pools))


def too_often(wait: float) -> ProblemError:
    """What comes more often than it may, and may again in so many seconds."""
    seconds = max(1, round(wait))
    return ProblemError(
        429,
        "too many requests",
        "requests come faster than the limit",
        f"wait {seconds} s, or send batches",
        headers={"Retry-After": str(seconds)},
    )
