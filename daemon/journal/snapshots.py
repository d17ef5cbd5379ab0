"""When snapshots are taken, and how they get into the journal: in pieces, beside the steps."""

from __future__ import annotations

import asyncio
from collections import deque

from daemon.engine.engine import Engine
from daemon.journal.journal import SnapshotPart, parts_of


class Snapshots:
    """The pieces that are still to be written of the newest snapshot.

    Attributes:
        every: Inputs from one to the next.
    """

    def __init__(self, every: int) -> None:
        """Nothing has happened since the last one."""
        self.every = every
        self._since = 0
        self._parts: deque[SnapshotPart] = deque()

    def __bool__(self) -> bool:
        return bool(self._parts)

    @property
    def next(self) -> SnapshotPart | None:
        """The piece to write next."""
        return self._parts[0] if self._parts else None

    def written(self) -> None:
        """It is durable."""
        self._parts.popleft()

    @property
    def due(self) -> bool:
        """Whether it is time for another."""
        return self._since >= self.every and not self._parts

    def stepped(self, inputs: int) -> None:
        """A step with so many inputs is durable."""
        self._since += inputs

    async def take(self, seq: int, engine: Engine) -> None:
        """Take one after a step, unless nothing has happened since the last. O(n), in a thread.

        No step may be made meanwhile; whoever looks at the engine need not wait.
        """
        if self._since:
            self._parts = deque(await asyncio.to_thread(lambda: parts_of(seq, engine.dump())))
            self._since = 0

    def drop(self) -> None:
        """Leave what is not written: the next one will do."""
        self._parts.clear()
