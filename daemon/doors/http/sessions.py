"""Browser sessions, stored only in signed cookies.

A cookie carries the digest of the token typed in, how often that token's sessions had been ended,
the expiry time, and an HMAC. The daemon looks the digest up like a token, so revocation takes
effect at once and sessions survive a restart. The token cannot be derived from the cookie. Only
pages accept cookies. The API requires a token in a header, which another site cannot make a browser
send.
"""

from __future__ import annotations

import hmac
import time
from typing import Final, NamedTuple

from aiohttp import web

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
    """How often all sessions of that token had been ended when this session began."""


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

    def said(self, request: web.Request) -> str:
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
        cookie = self.said(request)
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
