"""Misuse by a person: one line that says what is wrong, where, and how to fix it."""

from click import ClickException


class UserError(ClickException):
    """Misuse: one line on standard error and exit code 2."""

    exit_code = 2


class OtherFormatError(UserError):
    """A file does not have the expected format."""
