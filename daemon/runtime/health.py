"""The daemon's parts beside its heart: which of them are not well, why, and the mend."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from daemon.runtime.logs import log


class ComponentState(NamedTuple):
    """How a part is. `since` is in seconds since the epoch."""

    name: str
    ok: bool
    why: str
    mend: str
    since: float


class HealthRegistry:
    """What each part said last. On the loop's thread."""

    def __init__(self, now: Callable[[], float]) -> None:
        """Of no part yet."""
        self._now = now
        self._states: dict[str, ComponentState] = {}

    def say(self, name: str, why: str = "", mend: str = "") -> None:
        """A part is not well, or is (no `why`); each change is logged once."""
        before = self._states.get(name)
        if before is not None and (before.why, before.mend) == (why, mend):
            return
        ok = not why
        since = before.since if before is not None and before.ok is ok else self._now()
        self._states[name] = ComponentState(name, ok, why, mend, since)
        if not ok:
            log().warning("not well", part=name, why=why, mend=mend)
        elif before is not None:
            log().info("well again", part=name)

    def forget(self, name: str) -> None:
        """There is no such part any more."""
        self._states.pop(name, None)

    def all(self) -> list[ComponentState]:
        """All that ever said how they are, by name."""
        return [self._states[name] for name in sorted(self._states)]
