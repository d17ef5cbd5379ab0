"""The LP bound of one problem."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil, isfinite
from time import perf_counter
from typing import NamedTuple

from oracle.bounds.ascent import ascend
from oracle.bounds.cuts import TORN
from oracle.bounds.slot_cells import fitted, horizons_of
from oracle.problem.all_starts import fits, starts_of
from oracle.problem.forms import Form
from oracle.problem.problem import Problem
from oracle.solver.solvers import has_highs
from sia.program import TOLERANCE

EXACT = 1e-7
"""Relative difference up to which the LP and its bound count as equal."""


class LpBound(NamedTuple):
    """A lower bound, whether the LP was solved to the end, and the size of the program."""

    bound: float
    finished: bool
    variables: int = 0
    nonzeros: int = 0


def prove(
    problem: Problem,
    form: Form,
    until: float,
    known: Sequence[int] | None = None,
    on_bound: Callable[[float], object] = lambda _: None,
    stop: Callable[[], bool] = lambda: False,
) -> LpBound:
    """Return a lower bound on the cost, as far as the LP gets until the clock reads `until`.

    A `known` schedule gives initial horizons. `on_bound` is called with each better bound. The
    computation ends early if `stop` returns true. Raises NoScheduleError if there is no schedule.
    """
    best = 0.0

    def higher(bound: float) -> None:
        nonlocal best
        best = max(best, safe(bound, whole=problem.whole))
        on_bound(best)

    if not problem.beta and fits(problem) and has_highs():
        proven = _priced(problem, until, known, higher, stop)
        if proven is not None:
            return proven
    fit = fitted(problem, form, until, horizons_of(problem, known), higher, stop)
    if fit is None:
        return LpBound(best, finished=False)
    program = fit.model.program
    return LpBound(best, fit.settled, len(program.costs), program.nonzeros)


def _priced(
    problem: Problem,
    until: float,
    known: Sequence[int] | None,
    higher: Callable[[float], None],
    stop: Callable[[], bool],
) -> LpBound | None:
    """Solve the LP of all starts; None if not all tasks can start in it."""
    from oracle.bounds.master import Master, OutOfTimeError, columns_of  # noqa: PLC0415  needs highspy

    def over() -> bool:
        return stop() or perf_counter() >= until

    if over():
        return LpBound(0.0, finished=False)
    starts = starts_of(problem)
    prices = ascend(starts, over)
    higher(prices.bound)
    best = safe(prices.bound, whole=problem.whole)
    master = Master(starts, columns_of(starts, prices, known), stop)
    try:
        found = master.solve(until, enough=EXACT)
    except OutOfTimeError:
        return LpBound(best, finished=False, variables=master.size, nonzeros=master.entries)
    if found.short > TORN:
        return None
    higher(found.bound)
    best = max(best, safe(found.bound, whole=problem.whole))
    return LpBound(best, found.exact, master.size, master.entries)


def safe(bound: float, *, whole: bool) -> float:
    """Reduce a solver's bound by its tolerance; round up if all costs are whole numbers."""
    if not isfinite(bound):
        return 0.0
    safe = bound - TOLERANCE * max(1.0, abs(bound))
    return float(ceil(safe)) if whole else safe
