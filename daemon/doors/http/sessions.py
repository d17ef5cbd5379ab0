"""Sessions of browsers: sealed into their cookies, and kept nowhere.

A cookie carries the digest of the token that was typed in, how often that token's sessions had been
ended by then, until when it counts, and a seal that only the daemon can make. So it is looked up as
tokens are (revoked is revoked at once), lasts over a restart, and says nothing by which the token
could be found. It is sent to pages alone: the API takes tokens in a header, which no other site can
have a browser send.
"""

from __future__ import annotations

import hmac
import time
from typing import Final, NamedTuple

from aiohttp import web

UI = "/ui"
"""Below it are the pages."""

LASTS = 12 * 3600.0
"""Seconds that a session lasts: a working day; a cookie that was copied is worth no more."""

MOST = 500
"""Characters of a cookie of ours, at most; longer ones are nobody's."""


class Session(NamedTuple):
    """What a cookie of ours says."""

    digest: str
    """Of the token that was typed in."""
    life: int
    """How often all sessions of that token had been ended before."""


class Sessions:
    """Makes cookies, and believes those alone that it has made."""

    def __init__(self, token: str, cluster: str, *, secure: bool = False) -> None:
        """By the machine's own token: a new one ends all sessions. `secure`: by TLS alone."""
        key = _bytes(token)
        self._key: Final = hmac.digest(key, b"sia session 2", "sha256")
        self._forms: Final = hmac.digest(key, b"sia form", "sha256")
        # Of that prefix browsers take one by TLS alone: nobody without puts another in its place.
        self._name, self._secure = f"{'__Secure-' if secure else ''}sia_{cluster}", secure

    def begin(self, response: web.Response, session: Session) -> None:
        """Have a browser be known by this."""
        body = f"{session.digest}.{session.life}.{int(time.time() + LASTS)}"
        response.set_cookie(
            self._name, f"{body}.{self._seal(body)}", path=UI, httponly=True, samesite="Strict",
            secure=self._secure,
        )  # fmt: skip

    def end(self, response: web.Response) -> None:
        """Have it forget."""
        response.del_cookie(
            self._name, path=UI, httponly=True, samesite="Strict", secure=self._secure
        )

    def said(self, request: web.Request) -> str:
        """The cookie that came with a request, for pages; empty without one."""
        if not request.path.startswith(UI + "/"):
            return ""
        return request.cookies.get(self._name, "")[:MOST]

    def read(self, cookie: str) -> Session | None:
        """What a cookie of ours stands for; None where it is forged or over."""
        body, _, seal = cookie.rpartition(".")
        if not hmac.compare_digest(_bytes(seal), _bytes(self._seal(body))):
            return None
        digest, life, until = body.split(".")
        return Session(digest, int(life)) if time.time() < int(until) else None

    def form(self, request: web.Request) -> str:
        """What a form of this session carries, so that no other page can send it."""
        cookie = self.said(request)
        return hmac.digest(self._forms, _bytes(cookie), "sha256").hex() if cookie else ""

    def is_ours(self, request: web.Request, form: str) -> bool:
        """Whether a form that came with a session was on a page of ours."""
        wanted = self.form(request)
        return bool(wanted) and hmac.compare_digest(_bytes(form), _bytes(wanted))

    def _seal(self, body: str) -> str:
        return hmac.digest(self._key, _bytes(body), "sha256").hex()


def _bytes(text: str) -> bytes:
    """Headers may hold bytes that are no text."""
    return text.encode("utf-8", "surrogateescape")
