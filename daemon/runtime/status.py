"""How the service is, in a few words."""

from __future__ import annotations

from typing import NamedTuple


class ServiceStatus(NamedTuple):
    """How the service is. Times are seconds."""

    serving: bool
    """Whether commands are taken; reads are answered either way."""
    reason: str
    since: float
    """When it became so, in seconds since the epoch."""
    waiting: int = 0
    """Inputs that are not durable yet."""
    last_commit: float = 0.0
    """When a step last became durable, in seconds since the epoch."""
    steps: int = 0
