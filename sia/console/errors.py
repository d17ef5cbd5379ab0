"""What a user did or gave that cannot be: one line that says what, where and the mend."""

from click import ClickException


class UserError(ClickException):
    """Shown as one line on stderr; the command ends with exit code 2."""

    exit_code = 2


class OtherFormatError(UserError):
    """A file does not look like what it was taken for."""
