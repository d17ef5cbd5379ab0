"""HiGHS through PuLP, with a first solution and with word of how it goes."""

from __future__ import annotations

import atexit
from collections.abc import Callable, Sequence
from math import inf
from time import perf_counter
from typing import Any

import highspy
import numpy as np
import pulp

from oracle.arrays import Counts, Floats
from oracle.errors import SolverError
from oracle.solver.in_pulp import in_pulp
from oracle.solver.program import (
    Milp,
    OnIncumbent,
    Solved,
    Solver,
    SolverCallback,
    SolverRequest,
)

# an LP that is interrupted leaves threads of HiGHS behind, which abort the process at its end
atexit.register(highspy.Highs.resetGlobalScheduler, True)  # noqa: FBT003  highspy's

STATUS = highspy.HighsModelStatus
STOPPED = {
    STATUS.kOptimal: "optimal",
    STATUS.kInfeasible: "infeasible",
    STATUS.kUnboundedOrInfeasible: "infeasible",
    STATUS.kTimeLimit: "time",
    STATUS.kInterrupt: "interrupted",
    STATUS.kSolutionLimit: "optimal",
}
"""What stopped it; anything else it died of, for want of memory or otherwise."""

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

BETTER = highspy.cb.HighsCallbackType.kCallbackMipImprovingSolution
"""When it has found a better solution."""


DUAL, PRIMAL = 1, 4
"""HiGHS's numbers of the simplex methods."""

PROBE, NO_LIMIT = 100, 2**31 - 1
"""Steps of the dual simplex method that tell a good branch from a bad one; HiGHS's own limit."""

Entries = tuple[Counts, Floats]
"""A column's: rows, and values; or a row's: columns, and values."""


class _Highs(pulp.HiGHS):  # type: ignore[misc]
    """PuLP builds the model; here it is run. PuLP's own warm start is of 4 only."""

    start: Sequence[float] | None = None
    tell: SolverCallback | None = None
    took: OnIncumbent | None = None
    offset = 0.0

    def callSolver(self, lp: Any) -> None:  # noqa: N802  PuLP's name
        """Give it the first solution, listen, and run."""
        model = lp.solverModel
        if self.start is not None:
            known = np.arange(len(self.start), dtype=np.int32)
            model.setSolution(len(known), known, np.asarray(self.start, dtype=np.float64))
        if self.tell is not None:
            model.setCallback(self._hear, None)
            for kind in (*INTERESTING, BETTER) if self.mip else IN_LP:
                model.startCallback(kind)
        model.run()

    def _hear(self, kind: Any, message: str, said: Any, answer: Any, data: Any) -> None:
        assert self.tell is not None
        if kind in IN_LP:
            if self.tell(inf, -inf, 0):
                answer.user_interrupt = True
            return
        if kind == BETTER:
            if self.took is not None:
                self.took(list(said.mip_solution))
            return
        best = said.mip_primal_bound + self.offset
        if self.tell(best, said.mip_dual_bound + self.offset, int(said.mip_node_count)):
            answer.user_interrupt = True


class HighsSolver(Solver):
    """HiGHS in this process."""

    rank = 0

    @classmethod
    def solve(cls, milp: Milp, request: SolverRequest) -> Solved:
        """Solve a program; its variables are HiGHS's columns, in their order."""
        return _solve_with_highs(milp, request)


def _solve_with_highs(milp: Milp, request: SolverRequest) -> Solved:
    relaxed, interior, seconds = request.relaxed, request.interior, request.seconds
    problem, _ = in_pulp(milp, relaxed=relaxed)
    solver = _Highs(
        mip=not relaxed, msg=False, gapRel=request.gap, threads=1,
        timeLimit=None if seconds == inf else max(0.01, seconds),
        **(INTERIOR if relaxed and interior else {} if relaxed else BRANCHING),
    )  # fmt: skip
    solver.start, solver.offset = (None if relaxed else request.start), milp.offset
    solver.tell, solver.took = request.tell, request.took
    solver.createAndConfigureSolver(problem)
    solver.buildSolverModel(problem)
    solver.callSolver(problem)
    model = problem.solverModel
    if relaxed and interior and model.getModelStatus() not in STOPPED:
        # it did not converge; the simplex method does
        model.setOptionValue("solver", "simplex")
        solver.callSolver(problem)
    if relaxed:
        return _of_lp(model, milp.offset)
    status = _status(model)
    if status == "infeasible":
        return Solved(status, None, inf, inf)
    info = model.getInfo()
    found = info.objective_function_value < highspy.kHighsInf
    values = list(model.getSolution().col_value) if found else None
    cost = info.objective_function_value + milp.offset if found else inf
    return Solved(status, values, cost, info.mip_dual_bound + milp.offset)


def _status(model: Any) -> str:
    """What stopped it. Raises MemoryError where memory did, SolverError where it died."""
    said = model.getModelStatus()
    if said == STATUS.kMemoryLimit:
        raise MemoryError
    if said not in STOPPED:
        raise SolverError(f"HiGHS: died ({said}); give a longer --slot")
    return STOPPED[said]


def _of_lp(model: Any, offset: float) -> Solved:
    """What came of an LP; its values are worth nothing before its end."""
    status = _status(model)
    if status != "optimal":
        return Solved(status, None, inf, inf if status == "infeasible" else -inf)
    cost = model.getInfo().objective_function_value + offset
    solution = model.getSolution()
    return Solved(status, list(solution.col_value), cost, cost, list(solution.row_dual))


class Lp:
    """An LP that is solved again and again, each time from where it was; columns and rows come."""

    def __init__(self, rows: Sequence[tuple[float, float]], stop: Callable[[], bool]) -> None:
        """Begin with empty rows between such bounds. It is given up as soon as `stop` says so."""
        model: Any = highspy.Highs()  # type: ignore[no-untyped-call]
        for option, value in (("output_flag", False), ("threads", 1)):
            model.setOptionValue(option, value)
        lows, highs = np.array(rows, dtype=np.float64).T
        none = np.zeros(0, dtype=np.int32)
        begin = np.zeros(len(rows), dtype=np.int32)
        model.addRows(len(rows), lows, highs, 0, begin, none, none.astype(np.float64))
        self._model, self._stop, self._own, self._count = model, stop, len(rows), 0

    @property
    def entries(self) -> int:
        """Of all rows."""
        return int(self._model.getNumNz())

    def solve(self, until: float) -> Solved:
        """Solve it until the clock reads `until` (seconds).

        It is not asked whether to go on at each step: the search beside it would be in the way.
        """
        model = self._model
        left = until - perf_counter()
        if left <= 0 or self._stop():
            return Solved("time", None, inf, -inf)
        model.setOptionValue("time_limit", model.getRunTime() + left)
        model.run()
        return _of_lp(model, 0.0)

    def add_columns(self, costs: Floats, highs: Floats, entries: Sequence[Entries]) -> None:
        """Add variables between 0 and `highs`, of such entries in the rows.

        The last basis keeps all rows then: the primal simplex method goes on from it.
        """
        begin = np.cumsum([0, *(len(rows) for rows, _ in entries)])
        self._model.addCols(
            len(entries), costs, np.zeros(len(entries)), highs, int(begin[-1]),
            begin[:-1].astype(np.int32),
            np.concatenate([rows for rows, _ in entries]).astype(np.int32),
            np.concatenate([values for _, values in entries]),
        )  # fmt: skip
        self._count += len(entries)
        self._model.setOptionValue("simplex_strategy", PRIMAL)

    def add_rows(self, entries: Sequence[Entries], highs: Floats) -> None:
        """Add rows of such entries in the columns, up to `highs`.

        Here and where bounds change, the dual simplex method goes on.
        """
        begin = np.cumsum([0, *(len(columns) for columns, _ in entries)])
        self._model.addRows(
            len(entries), np.full(len(entries), -highspy.kHighsInf), highs, int(begin[-1]),
            begin[:-1].astype(np.int32),
            np.concatenate([columns for columns, _ in entries]).astype(np.int32),
            np.concatenate([values for _, values in entries]),
        )  # fmt: skip
        self._model.setOptionValue("simplex_strategy", DUAL)

    def limit(self, highs: Floats) -> None:
        """Bound all variables anew."""
        columns = np.arange(self._count, dtype=np.int32)
        self._model.changeColsBounds(self._count, columns, np.zeros(self._count), highs)
        self._model.setOptionValue("simplex_strategy", DUAL)

    def probe(self, columns: Counts, highs: Sequence[Floats], before: Floats) -> list[float]:
        """What it costs with each of such bounds of these variables, as far as a few steps tell.

        It stands where it stood before then, with the bounds `before`. -inf where it is given up.
        """
        model, at, none = self._model, columns.astype(np.int32), np.zeros(len(columns))
        basis, costs = model.getBasis(), list[float]()
        model.setOptionValue("simplex_strategy", DUAL)
        model.setOptionValue("simplex_iteration_limit", PROBE)
        for high in highs:
            if self._stop():
                costs.append(-inf)
                continue
            model.changeColsBounds(len(at), at, none, high)
            model.run()
            costs.append(float(model.getInfo().objective_function_value))
            model.changeColsBounds(len(at), at, none, before)
            model.setBasis(basis)
        model.setOptionValue("simplex_iteration_limit", NO_LIMIT)
        return costs

    def throw_out(self) -> list[int]:
        """Delete added rows that bind nothing; which of them, counted from the first added."""
        status = self._model.getBasis().row_status[self._own :]
        loose = [i for i, s in enumerate(status) if s == highspy.HighsBasisStatus.kBasic]
        if loose:
            at = np.asarray(loose, dtype=np.int32) + np.int32(self._own)
            self._model.deleteRows(len(loose), at)
        return loose
