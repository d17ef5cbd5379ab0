"""Exceptions that several components of the daemon raise or handle."""

from __future__ import annotations

IN_DOUBT = "the outcome is not known yet: retry with the same id, or check first"
"""Reason while a step has been written, but the journal cannot be read to verify this."""

AWAY = "the daemon accepts no commands now; operators see the reason in /v1/status"
"""Reason for clients that are not operators: an error message of a database may name files, hosts
and users."""


class UnavailableError(Exception):
    """Commands are not accepted now: an HTTP status (429 or 503) and when to retry (seconds)."""

    def __init__(self, status: int, why: str, retry_after: float) -> None:
        """Store the reason, one line."""
        super().__init__(why)
        self.status = status
        self.retry_after = retry_after

    def shown(self, *, whole: bool) -> str:
        """Return the reason; without `whole`, only what a client that is no operator may know."""
        if whole or self.status != 503:
            return str(self)
        return f"{AWAY}; {IN_DOUBT}" if str(self).endswith(IN_DOUBT) else AWAY


class JournalError(Exception):
    """The journal could not be written or read, for example on a full disk.

    Nothing was changed partly.
    """


class DeposedError(JournalError):
    """Another daemon is the leader now: this one must not write any more."""


class RowError(Exception):
    """A row that the database rejects as a duplicate or malformed: a defect of the daemon."""
