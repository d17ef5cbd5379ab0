"""Tokens of jobs: with the token of its attempt, a job may report its progress and nothing else.

They are derived from the machine's own token, so that the daemon stores none. A new machine token
makes them invalid.
"""

from __future__ import annotations

import hmac
from typing import Final
from urllib.parse import quote, unquote

PREFIX = "sia-job_"
"""Prefix that distinguishes tokens of jobs from issued tokens."""

MOST = 3000
"""Maximum characters of a token: `MAX_ID` characters of an id are up to 2,400 when quoted."""

Attempt = tuple[str, int]
"""Id of a job and number of its attempt."""


class JobTokens:
    """Derives and verifies the tokens of jobs."""

    def __init__(self, token: str) -> None:
        """Derive the key from the machine's own token."""
        self._key: Final = hmac.digest(_bytes(token), b"sia job", "sha256")

    def of(self, job: str, attempt: int) -> str:
        """Return the token of an attempt."""
        return f"{PREFIX}{attempt}_{self._seal(job, attempt)}_{quote(job, safe='')}"

    def read(self, token: str) -> Attempt | None:
        """Return the attempt that a token belongs to; None if it is not the token of a job."""
        if not token.startswith(PREFIX) or len(token) > MOST:
            return None
        number, _, rest = token.removeprefix(PREFIX).partition("_")
        seal, _, name = rest.partition("_")
        if not (number.isascii() and number.isdecimal()):
            return None
        job, attempt = unquote(name), int(number)
        if not hmac.compare_digest(_bytes(seal), _bytes(self._seal(job, attempt))):
            return None
        return job, attempt

    def _seal(self, job: str, attempt: int) -> str:
        return hmac.digest(self._key, _bytes(f"{attempt} {job}"), "sha256").hex()


class ReportVariables:
    """The environment variables with which a job can report its progress over HTTP."""

    def __init__(self, url: str = "", token: str = "") -> None:
        """Let jobs report to this URL; `token` is the machine's own. Without a URL, they cannot."""
        self._url, self._tokens = url, JobTokens(token)

    def of(self, job: str, attempt: int) -> dict[str, str]:
        """Return the variables of an attempt; empty if jobs cannot reach the daemon."""
        if not self._url:
            return {}
        token = self._tokens.of(job, attempt)
        return {"SIA_REPORT_URL": self._url, "SIA_REPORT_TOKEN": token}


def _bytes(text: str) -> bytes:
    """Encode text from headers, which may hold bytes that are not UTF-8."""
    return text.encode("utf-8", "surrogateescape")
