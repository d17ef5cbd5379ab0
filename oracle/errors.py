"""What the oracle cannot do, in one line that says what and the mend."""

from replay.errors import UserError


class NoScheduleError(UserError):
    """No schedule keeps all cutoffs."""


class SolverError(UserError):
    """The solver is missing, or died."""
