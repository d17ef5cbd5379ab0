"""Search settings of `wfq` beside the daemon: `sia wfq update` in a process of its own.

Imports: config, runtime.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from contextlib import suppress

from daemon.config.config import Config
from daemon.runtime.clock import Clock

CANCELLED, STORED = "cancelled; the same update goes on where it stopped", "stored"
"""Messages for an update that was cancelled, and for one that is complete."""


class FrontUpdates:
    """One update of the front at a time; it steps back behind the daemon and its jobs.

    Attributes:
        began: When the latest update began, in seconds since the epoch; None without one.
        said: Its latest line of progress, or how it ended.
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
        """Whether the command finds the journal without the configuration file."""
        return self._folder is not None

    @property
    def running(self) -> bool:
        """Whether an update runs."""
        return self._task is not None and not self._task.done()

    def start(self, options: Sequence[str]) -> None:
        """Begin an update with these options of `sia wfq update`; none may run."""
        assert self.possible, "the caller asks first"
        assert not self.running, "the caller asks first"
        self.began, self.said = self._clock.now(), "reading the history"
        self._task = asyncio.create_task(self._run(options))

    async def cancel(self) -> None:
        """Stop the update that runs, if any; what it has done is kept for the next one."""
        if self._task is not None and self.running:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
            self.said = CANCELLED

    async def close(self, _: object) -> None:
        """Stop with the daemon."""
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
