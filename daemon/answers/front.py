"""Run `sia wfq update`, which searches settings of `wfq`, as a child process of the daemon.

Imports: config, runtime.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from contextlib import suppress

from daemon.config.config import Config
from daemon.runtime.clock import Clock

CANCELLED, STORED = "cancelled; the same update continues where it stopped", "stored"
"""Texts of `said` for a cancelled update and for a complete one."""


class FrontUpdates:
    """Run one update of the front at a time, with a lower priority than the daemon and its jobs.

    Attributes:
        began: When the latest update began, in seconds since the epoch; None without one.
        said: The latest line of its progress, or how it ended.
    """

    def __init__(self, config: Config, clock: Clock) -> None:
        """Update the front of the daemon with this configuration."""
        folder = config.front.parent.parent
        self._folder = folder if config.database == folder / "sia.db" else None
        self._clock = clock
        self._task: asyncio.Task[None] | None = None
        self.began: float | None = None
        self.said = ""

    @property
    def possible(self) -> bool:
        """Whether an update can start: the command must find the journal without `sia.toml`."""
        return self._folder is not None

    @property
    def running(self) -> bool:
        """Whether an update is in progress."""
        return self._task is not None and not self._task.done()

    def start(self, options: Sequence[str]) -> None:
        """Start an update with these options of `sia wfq update`.

        No other update may be in progress.
        """
        assert self.possible, "the caller has checked `possible`"
        assert not self.running, "the caller has checked `running`"
        self.began, self.said = self._clock.now(), "reading the history"
        self._task = asyncio.create_task(self._run(options))

    async def cancel(self) -> None:
        """Stop the update in progress, if any. The next update continues from its results."""
        if self._task is not None and self.running:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
            self.said = CANCELLED

    async def close(self, _: object) -> None:
        """Stop the update when the daemon stops."""
        await self.cancel()

    async def _run(self, options: Sequence[str]) -> None:
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "sia", "wfq", "update", "--state", str(self._folder), *options,
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        assert child.stderr is not None, "it is piped"
        try:
            async for line in child.stderr:
                self.said = line.decode(errors="replace").strip() or self.said
            if not await child.wait():
                self.said = STORED
        except asyncio.CancelledError:
            child.terminate()
            await child.communicate()
            raise
