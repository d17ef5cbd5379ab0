"""The LP's bound alone, of one problem."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from oracle.cells import fitted
from oracle.forms import Form
from oracle.problem import Problem
from oracle.solve import _safe as safe
from oracle.solve import horizons_of


def prove(
    problem: Problem,
    form: Form,
    until: float,
    known: Sequence[int] | None = None,
    rose: Callable[[float], object] = lambda _: None,
    stop: Callable[[], bool] = lambda: False,
) -> float:
    """What no schedule costs less than, as far as the LP gets until the clock reads `until`.

    A schedule that is `known` says how far horizons may have to reach. `rose` is told each bound;
    it ends early where `stop` says so. Raises NoScheduleError where there is no schedule.
    """
    best = 0.0

    def higher(bound: float) -> None:
        nonlocal best
        best = max(best, safe(bound, whole=problem.whole))
        rose(best)

    fitted(problem, form, until, horizons_of(problem, known), higher, stop)
    return best
