"""What a user did or gave that cannot be: one line that says what, where and the mend."""


class UserError(Exception):
    """Shown as one line on stderr; the command ends with exit code 2."""
