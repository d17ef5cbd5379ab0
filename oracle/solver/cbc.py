"""A program through PuLP: HiGHS where it is installed, else CBC. Written for PuLP 3.3 and 4."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Any
from warnings import catch_warnings, simplefilter

import pulp

from oracle.errors import SolverError
from oracle.solver.in_pulp import in_pulp
from oracle.solver.program import Milp, OnIncumbent, Solved, SolverCallback


def solvers() -> list[str]:
    """What is installed and can be used, best first."""
    there = pulp.listSolvers(onlyAvailable=True)
    return [name for name in ("HiGHS", "PULP_CBC_CMD", "COIN_CMD") if name in there]


def has_highs() -> bool:
    """Whether HiGHS is what programs are solved with: duals and warm starts are its own."""
    return solvers()[:1] == ["HiGHS"]


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

    Raises SolverError where no solver is installed, or it dies.
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
    problem, variables = in_pulp(milp, relaxed=relaxed)
    if chosen == "HiGHS":
        from oracle.solver.highs import solve_with_highs  # noqa: PLC0415  where highspy is installed

        return solve_with_highs(
            problem, milp, relaxed=relaxed, seconds=seconds, start=start, gap=gap, tell=tell,
            took=took, interior=interior,
        )  # fmt: skip
    return _solve_with_cbc(
        chosen, problem, variables, milp, relaxed=relaxed, seconds=seconds, start=start, gap=gap
    )


def _solve_with_cbc(
    name: str,
    problem: Any,
    variables: Sequence[Any],
    milp: Milp,
    *,
    relaxed: bool,
    seconds: float,
    start: Sequence[float] | None,
    gap: float,
) -> Solved:
    """CBC tells no bound through PuLP: there is one only where it found the optimum."""
    if start is not None:
        for variable, value in zip(variables, start, strict=True):
            variable.setInitialValue(value)
    with catch_warnings():
        simplefilter("ignore", DeprecationWarning)  # 3.3 calls its own CBC that, 4 has none
        cbc = pulp.getSolver(
            name, mip=not relaxed, msg=False, warmStart=start is not None, gapRel=gap or None,
            timeLimit=None if seconds == inf else seconds,
        )  # fmt: skip
    try:
        problem.solve(cbc)
    except pulp.PulpSolverError as error:
        raise SolverError(f"{name}: died ({error}); install highspy, or give --slot more") from None
    said = str(getattr(problem.sol_status, "name", problem.sol_status)).lower()
    if problem.sol_status == pulp.LpSolutionInfeasible or "infeasible" in said:
        return Solved("infeasible", None, inf, inf)
    values = [variable.varValue for variable in variables]
    optimal = problem.sol_status == pulp.LpSolutionOptimal
    # stopped before it has a solution, it leaves the LP's values behind, or none
    whole = optimal or (not relaxed and problem.sol_status == pulp.LpSolutionIntegerFeasible)
    if not whole or any(value is None for value in values):
        return Solved("time", None, inf, -inf)
    cost = milp.offset + sum(c * v for c, v in zip(milp.costs, values, strict=True))
    return Solved("optimal" if optimal else "time", values, cost, cost if optimal else -inf)
