"""Solve programs with CBC through PuLP (3.3 and 4): PuLP 3's own CBC, or one on the path."""

from __future__ import annotations

from math import inf
from typing import ClassVar
from warnings import catch_warnings, simplefilter

import pulp

from oracle.solver.in_pulp import in_pulp
from sia.contract.solvers import Solved, Solver, SolverError, SolverRequest
from sia.program import Program


class Cbc(Solver):
    """The CBC that comes with PuLP 3."""

    rank = 10
    command: ClassVar[str] = "PULP_CBC_CMD"
    """PuLP's name of the solver."""

    @classmethod
    def available(cls) -> bool:
        """Return whether PuLP finds the solver's executable."""
        return cls.command in pulp.listSolvers(onlyAvailable=True)

    @classmethod
    def solve(cls, program: Program, request: SolverRequest) -> Solved:
        """Solve a program. PuLP does not report the bound, so there is one only at the optimum.

        CBC respects the limit on nodes, but not the limit on iterations.
        """
        return _solve_with_cbc(cls.command, program, request)


class SystemCbc(Cbc):
    """A CBC that is installed separately."""

    rank = 20
    command = "COIN_CMD"


def _solve_with_cbc(name: str, program: Program, request: SolverRequest) -> Solved:
    relaxed, seconds, start = request.relaxed, request.seconds, request.start
    problem, variables = in_pulp(program, relaxed=relaxed)
    if start is not None:
        for variable, value in zip(variables, start, strict=True):
            variable.setInitialValue(value)
    with catch_warnings():
        simplefilter("ignore", DeprecationWarning)  # PuLP 3.3 deprecates its bundled CBC
        cbc = pulp.getSolver(
            name, mip=not relaxed, msg=False, warmStart=start is not None,
            gapRel=request.gap or None, timeLimit=None if seconds == inf else seconds,
            maxNodes=request.nodes,
        )  # fmt: skip
    try:
        problem.solve(cbc)
    except pulp.PulpSolverError as error:
        raise SolverError(
            f"{name}: crashed ({error}); install highspy, or use a longer --slot"
        ) from None
    status = str(getattr(problem.sol_status, "name", problem.sol_status)).lower()
    if problem.sol_status == pulp.LpSolutionInfeasible or "infeasible" in status:
        return Solved("infeasible", None, inf, inf)
    values = [variable.varValue for variable in variables]
    optimal = problem.sol_status == pulp.LpSolutionOptimal
    # If CBC stops before it finds a solution, the values are those of the LP, or missing.
    whole = optimal or (not relaxed and problem.sol_status == pulp.LpSolutionIntegerFeasible)
    if not whole or any(value is None for value in values):
        return Solved("time", None, inf, -inf)
    cost = program.cost(values)
    return Solved("optimal" if optimal else "time", values, cost, cost if optimal else -inf)
