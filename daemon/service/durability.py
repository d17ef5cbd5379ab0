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
        """Record that a step is being written."""
        self._durable.clear()

    def step_durable(self) -> None:
        """Record that the step is durable, or that the engine has returned to a durable one."""
        self._why = ""
        self._durable.set()

    def step_in_doubt(self, why: str) -> None:
        """Fail the readers that wait for a step of which it is unknown whether it is durable."""
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
