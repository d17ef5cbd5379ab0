"""HiGHS without PuLP.

With 10,000 columns PuLP takes longer to build a program than arrays do: see
benchmarks/replays/solvers.py.
"""

from __future__ import annotations

import atexit
from collections.abc import Callable, Sequence
from math import inf
from time import perf_counter
from typing import Any

import highspy
import numpy as np

from oracle.arrays import Counts, Floats
from sia.contract.solvers import Solved, Solver, SolverError, SolverRequest
from sia.program import Program

# An interrupted LP leaves threads of HiGHS behind, which would abort the process at exit.
atexit.register(highspy.Highs.resetGlobalScheduler, True)  # noqa: FBT003  highspy's

STATUS = highspy.HighsModelStatus
STOPPED = {
    STATUS.kOptimal: "optimal",
    STATUS.kInfeasible: "infeasible",
    STATUS.kUnboundedOrInfeasible: "infeasible",
    STATUS.kTimeLimit: "time",
    STATUS.kInterrupt: "interrupted",
    STATUS.kSolutionLimit: "limit",
    STATUS.kIterationLimit: "limit",
}
"""Statuses by HiGHS status; any other status is a crash."""

INTERIOR = {"solver": "ipm", "run_crossover": "off"}

BRANCHING = {"mip_heuristic_effort": 0.0}
"""The search finds schedules, so the solver spends no time on heuristics."""

IN_LP = (
    highspy.cb.HighsCallbackType.kCallbackSimplexInterrupt,
    highspy.cb.HighsCallbackType.kCallbackIpmInterrupt,
)
CHECK = highspy.cb.HighsCallbackType.kCallbackMipInterrupt
"""Callback kind of the checks in branch and bound. HiGHS (1.15) reports no simplex iterations
there. So each check counts as one iteration for each row (0.7 to 1.8 iterations were measured); the
checks are at the same points on every machine."""

INTERESTING = (highspy.cb.HighsCallbackType.kCallbackMipLogging, CHECK)
"""Callback kinds at which HiGHS can be interrupted, in an LP and in branch and bound."""

BETTER = highspy.cb.HighsCallbackType.kCallbackMipImprovingSolution
"""Callback kind of a new best solution."""


DENSE = 50
"""Average number of coefficients per row from which a program with limited work is solved without
presolve. In such programs, with many jobs that request few GPUs, presolve takes up to fourteen
times as long as the solve. With half as many coefficients it saves time."""

DUAL, PRIMAL = 1, 4
"""HiGHS's codes of the simplex methods."""

PROBE, NO_LIMIT = 100, 2**31 - 1
"""Maximum number of dual simplex iterations of a probe, and HiGHS's value for no limit."""

Entries = tuple[Counts, Floats]
"""The non-zero entries of a column (rows and values) or of a row (columns and values)."""


class HighsSolver(Solver):
    """HiGHS in this process, which gets the program as arrays."""

    rank = 0

    @classmethod
    def solve(cls, program: Program, request: SolverRequest) -> Solved:
        """Solve a program; its variables are HiGHS's columns, in their order."""
        relaxed, interior = request.relaxed, request.interior
        model = highs_model(program, request)
        dense = program.nonzeros >= DENSE * max(1, len(program.row_lows))
        if dense and request.iterations is not None and not relaxed:
            model.setOptionValue("presolve", "off")
        if request.start is not None and not relaxed:
            known = np.arange(len(request.start), dtype=np.int32)
            model.setSolution(len(known), known, np.asarray(request.start, dtype=np.float64))
        _Watch(program, request).attach(model)
        model.run()
        if relaxed and interior and model.getModelStatus() not in STOPPED:
            # The interior-point method did not converge; fall back to the simplex method.
            model.setOptionValue("solver", "simplex")
            model.run()
        if relaxed:
            return _of_lp(model, program.offset)
        status = _status(model)
        if status == "infeasible":
            return Solved(status, None, inf, inf)
        info = model.getInfo()
        found = info.objective_function_value < highspy.kHighsInf
        values = list(model.getSolution().col_value) if found else None
        cost = info.objective_function_value + program.offset if found else inf
        return Solved(status, values, cost, info.mip_dual_bound + program.offset)


def highs_model(program: Program, request: SolverRequest) -> Any:
    """Return HiGHS with a program, without its offset, and with the options of a request."""
    model: Any = highspy.Highs()  # type: ignore[no-untyped-call]
    relaxed = request.relaxed
    options: dict[str, Any] = {
        "output_flag": False,
        "threads": 1,
        "mip_rel_gap": request.gap,
        **(INTERIOR if relaxed and request.interior else {}),
        **({} if relaxed or request.heuristics else BRANCHING),
    }
    if request.seconds < inf:
        options["time_limit"] = max(0.01, request.seconds)
    if request.nodes is not None:
        options["mip_max_nodes"] = min(request.nodes, NO_LIMIT)
    if request.iterations is not None:
        options["simplex_iteration_limit"] = min(request.iterations, NO_LIMIT)
    for option, value in options.items():
        model.setOptionValue(option, value)
    lp = highspy.HighsLp()
    lp.num_col_, lp.num_row_ = len(program.costs), len(program.row_lows)
    lp.col_cost_ = np.array(program.costs, dtype=np.float64)
    lp.col_lower_ = np.array(program.lows, dtype=np.float64)
    lp.col_upper_ = _bounds(program.highs, inf)
    lp.row_lower_ = _bounds(program.row_lows, -inf)
    lp.row_upper_ = _bounds(program.row_highs, inf)
    matrix = lp.a_matrix_
    matrix.format_ = highspy.MatrixFormat.kRowwise
    matrix.start_ = np.array(program.starts, dtype=np.int32)
    matrix.index_ = np.array(program.columns, dtype=np.int32)
    matrix.value_ = np.array(program.coefficients, dtype=np.float64)
    if not relaxed:
        kinds = highspy.HighsVarType.kContinuous, highspy.HighsVarType.kInteger
        lp.integrality_ = [kinds[whole] for whole in program.whole]
    model.passModel(lp)
    return model


def _bounds(bounds: Sequence[float | None], none: float) -> Floats:
    found = np.array(bounds, dtype=np.float64)  # None becomes NaN
    found[np.isnan(found)] = none
    return found


class _Watch:
    """Receiver of HiGHS's callbacks while it solves a program."""

    def __init__(self, program: Program, request: SolverRequest) -> None:
        """Report the progress of this request.

        HiGHS solves the program without its constant offset, which is added to each objective.
        """
        self._progress, self._improved = request.progress, request.improved
        self._offset, self._relaxed = program.offset, request.relaxed
        self._checks = inf  # number of remaining checks
        if request.iterations is not None and not request.relaxed:
            self._checks = request.iterations / max(1, len(program.row_lows))

    def attach(self, model: Any) -> None:
        """Register the callbacks that the request needs."""
        kinds: Sequence[Any] = (CHECK,) if self._checks < inf else ()
        if self._progress is not None:
            kinds = IN_LP if self._relaxed else (*INTERESTING, BETTER)
        if kinds:
            model.setCallback(self._on_event, None)
        for kind in kinds:
            model.startCallback(kind)

    def _on_event(self, kind: Any, message: str, event: Any, answer: Any, data: Any) -> None:
        if kind == BETTER:
            if self._improved is not None:
                self._improved(list(event.mip_solution))
            return
        self._checks -= kind == CHECK
        if self._checks <= 0 or (self._progress is not None and self._interrupts(kind, event)):
            answer.user_interrupt = True

    def _interrupts(self, kind: Any, event: Any) -> bool:
        """Report progress; return True if the request's owner wants the solve to end."""
        assert self._progress is not None
        if kind in IN_LP:
            return self._progress(inf, -inf, 0)
        best, bound = event.mip_primal_bound + self._offset, event.mip_dual_bound + self._offset
        return self._progress(best, bound, int(event.mip_node_count))


def _status(model: Any) -> str:
    """Return why HiGHS stopped. Raises MemoryError, or SolverError for a crash."""
    status = model.getModelStatus()
    if status == STATUS.kMemoryLimit:
        raise MemoryError
    if status not in STOPPED:
        raise SolverError(
            f"HiGHS: stopped unexpectedly ({status}); try a smaller program (of the oracle: --slot)"
        )
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
