"""The LP's bound alone, of one problem."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil, isfinite
from typing import NamedTuple

from oracle.cells import fitted, horizons_of
from oracle.forms import Form
from oracle.milp import TOLERANCE
from oracle.problem import Problem


class Proven(NamedTuple):
    """What nothing is less than, whether that was the end of it, and the size of the program."""

    bound: float
    finished: bool
    variables: int = 0
    nonzeros: int = 0


def prove(
    problem: Problem,
    form: Form,
    until: float,
    known: Sequence[int] | None = None,
    rose: Callable[[float], object] = lambda _: None,
    stop: Callable[[], bool] = lambda: False,
) -> Proven:
    """What no schedule costs less than, as far as the LP gets until the clock reads `until`.

    A schedule that is `known` says how far horizons may have to reach. `rose` is told each bound;
    it ends early where `stop` says so. Raises NoScheduleError where there is no schedule.
    """
    best = 0.0

    def higher(bound: float) -> None:
        nonlocal best
        best = max(best, safe(bound, whole=problem.whole))
        rose(best)

    fit = fitted(problem, form, until, horizons_of(problem, known), higher, stop)
    if fit is None:
        return Proven(best, finished=False)
    milp = fit.model.milp
    return Proven(best, fit.settled, len(milp.costs), milp.nonzeros)


def safe(bound: float, *, whole: bool) -> float:
    """What a solver's bound proves in spite of its tolerance; whole costs lie at whole numbers."""
    if not isfinite(bound):
        return 0.0
    safe = bound - TOLERANCE * max(1.0, abs(bound))
    return float(ceil(safe)) if whole else safe
