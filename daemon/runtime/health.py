"""The health of the daemon's components: status, reason and fix."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from daemon.runtime.logs import log


class ComponentState(NamedTuple):
    """The health of one component. `since` is in seconds since the epoch."""

    name: str
    ok: bool
    why: str
    mend: str
    since: float


class HealthRegistry:
    """Records the health of each component. Not thread-safe: use it on the event loop."""

    def __init__(self, now: Callable[[], float]) -> None:
        """Start without components."""
        self._now = now
        self._states: dict[str, ComponentState] = {}

    def say(self, name: str, why: str = "", mend: str = "") -> None:
        """Record that a component is unhealthy, or healthy if `why` is empty. Logs each change."""
        before = self._states.get(name)
        if before is not None and (before.why, before.mend) == (why, mend):
            return
        ok = not why
        since = before.since if before is not None and before.ok is ok else self._now()
        self._states[name] = ComponentState(name, ok, why, mend, since)
        if not ok:
            log().warning("component unhealthy", part=name, why=why, mend=mend)
        elif before is not None:
            log().info("component healthy again", part=name)

    def forget(self, name: str) -> None:
        """Remove a component."""
        self._states.pop(name, None)

    def all(self) -> list[ComponentState]:
        """Return the state of all components, by name."""
        return [self._states[name] for name in sorted(self._states)]


class ServiceStatus(NamedTuple):
    """The status of the service. Times are in seconds."""

    serving: bool
    """Whether commands are accepted. Reads are always answered."""
    reason: str
    since: float
    """The start of this status, in seconds since the epoch."""
    waiting: int = 0
    """The number of inputs that are not durable yet."""
    last_commit: float = 0.0
    """The time of the last commit, in seconds since the epoch."""
    steps: int = 0
