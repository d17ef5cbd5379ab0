"""Schedules snapshots and hands their parts to the journal between steps."""

from __future__ import annotations

import asyncio
from collections import deque

from daemon.engine.engine import Engine
from daemon.journal.journal import SnapshotPart, parts_of


class Snapshots:
    """The unwritten parts of the newest snapshot.

    Attributes:
        every: Number of inputs between two snapshots.
    """

    def __init__(self, every: int) -> None:
        """Start with no input since the last snapshot."""
        self.every = every
        self._since = 0
        self._parts: deque[SnapshotPart] = deque()

    def __bool__(self) -> bool:
        return bool(self._parts)

    @property
    def next(self) -> SnapshotPart | None:
        """Return the next part to write, or None."""
        return self._parts[0] if self._parts else None

    def written(self) -> None:
        """Record that the next part is durable."""
        self._parts.popleft()

    @property
    def due(self) -> bool:
        """Whether the next snapshot must be taken now."""
        return self._since >= self.every and not self._parts

    def stepped(self, inputs: int) -> None:
        """Count the inputs of a durable step."""
        self._since += inputs

    async def take(self, seq: int, engine: Engine) -> None:
        """Take a snapshot after step `seq`, unless there was no input since the last. O(jobs).

        A thread encodes the engine. The caller must not make a step meanwhile; reads are allowed.
        Raises PolicyFailedError if the policy cannot dump its memory; the next try comes after as
        many inputs.
        """
        if self._since:
            self._since = 0
            self._parts = deque(await asyncio.to_thread(lambda: parts_of(seq, engine.dump())))

    def drop(self) -> None:
        """Discard the unwritten parts; the next snapshot replaces them."""
        self._parts.clear()
