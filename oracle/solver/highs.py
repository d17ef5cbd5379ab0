"""HiGHS through PuLP, with warm starts and progress callbacks."""

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

# An interrupted LP leaves threads of HiGHS behind, which would abort the process at exit.
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
"""Statuses by HiGHS status; any other status is a crash."""

INTERIOR = {"solver": "ipm", "run_crossover": "off"}

BRANCHING = {"mip_heuristic_effort": 0.0}
"""The search finds schedules, so the solver spends no time on heuristics."""

IN_LP = (
    highspy.cb.HighsCallbackType.kCallbackSimplexInterrupt,
    highspy.cb.HighsCallbackType.kCallbackIpmInterrupt,
)
INTERESTING = (
    highspy.cb.HighsCallbackType.kCallbackMipLogging,
    highspy.cb.HighsCallbackType.kCallbackMipInterrupt,
)
"""Callback kinds at which HiGHS can be interrupted, in an LP and in branch and bound."""

BETTER = highspy.cb.HighsCallbackType.kCallbackMipImprovingSolution
"""Callback kind of a new best solution."""


DUAL, PRIMAL = 1, 4
"""HiGHS's codes of the simplex methods."""

PROBE, NO_LIMIT = 100, 2**31 - 1
"""Dual simplex iterations of a probe, and HiGHS's default limit."""

Entries = tuple[Counts, Floats]
"""The non-zero entries of a column (rows and values) or of a row (columns and values)."""


class _Highs(pulp.HiGHS):  # type: ignore[misc]
    """Run the model that PuLP builds, with a warm start, which PuLP supports only from 4 on."""

    start: Sequence[float] | None = None
    progress: SolverCallback | None = None
    improved: OnIncumbent | None = None
    offset = 0.0

    def callSolver(self, lp: Any) -> None:  # noqa: N802  PuLP's name
        """Set the warm start and the callbacks, and run the model."""
        model = lp.solverModel
        if self.start is not None:
            known = np.arange(len(self.start), dtype=np.int32)
            model.setSolution(len(known), known, np.asarray(self.start, dtype=np.float64))
        if self.progress is not None:
            model.setCallback(self._on_event, None)
            for kind in (*INTERESTING, BETTER) if self.mip else IN_LP:
                model.startCallback(kind)
        model.run()

    def _on_event(self, kind: Any, message: str, event: Any, answer: Any, data: Any) -> None:
        assert self.progress is not None
        if kind in IN_LP:
            if self.progress(inf, -inf, 0):
                answer.user_interrupt = True
            return
        if kind == BETTER:
            if self.improved is not None:
                self.improved(list(event.mip_solution))
            return
        best = event.mip_primal_bound + self.offset
        if self.progress(best, event.mip_dual_bound + self.offset, int(event.mip_node_count)):
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
    solver.progress, solver.improved = request.progress, request.improved
    solver.createAndConfigureSolver(problem)
    solver.buildSolverModel(problem)
    solver.callSolver(problem)
    model = problem.solverModel
    if relaxed and interior and model.getModelStatus() not in STOPPED:
        # The interior-point method did not converge; fall back to the simplex method.
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
    """Return why HiGHS stopped. Raises MemoryError, or SolverError for a crash."""
    status = model.getModelStatus()
    if status == STATUS.kMemoryLimit:
        raise MemoryError
    if status not in STOPPED:
        raise SolverError(f"HiGHS: stopped unexpectedly ({status}); use a longer --slot")
    return STOPPED[status]


def _of_lp(model: Any, offset: float) -> Solved:
    """Return the result of an LP; it has values only if it was solved to optimality."""
    status = _status(model)
    if status != "optimal":
        return Solved(status, None, inf, inf if status == "infeasible" else -inf)
    cost = model.getInfo().objective_function_value + offset
    solution = model.getSolution()
    return Solved(status, list(solution.col_value), cost, cost, list(solution.row_dual))


class Lp:
    """An LP that is solved repeatedly with a warm start while columns and rows are added."""

    def __init__(self, rows: Sequence[tuple[float, float]], stop: Callable[[], bool]) -> None:
        """Create empty rows with these (low, high) bounds. No solve begins once `stop` is true."""
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
        """Number of non-zero coefficients."""
        return int(self._model.getNumNz())

    def solve(self, until: float) -> Solved:
        """Solve the LP until the clock reads `until` (seconds).

        There are no callbacks during a solve, because they would wait for the search's thread.
        """
        model = self._model
        left = until - perf_counter()
        if left <= 0 or self._stop():
            return Solved("time", None, inf, -inf)
        model.setOptionValue("time_limit", model.getRunTime() + left)
        model.run()
        return _of_lp(model, 0.0)

    def add_columns(self, costs: Floats, highs: Floats, entries: Sequence[Entries]) -> None:
        """Add variables between 0 and `highs` with these entries.

        The last basis stays primal feasible, so the primal simplex method continues from it.
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
        """Add rows with these entries and the upper bounds `highs`.

        After this and after changes of bounds, the dual simplex method continues from the basis.
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
        """Set the upper bounds of all variables."""
        columns = np.arange(self._count, dtype=np.int32)
        self._model.changeColsBounds(self._count, columns, np.zeros(self._count), highs)
        self._model.setOptionValue("simplex_strategy", DUAL)

    def probe(self, columns: Counts, highs: Sequence[Floats], before: Floats) -> list[float]:
        """Estimate the cost with each of these upper bounds of `columns` by a few iterations.

        Restores the basis and the bounds `before`. The cost is -inf if `stop` is true.
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

    def delete_loose_rows(self) -> list[int]:
        """Delete added rows that are not binding; return their indices among the added rows."""
        status = self._model.getBasis().row_status[self._own :]
        loose = [i for i, s in enumerate(status) if s == highspy.HighsBasisStatus.kBasic]
        if loose:
            at = np.asarray(loose, dtype=np.int32) + np.int32(self._own)
            self._model.deleteRows(len(loose), at)
        return loose
