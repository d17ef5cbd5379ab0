"""Whether this daemon may act: of several on one database, one does."""

from __future__ import annotations

from typing import Protocol


class Fence(Protocol):
    """To be asked right before each act on the outside, by whoever acts.

    Attributes:
        epoch: Whose turn it is: each daemon that takes hold of the journal has a greater one.
    """

    epoch: int

    def holds(self) -> bool:
        """Whether nobody else can have become the one who acts. Any thread, no waiting."""


class SoleLeader:
    """Of a daemon that has its journal for itself as long as it lives."""

    def __init__(self, epoch: int) -> None:
        """Nobody else has this epoch."""
        self.epoch = epoch

    def holds(self) -> bool:
        """Always."""
        return True
