"""Durability: while a step is written, the engine is one step ahead of the journal."""

from __future__ import annotations

import asyncio

from daemon.model.errors import UnavailableError
from daemon.model.limits import PROBE_EVERY


class DurabilityBarrier:
    """Blocks readers until every step that the engine has made is durable."""

    def __init__(self) -> None:
        """Start with no step pending."""
        self._durable = asyncio.Event()
        self._durable.set()
        self._why = ""

    def step_pending(self) -> None:
        """A step is being written."""
        self._durable.clear()

    def step_durable(self) -> None:
        """The step is durable, or the engine has gone back."""
        self._why = ""
        self._durable.set()

    def step_in_doubt(self, why: str) -> None:
        """Fail readers that wait for a step of which nobody knows whether it is durable."""
        self._why = why
        if not self._durable.is_set():
            self._durable.set()  # wake the readers, which then raise
            self._durable.clear()

    async def wait(self) -> None:
        """Return once every step is durable. Raises UnavailableError if that is unknown."""
        while not self._durable.is_set():
            if self._why:
                raise UnavailableError(503, self._why, PROBE_EVERY)
            await self._durable.wait()
