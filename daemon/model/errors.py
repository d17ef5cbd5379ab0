"""Errors that several parts of the daemon raise or handle."""

from __future__ import annotations

IN_DOUBT = "whether this was done is not known yet: ask again under the same id, or look first"
"""Where a step was written, and the journal cannot be read to see whether it is there."""

AWAY = "commands are not taken now; operators see why in /v1/status"
"""What others are told: a database's own words name files, hosts and users."""


class UnavailableError(Exception):
    """Commands cannot be taken now: an HTTP status (429, 503), and when to come again (seconds)."""

    def __init__(self, status: int, why: str, retry_after: float) -> None:
        """Say why, in a line."""
        super().__init__(why)
        self.status = status
        self.retry_after = retry_after

    def shown(self, *, whole: bool) -> str:
        """Why, or as much of it as those may know who are no operators."""
        if whole or self.status != 503:
            return str(self)
        return f"{AWAY}; {IN_DOUBT}" if str(self).endswith(IN_DOUBT) else AWAY


class JournalError(Exception):
    """It could not be written or read: the disk is full, or has failed. Nothing is half done."""


class DeposedError(JournalError):
    """Another daemon has taken over: this one writes nothing any more."""


class RowError(Exception):
    """A row that cannot be: it is there already, or no database holds it. A defect of ours."""
