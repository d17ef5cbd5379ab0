"""The sections `[tls]` and `[limits]` of `sia.toml`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, NamedTuple

from msgspec import Meta, Struct
from msgspec.structs import replace

MOST_JOBS = 10_000_000
"""Upper bound of a job limit: more jobs than the largest clouds receive in a day."""

Rate = Annotated[float, Meta(gt=0, le=1e6)]
JobLimit = Annotated[int, Meta(ge=1, le=MOST_JOBS)]

BURST = 10.0
"""Default burst, in seconds of the rate."""


class RateLimit(NamedTuple):
    """Admission limits of a pool or a token. None means no limit."""

    rate: float | None = None
    """Jobs per second."""
    burst: int | None = None
    """Jobs accepted at once before the rate applies."""
    max_waiting: int | None = None
    """Pending jobs at a time."""

    @property
    def at_once(self) -> float:
        """Return the number of jobs accepted at once before the rate applies."""
        return self.burst or max(1.0, BURST * (self.rate or 0.0))


class LimitsConfig(Struct, frozen=True):
    """`[limits]`: defaults for pools, and limits of each token. None means no limit."""

    rate: Rate | None = None
    """Jobs per second."""
    burst: JobLimit | None = None
    """Jobs accepted at once before the rate applies; by default ten seconds of the rate."""
    max_waiting: JobLimit | None = None
    """Pending jobs at a time."""
    token_rate: Rate | None = None
    token_burst: JobLimit | None = None
    token_max_waiting: JobLimit | None = None

    @property
    def pool(self) -> RateLimit:
        """Return the default limits of a pool."""
        return RateLimit(self.rate, self.burst, self.max_waiting)

    @property
    def token(self) -> RateLimit:
        """Return the limits of each token."""
        return RateLimit(self.token_rate, self.token_burst, self.token_max_waiting)


class TlsConfig(Struct, frozen=True):
    """`[tls]`: the daemon's certificate, and whether clients need one. Paths are absolute."""

    certificate: str = ""
    """PEM file with the certificate and the intermediate certificates of its chain."""
    key: str = ""
    client_ca: str = ""
    """PEM file of the authorities that sign client certificates; empty: clients need none."""
    terminated_by_proxy: bool = False
    """Whether a proxy in front of the daemon terminates TLS."""

    @property
    def on(self) -> bool:
        """Whether the daemon itself serves TLS."""
        return bool(self.certificate)

    def relative_to(self, base: Path) -> TlsConfig:
        """Return a copy whose relative paths are resolved against the folder `base`."""
        files = ("certificate", "key", "client_ca")
        paths = {name: str(base / path) for name in files if (path := getattr(self, name))}
        return replace(self, **paths)
