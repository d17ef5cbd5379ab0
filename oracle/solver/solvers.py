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
    """Return whether programs are solved with HiGHS: duals and warm starts are its own."""
    return solvers()[:1] == ["highs"]


def _loaded() -> dict[str, type[Solver]]:
    """The solvers that can be imported: one may need a package that is not there."""
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
    tell: SolverCallback | None = None,
    took: OnIncumbent | None = None,
    solver: str | None = None,
) -> Solved:
    """Solve a program, or with `relaxed` its LP; from a first solution `start` if there is one.

    `interior` has HiGHS solve an LP by interior points: four times faster on large ones, while
    values and duals are then of no corner, and the cost is no bound by itself.

    Raises SolverError if no solver is installed, or it dies.
    """
    names = solvers()
    if solver is None and not names:
        raise SolverError("no solver is installed: pip install highspy")
    if milp.impossible:
        return Solved("infeasible", None, inf, inf)
    if not milp.costs:
        return Solved("optimal", [], milp.offset, milp.offset)
    chosen = solver or names[0]
    if chosen not in names:
        raise SolverError(f"solver {chosen}: is not installed; there are {', '.join(names)}")
    relaxed = relaxed or not any(milp.binary)  # solvers tell no bound of those
    request = SolverRequest(relaxed, interior, seconds, start, gap, tell, took)
    return _loaded()[chosen].solve(milp, request)
