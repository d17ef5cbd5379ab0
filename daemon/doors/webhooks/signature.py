"""What a receiver knows a delivery by: HMAC-SHA256 of its time and its body."""

from __future__ import annotations

import hmac
from collections.abc import Sequence


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
