"""Errors of the oracle; each message is one line with the problem and the fix."""

from sia.console.errors import UserError


class NoScheduleError(UserError):
    """No schedule starts every job by its cutoff."""


class BrokenScheduleError(UserError):
    """A solver's result violates a start window or the capacity."""
