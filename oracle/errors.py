"""What the oracle cannot do, in one line that says what and the mend."""

from sia.console.errors import UserError


class NoScheduleError(UserError):
    """No schedule keeps all cutoffs."""


class BrokenScheduleError(UserError):
    """What was handed back as a schedule breaks a window or the capacity."""


class SolverError(UserError):
    """The solver is missing, or died."""
