"""HiGHS through PuLP, with a first solution and with word of how it goes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from math import inf
from time import perf_counter
from typing import TYPE_CHECKING, Any

import highspy
import numpy as np
import pulp

from oracle.errors import SolverError
from oracle.milp import Milp, Row

if TYPE_CHECKING:
    from oracle.solver import Solved, Tell

STATUS = highspy.HighsModelStatus
STOPPED = {
    STATUS.kOptimal: "optimal",
    STATUS.kInfeasible: "infeasible",
    STATUS.kUnboundedOrInfeasible: "infeasible",
    STATUS.kTimeLimit: "time",
    STATUS.kInterrupt: "interrupted",
    STATUS.kMemoryLimit: "memory",
    STATUS.kSolutionLimit: "optimal",
}
"""What stopped it; anything else it died of."""


INTERIOR = {"solver": "ipm", "run_crossover": "off"}

BRANCHING = {"mip_heuristic_effort": 0.0}
"""Schedules come from the search beside it: the solver is to prove."""

IN_LP = (
    highspy.cb.HighsCallbackType.kCallbackSimplexInterrupt,
    highspy.cb.HighsCallbackType.kCallbackIpmInterrupt,
)
INTERESTING = (
    highspy.cb.HighsCallbackType.kCallbackMipLogging,
    highspy.cb.HighsCallbackType.kCallbackMipInterrupt,
)
"""When it asks whether to go on, in an LP and in branch and bound."""


class _Highs(pulp.HiGHS):  # type: ignore[misc]
    """PuLP builds the model; here it is run. PuLP's own warm start is of 4 only."""

    start: Sequence[float] | None = None
    tell: Tell | None = None
    offset = 0.0

    def callSolver(self, lp: Any) -> None:  # noqa: N802  PuLP's name
        """Give it the first solution, listen, and run."""
        model = lp.solverModel
        if self.start is not None:
            known = np.arange(len(self.start), dtype=np.int32)
            model.setSolution(len(known), known, np.asarray(self.start, dtype=np.float64))
        if self.tell is not None:
            model.setCallback(self._hear, None)
            for kind in INTERESTING if self.mip else IN_LP:
                model.startCallback(kind)
        model.run()

    def _hear(self, kind: Any, message: str, said: Any, answer: Any, data: Any) -> None:
        assert self.tell is not None
        if kind in IN_LP:
            if self.tell(inf, -inf, 0):
                answer.user_interrupt = True
            return
        best = said.mip_primal_bound + self.offset
        if self.tell(best, said.mip_dual_bound + self.offset, int(said.mip_node_count)):
            answer.user_interrupt = True


def solve_with_highs(
    problem: Any,
    milp: Milp,
    *,
    relaxed: bool,
    interior: bool,
    seconds: float,
    threads: int,
    start: Sequence[float] | None,
    gap: float,
    tell: Tell | None,
) -> Solved:
    """As `solver.solve`; the variables of the program are HiGHS's columns, in their order."""
    from oracle.solver import Solved  # noqa: PLC0415  which imports this module

    solver = _Highs(
        mip=not relaxed, msg=False, gapRel=gap, threads=threads,
        timeLimit=None if seconds == inf else max(0.01, seconds),
        **(INTERIOR if relaxed and interior else {} if relaxed else BRANCHING),
    )  # fmt: skip
    solver.start, solver.offset = (None if relaxed else start), milp.offset
    solver.tell = tell
    solver.createAndConfigureSolver(problem)
    solver.buildSolverModel(problem)
    solver.callSolver(problem)
    model = problem.solverModel
    status = STOPPED.get(model.getModelStatus())
    if status is None and relaxed and interior:  # it did not converge; the simplex method does
        model.setOptionValue("solver", "simplex")
        solver.callSolver(problem)
        status = STOPPED.get(model.getModelStatus())
    if status is None:
        raise SolverError(f"HiGHS: died ({model.getModelStatus()}); give a longer --slot")
    if status == "infeasible":
        return Solved(status, None, inf, inf)
    info = model.getInfo()
    if relaxed:
        if status != "optimal":
            return Solved(status, None, inf, -inf)
        cost = info.objective_function_value + milp.offset
        solution = model.getSolution()
        return Solved(status, list(solution.col_value), cost, cost, list(solution.row_dual))
    found = info.objective_function_value < highspy.kHighsInf
    values = list(model.getSolution().col_value) if found else None
    cost = info.objective_function_value + milp.offset if found else inf
    return Solved(status, values, cost, info.mip_dual_bound + milp.offset)


ROUNDS = 8
"""Rounds of cuts after which those that bind nothing are thrown out."""


def tightened(
    problem: Any,
    milp: Milp,
    broken: Callable[[Sequence[float]], list[Row]],
    until: float,
    rose: Callable[[float], None],
    stop: Callable[[], bool],
) -> list[Row]:
    """Add the rows that the LP's solution breaks, solve it again from where it was, and so on.

    The rows that bind in the end; `rose` is told each bound. `problem` is the LP in PuLP.
    """
    solver = _Highs(mip=False, msg=False, threads=1)
    solver.tell = lambda *_: stop()
    solver.createAndConfigureSolver(problem)
    solver.buildSolverModel(problem)
    model, first = problem.solverModel, len(milp.rows)
    kept: list[Row] = []
    for rounds in count(1):
        model.setOptionValue("time_limit", model.getRunTime() + max(0.01, until - perf_counter()))
        if rounds == 1:
            solver.callSolver(problem)
        else:
            model.run()
        if stop() or model.getModelStatus() != STATUS.kOptimal:
            break
        rose(model.getInfo().objective_function_value + milp.offset)
        if not rounds % ROUNDS:
            kept = _thrown_out(model, first, kept)
        rows = broken(list(model.getSolution().col_value))
        if not rows:
            break
        for row in rows:
            at = np.asarray(row.variables, dtype=np.int32)
            weights = np.asarray(row.coefficients, dtype=np.float64)
            model.addRow(-highspy.kHighsInf, row.high, len(at), at, weights)
        kept += rows
    return kept


def _thrown_out(model: Any, first: int, kept: Sequence[Row]) -> list[Row]:
    """Delete the rows from `first` on that bind nothing; those that are left."""
    status = model.getBasis().row_status[first:]
    loose = [i for i, s in enumerate(status) if s == highspy.HighsBasisStatus.kBasic]
    if loose:
        model.deleteRows(len(loose), np.asarray(loose, dtype=np.int32) + np.int32(first))
    gone = set(loose)
    return [row for i, row in enumerate(kept) if i not in gone]
