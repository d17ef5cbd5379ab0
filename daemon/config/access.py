"""What a configuration says of encryption and of limits."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, NamedTuple

from msgspec import Meta, Struct
from msgspec.structs import replace

MOST_JOBS = 10_000_000
"""That may be told to wait at most: more than a day's of the largest clouds."""

Rate = Annotated[float, Meta(gt=0, le=1e6)]
JobLimit = Annotated[int, Meta(ge=1, le=MOST_JOBS)]

BURST = 10.0
"""Seconds of a rate that may come at once, where nothing else is said."""


class RateLimit(NamedTuple):
    """Of a pool, or of a token; None is none."""

    rate: float | None = None
    """Jobs a second."""
    burst: int | None = None
    """Jobs at once before that counts."""
    max_waiting: int | None = None
    """Jobs that wait at a time."""

    @property
    def at_once(self) -> float:
        """Jobs that may come at once."""
        return self.burst or max(1.0, BURST * (self.rate or 0.0))


class LimitsConfig(Struct, frozen=True):
    """Of each pool that says nothing else, and of each token. None is no limit."""

    rate: Rate | None = None
    """Jobs a second."""
    burst: JobLimit | None = None
    """Jobs at once before that counts; ten seconds of the rate if nothing is said."""
    max_waiting: JobLimit | None = None
    """Jobs that wait at a time."""
    token_rate: Rate | None = None
    token_burst: JobLimit | None = None
    token_max_waiting: JobLimit | None = None

    @property
    def pool(self) -> RateLimit:
        """Of a pool."""
        return RateLimit(self.rate, self.burst, self.max_waiting)

    @property
    def token(self) -> RateLimit:
        """Of a token."""
        return RateLimit(self.token_rate, self.token_burst, self.token_max_waiting)


class TlsConfig(Struct, frozen=True):
    """What the daemon shows to clients, and what it wants of them. Paths are absolute."""

    certificate: str = ""
    """A PEM file, with the certificates between it and its authority."""
    key: str = ""
    client_ca: str = ""
    """Whose certificates clients must have; empty asks for none."""
    terminated_by_proxy: bool = False
    """Whether somebody in front of the daemon encrypts."""

    @property
    def on(self) -> bool:
        """Whether the daemon itself encrypts."""
        return bool(self.certificate)

    def beside(self, base: Path) -> TlsConfig:
        """With its paths beginning at a folder."""
        files = ("certificate", "key", "client_ca")
        paths = {name: str(base / path) for name in files if (path := getattr(self, name))}
        return replace(self, **paths)
