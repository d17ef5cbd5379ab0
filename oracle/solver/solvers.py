"""Which solver is installed: the oracle's own methods need HiGHS."""

from __future__ import annotations

from sia.contract.solvers import solvers


def has_highs() -> bool:
    """Return whether HiGHS is used; only HiGHS provides duals and warm starts."""
    return solvers()[:1] == ["highs"]
