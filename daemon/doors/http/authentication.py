"""Authenticate requests by bearer token or session cookie, and limit their rate."""

from __future__ import annotations

import hmac
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

from aiohttp import web

from daemon.model.access import MACHINE, Principal, Role
from daemon.model.book import TokenRecord
from daemon.model.limits import MAX_TOKENS
from daemon.runtime.job_token import JobTokens
from daemon.runtime.rate_limit import TokenBucket, TokenBuckets
from daemon.runtime.token_file import cluster_of, digest_of
from daemon.wire.limits import (
    ADDRESSES,
    BURST,
    JOB_BURST,
    JOB_RATE,
    JOBS_WATCHED,
    RATE,
    WRONG_AT_ONCE,
    WRONG_BURST,
    WRONG_EACH,
    WRONG_RATE,
)
from daemon.wire.problems import ProblemError

if TYPE_CHECKING:
    from daemon.service.service import Service

UI = "/ui"
"""Path prefix of the pages."""

LASTS = 12 * 3600.0
"""Lifetime of a session in seconds: a working day, which limits the use of a stolen cookie."""

MOST = 500
"""Maximum characters of a session cookie; longer cookies are ignored."""


class Session(NamedTuple):
    """Contents of a session cookie."""

    digest: str
    """Digest of the token that was typed in."""
    life: int
    """How often the sessions of this token had been ended before this session began."""


class Sessions:
    """Creates and verifies session cookies."""

    def __init__(self, token: str, cluster: str, *, secure: bool = False) -> None:
        """Derive the keys from the machine's token: a new one ends all sessions."""
        key = _bytes(token)
        self._key: Final = hmac.digest(key, b"sia session 2", "sha256")
        self._forms: Final = hmac.digest(key, b"sia form", "sha256")
        # Browsers accept this prefix only over TLS, so a plain-HTTP page cannot replace the cookie.
        self._name, self._secure = f"{'__Secure-' if secure else ''}sia_{cluster}", secure

    def begin(self, response: web.Response, session: Session) -> None:
        """Set the session cookie."""
        body = f"{session.digest}.{session.life}.{int(time.time() + LASTS)}"
        response.set_cookie(
            self._name, f"{body}.{self._seal(body)}", path=UI, httponly=True, samesite="Strict",
            secure=self._secure,
        )  # fmt: skip

    def end(self, response: web.Response) -> None:
        """Delete the session cookie."""
        response.del_cookie(
            self._name, path=UI, httponly=True, samesite="Strict", secure=self._secure
        )

    def cookie_of(self, request: web.Request) -> str:
        """Return the session cookie of a request for a page, or ""."""
        if not request.path.startswith(UI + "/"):
            return ""
        return request.cookies.get(self._name, "")[:MOST]

    def read(self, cookie: str) -> Session | None:
        """Verify a cookie; return None if it is forged or has expired."""
        body, _, seal = cookie.rpartition(".")
        if not hmac.compare_digest(_bytes(seal), _bytes(self._seal(body))):
            return None
        digest, life, until = body.split(".")
        return Session(digest, int(life)) if time.time() < int(until) else None

    def form(self, request: web.Request) -> str:
        """Return the CSRF token for the forms of this session, or "" without a session."""
        cookie = self.cookie_of(request)
        return hmac.digest(self._forms, _bytes(cookie), "sha256").hex() if cookie else ""

    def is_ours(self, request: web.Request, form: str) -> bool:
        """Return whether a form carries the CSRF token of its session."""
        wanted = self.form(request)
        return bool(wanted) and hmac.compare_digest(_bytes(form), _bytes(wanted))

    def _seal(self, body: str) -> str:
        return hmac.digest(self._key, _bytes(body), "sha256").hex()


def _bytes(text: str) -> bytes:
    """Encode text from headers, which may hold bytes that are not UTF-8."""
    return text.encode("utf-8", "surrogateescape")


SEND = "send Authorization: Bearer and a token of this daemon; see: sia token create"


class Credentials(NamedTuple):
    """Credentials of a request: the digest of a token, or the reason why there is none."""

    digest: str = ""
    why: str = ""
    token: str = ""
    """The token itself, if it was sent in a header or form."""


class TokenAuth:
    """Look up tokens by digest, and limit the rate of requests per token and per address.

    Attributes:
        sessions: Sessions of browsers; their cookies are valid only for pages.
    """

    def __init__(self, service: Service, token: str, cluster: str, sessions: Sessions) -> None:
        """Accept the machine's own token and the tokens issued through the engine."""
        self._service, self._cluster = service, cluster
        self.sessions = sessions
        self._machine, self._jobs = digest_of(token), JobTokens(token)
        self._reports = TokenBuckets(JOB_RATE, JOB_BURST, JOBS_WATCHED)
        self._right = TokenBuckets(RATE, BURST, MAX_TOKENS + 1)
        self._wrong = TokenBucket(WRONG_RATE, WRONG_BURST)
        self._wrong_of = TokenBuckets(WRONG_EACH, WRONG_AT_ONCE, ADDRESSES)

    def admit(self, request: web.Request) -> Principal:
        """Return the principal of a request. Raises ProblemError if it is not authenticated."""
        shown = self._shown(request)
        who = self._job(shown.token) or self._owner(shown)
        if who is None:
            self.count_wrong_token(request)
            raise self._refusal(shown)
        return who

    def count_wrong_token(self, request: web.Request) -> None:
        """Count a wrong token of the request's address. Raises ProblemError above the limit.

        The sign-in form calls this before it reads the body, whether or not the token is valid.
        """
        if wait := self._wrong_of.take(request.remote or ""):
            raise too_often(wait)

    def enter(self, token: str) -> Session:
        """Return a session for a token typed in. Raises ProblemError if the token is not valid."""
        shown = _as_token(token)
        if self._owner(shown) is None:
            raise self._refusal(shown)
        return Session(shown.digest, self._life(shown.digest) or 0)

    def _owner(self, shown: Credentials) -> Principal | None:
        """Return the principal of valid credentials, else None.

        Raises ProblemError above the rate limit.
        """
        who = self._known(shown.digest) if shown.digest else None
        if who is not None and (wait := self._right.take(who.name)):
            raise too_often(wait)
        return who

    def _job(self, token: str) -> Principal | None:
        """Return the principal of a job's token, else None.

        Raises ProblemError above the rate limit.
        """
        attempt = self._jobs.read(token)
        if attempt is None:
            return None
        if wait := self._reports.take(attempt[0]):
            raise too_often(wait)
        pool = self._service.book.pool_of(attempt[0])
        pools = frozenset(() if pool is None else (pool,))
        return Principal(f"job {attempt[0]}", Role.JOB, pools, attempt)

    def _refusal(self, shown: Credentials) -> ProblemError:
        """Return the problem for credentials that are not valid."""
        if wait := self._wrong.take():
            return too_often(wait)
        return ProblemError(
            401, "no valid token", shown.why or self._why(shown), SEND,
            headers={"WWW-Authenticate": "Bearer"},
        )  # fmt: skip

    def _shown(self, request: web.Request) -> Credentials:
        """Read the credentials of a request. A header has precedence over a cookie."""
        header = request.headers.get("Authorization", "")
        cookie = "" if header else self.sessions.cookie_of(request)
        if cookie:
            session = self.sessions.read(cookie)
            if session is None or self._life(session.digest) not in (None, session.life):
                return Credentials(why="the session has ended")
            return Credentials(session.digest)
        kind, _, token = header.partition(" ")
        if token and kind.lower() != "bearer":
            return Credentials(why="the Authorization header is not of type Bearer")
        return _as_token(token)

    def _known(self, digest: str) -> Principal | None:
        """Return the principal for a digest. Timing reveals nothing: only digests are compared."""
        if hmac.compare_digest(digest, self._machine):
            return MACHINE
        record = self._counts(digest)
        return None if record is None else who_of(record)

    def _counts(self, digest: str) -> TokenRecord | None:
        """Return the issued token with this digest, or None if it is unknown or has expired."""
        record = self._service.book.tokens.get(digest)
        if record is None or record.over(self._service.clock.now()):
            return None
        return record

    def _life(self, digest: str) -> int | None:
        """Return how often the sessions of a token were ended; None for an unknown token."""
        book = self._service.book
        if hmac.compare_digest(digest, self._machine):
            return book.signed_out
        record = book.tokens.get(digest)
        return None if record is None else record.signed_out

    def validity_check(self, request: web.Request) -> Callable[[], bool]:
        """Return a function that tells whether the request's credentials are still valid. O(1)."""
        return lambda: self._known(self._shown(request).digest) is not None

    def _why(self, shown: Credentials) -> str:
        """Return why credentials are not valid, as far as their sender may know."""
        record = self._service.book.tokens.get(shown.digest)
        if record is not None:
            return f"the token {record.name} has expired"
        other = cluster_of(shown.token)
        if other is not None and other != self._cluster:
            return f"the token is for cluster {other!r}; this is cluster {self._cluster!r}"
        return "the token is unknown or was revoked"


def _as_token(token: str) -> Credentials:
    return (
        Credentials(digest_of(token), token=token)
        if token
        else Credentials(why="the token is missing")
    )


def who_of(record: TokenRecord) -> Principal:
    """Return the principal of a token record."""
    return Principal(record.name, record.role, frozenset(record.pools))


def too_often(wait: float) -> ProblemError:
    """Return the problem for a rate limit; `wait` is the number of seconds until a retry."""
    seconds = max(1, round(wait))
    return ProblemError(
        429,
        "too many requests",
        "the request rate is above the limit",
        f"wait {seconds} s, or send batches",
        headers={"Retry-After": str(seconds)},
    )
