"""The fence: whether this daemon may act. Of several daemons on one database, one may."""

from __future__ import annotations

from typing import Protocol


class Fence(Protocol):
    """Checked right before every action on a backend.

    Attributes:
        epoch: The number of the current lease; each new leader has a greater one.
    """

    epoch: int

    def holds(self) -> bool:
        """Return whether no other daemon can have become leader. Thread-safe, does not block."""


class SoleLeader:
    """The fence of a daemon that owns its journal file: it is always the leader."""

    def __init__(self, epoch: int) -> None:
        """Keep the epoch, which no other daemon has."""
        self.epoch = epoch

    def holds(self) -> bool:
        """Return True."""
        return True
