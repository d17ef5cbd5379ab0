"""Solves a program with the best solver that is installed."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from oracle.errors import SolverError
from oracle.solver.program import Milp, OnIncumbent, Solved, Solver, SolverCallback, SolverRequest
from sia.plugins import PluginError, load_plugin, plugins

SOLVERS = "sia.solvers"
"""The entry point group of solvers."""


def solvers() -> list[str]:
    """Return the names of the solvers that can be used here, best first."""
    found = [(solver.rank, name) for name, solver in _loaded().items() if solver.available()]
    return [name for _, name in sorted(found)]


def has_highs() -> bool:
    """Return whether HiGHS is used; only HiGHS provides duals and warm starts."""
    return solvers()[:1] == ["highs"]


def _loaded() -> dict[str, type[Solver]]:
    """Return the solvers whose packages are installed."""
    found: dict[str, type[Solver]] = {}
    for name in plugins(SOLVERS):
        try:
            found[name] = load_plugin(SOLVERS, name)
        except PluginError:
            continue
    return found


def solve(
    milp: Milp,
    *,
    relaxed: bool = False,
    interior: bool = False,
    seconds: float = inf,
    start: Sequence[float] | None = None,
    gap: float = 0.0,
    progress: SolverCallback | None = None,
    improved: OnIncumbent | None = None,
    solver: str | None = None,
) -> Solved:
    """Solve a program, or its LP if `relaxed`, with the warm start `start` if given.

    With `interior`, HiGHS solves an LP by the interior-point method. This is four times faster on
    large LPs, but the solution is not a vertex, and its cost is not a valid bound.

    Raises SolverError if no solver is installed or the solver crashes.
    """
    names = solvers()
    if solver is None and not names:
        raise SolverError("no solver is installed; install one with: pip install highspy")
    if milp.impossible:
        return Solved("infeasible", None, inf, inf)
    if not milp.costs:
        return Solved("optimal", [], milp.offset, milp.offset)
    chosen = solver or names[0]
    if chosen not in names:
        raise SolverError(f"solver {chosen}: not installed; use one of {', '.join(names)}")
    relaxed = relaxed or not any(milp.binary)  # solvers report no MIP bound for an LP
    request = SolverRequest(relaxed, interior, seconds, start, gap, progress, improved)
    return _loaded()[chosen].solve(milp, request)
