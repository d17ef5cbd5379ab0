"""When snapshots are taken, and how they get into the journal: in pieces, beside the steps."""

from __future__ import annotations

from collections import deque

from daemon.engine import Engine
from daemon.journal import Part, parts_of


class Snapshots:
    """The pieces that are still to be written of the newest snapshot.

    Attributes:
        every: Inputs from one to the next.
    """

    def __init__(self, every: int) -> None:
        """Nothing has happened since the last one."""
        self.every = every
        self._since = 0
        self._parts: deque[Part] = deque()

    def __bool__(self) -> bool:
        return bool(self._parts)

    @property
    def next(self) -> Part | None:
        """The piece to write next."""
        return self._parts[0] if self._parts else None

    def written(self) -> None:
        """It is durable."""
        self._parts.popleft()

    def stepped(self, inputs: int, seq: int, engine: Engine) -> bool:
        """A step with so many inputs is durable: take one if it is time. O(n) then."""
        self._since += inputs
        if self._since < self.every or self._parts:
            return False
        self.take(seq, engine)
        return True

    def take(self, seq: int, engine: Engine) -> None:
        """Take one after a step, unless nothing has happened since the last. O(n)."""
        if self._since:
            self._parts = deque(parts_of(seq, engine.dump()))
            self._since = 0

    def drop(self) -> None:
        """Leave what is not written: the next one will do."""
        self._parts.clear()
