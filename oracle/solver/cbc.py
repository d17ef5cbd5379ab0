"""CBC through PuLP: the one that PuLP 3 brings, or one on the path. Written for PuLP 3.3 and 4."""

from __future__ import annotations

from math import inf
from typing import ClassVar
from warnings import catch_warnings, simplefilter

import pulp

from oracle.errors import SolverError
from oracle.solver.in_pulp import in_pulp
from oracle.solver.program import Milp, Solved, Solver, SolverRequest


class Cbc(Solver):
    """The CBC that comes with PuLP 3."""

    rank = 10
    command: ClassVar[str] = "PULP_CBC_CMD"
    """PuLP's name of it."""

    @classmethod
    def available(cls) -> bool:
        """Return whether PuLP has it and finds its program."""
        return cls.command in pulp.listSolvers(onlyAvailable=True)

    @classmethod
    def solve(cls, milp: Milp, request: SolverRequest) -> Solved:
        """Solve a program. The bound is known only of an optimum: PuLP does not pass on others."""
        return _solve_with_cbc(cls.command, milp, request)


class SystemCbc(Cbc):
    """A CBC that is installed as a program of its own."""

    rank = 20
    command = "COIN_CMD"


def _solve_with_cbc(name: str, milp: Milp, request: SolverRequest) -> Solved:
    relaxed, seconds, start = request.relaxed, request.seconds, request.start
    problem, variables = in_pulp(milp, relaxed=relaxed)
    if start is not None:
        for variable, value in zip(variables, start, strict=True):
            variable.setInitialValue(value)
    with catch_warnings():
        simplefilter("ignore", DeprecationWarning)  # 3.3 calls its own CBC that, 4 has none
        cbc = pulp.getSolver(
            name, mip=not relaxed, msg=False, warmStart=start is not None,
            gapRel=request.gap or None, timeLimit=None if seconds == inf else seconds,
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
