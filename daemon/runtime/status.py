"""The status of the service as a value."""

from __future__ import annotations

from typing import NamedTuple


class ServiceStatus(NamedTuple):
    """The status of the service. Times are in seconds."""

    serving: bool
    """Whether commands are accepted. Reads are answered in any case."""
    reason: str
    since: float
    """The start of this status, in seconds since the epoch."""
    waiting: int = 0
    """The number of inputs that are not durable yet."""
    last_commit: float = 0.0
    """The time of the last commit, in seconds since the epoch."""
    steps: int = 0
