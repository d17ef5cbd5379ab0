"""Sign deliveries: HMAC-SHA256 of time and body."""

from __future__ import annotations

import hmac
from collections.abc import Sequence


class Secrets:
    """Signing keys, never shown."""

    def __init__(self, secrets: Sequence[bytes]) -> None:
        """Store the keys; each of them signs, to allow rotation."""
        self._secrets = tuple(secrets)

    def __repr__(self) -> str:
        """Return a text with the number of keys; the keys must not appear in logs."""
        return f"Secrets({len(self._secrets)})"

    def header(self, body: bytes, moment: int) -> str:
        """Return `t=…,v1=…`: time in seconds since the epoch, and a hex signature for each key."""
        signed = b"%d.%b" % (moment, body)
        marks = (hmac.digest(secret, signed, "sha256").hex() for secret in self._secrets)
        return ",".join([f"t={moment}", *(f"v1={mark}" for mark in marks)])
