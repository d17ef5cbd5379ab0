"""Whether what the engine says is durable: it is a step ahead while that is written."""

from __future__ import annotations

import asyncio

from daemon.model.errors import UnavailableError
from daemon.model.limits import PROBE_EVERY


class DurabilityBarrier:
    """Readers wait here until the engine is where the journal is."""

    def __init__(self) -> None:
        """It is."""
        self._reached = asyncio.Event()
        self._reached.set()
        self._why = ""

    def ahead(self) -> None:
        """A step is made that is not durable yet."""
        self._reached.clear()

    def reached(self) -> None:
        """It is durable, or undone."""
        self._why = ""
        self._reached.set()

    def unknown(self, why: str) -> None:
        """If a step is not durable, nobody knows for now what is."""
        self._why = why
        if not self._reached.is_set():
            self._reached.set()  # whoever waits looks again
            self._reached.clear()

    async def wait(self) -> None:
        """Return where all is durable, at once if it is. Raises UnavailableError if unknown."""
        while not self._reached.is_set():
            if self._why:
                raise UnavailableError(503, self._why, PROBE_EVERY)
            await self._reached.wait()
