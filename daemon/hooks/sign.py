"""What a receiver knows a delivery by: HMAC-SHA256 of its time and its body."""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from pathlib import Path

from daemon.hooks.limits import LEAST_SECRET, MAX_SECRET_FILE, MOST_SECRETS
from sia.console.errors import UserError


class Secrets:
    """What signs; shown to nobody."""

    def __init__(self, secrets: Sequence[bytes]) -> None:
        """Each of them signs."""
        self._secrets = tuple(secrets)

    def __repr__(self) -> str:
        """Nothing of them."""
        return f"Secrets({len(self._secrets)})"

    def header(self, body: bytes, moment: int) -> str:
        """`t=…,v1=…`: when it was signed, in seconds since the epoch, and by what, in hex."""
        signed = b"%d.%b" % (moment, body)
        marks = (hmac.digest(secret, signed, "sha256").hex() for secret in self._secrets)
        return ",".join([f"t={moment}", *(f"v1={mark}" for mark in marks)])


def read_secrets(path: Path) -> Secrets:
    """The secrets of a file, one a line.

    Raises UserError where it cannot be read, others can read it, or it holds none.
    """
    try:
        with path.open("rb") as file:
            text = file.read(MAX_SECRET_FILE + 1)
        mode = path.stat().st_mode
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}; write the secret into it") from None
    if mode & 0o077:
        raise UserError(f"{path}: others can read the secret; chmod 600 {path}")
    secrets = [line.strip() for line in text.splitlines() if line.strip()]
    if not 1 <= len(secrets) <= MOST_SECRETS or len(text) > MAX_SECRET_FILE:
        raise UserError(f"{path}: holds no secret; write 1 to {MOST_SECRETS} of them, one a line")
    if min(map(len, secrets)) < LEAST_SECRET:
        raise UserError(f"{path}: the secret is short; write {LEAST_SECRET} characters or more")
    return Secrets(secrets)
