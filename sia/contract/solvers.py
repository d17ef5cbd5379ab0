"""Solvers of programs, found by entry point `sia.solvers`, and how drivers call them.

A solver is a class of another package; `oracle/solver` has those that come with SIA.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import compress
from math import inf, isfinite
from typing import ClassVar, NamedTuple

from sia.contract.plugins import PluginError, load_plugin, plugins
from sia.decisions import SolveProgram
from sia.events import ProgramSolved, SolveStatus
from sia.program import Program
from sia.wording import did_you_mean

SOLVERS = "sia.solvers"
"""The entry point group of solvers."""

INSTALL = "install one with: pip install highspy"

SolverCallback = Callable[[float, float, int], bool]
"""Called from time to time with the best cost, the bound and the nodes; True stops the solver."""


OnIncumbent = Callable[[Sequence[float]], object]
"""Called with the values of each new best solution."""


class SolverError(PluginError):
    """The solver is not installed, or it crashed."""


class Solved(NamedTuple):
    """The result of a solver. `values` is None without a solution; `bound` is a lower bound.

    `status` is "optimal", "infeasible", "time" (the time limit), "limit" (a limit on work) or
    "interrupted" (by the callback).
    """

    status: str
    values: list[float] | None
    cost: float
    bound: float
    duals: list[float] | None = None
    """Duals of the rows, for an LP that HiGHS solved."""


class SolverRequest(NamedTuple):
    """How to solve a program. Equal requests give equal results, unless `seconds` stops one.

    Attributes:
        relaxed: Solve the LP: all variables may be fractions.
        interior: Solve an LP by interior points if the solver can.
        seconds: Limit on wall-clock time.
        start: A first solution, for a program with whole numbers.
        gap: Relative gap between cost and bound at which to stop.
        progress: Called from time to time.
        improved: Called with each better solution.
        nodes: Limit on nodes of branch and bound; None for none.
        iterations: Limit on simplex iterations, as far as the solver counts them; None for none.
        heuristics: Whether the solver searches for solutions by other methods than branching.
    """

    relaxed: bool = False
    interior: bool = False
    seconds: float = inf
    start: Sequence[float] | None = None
    gap: float = 0.0
    progress: SolverCallback | None = None
    improved: OnIncumbent | None = None
    nodes: int | None = None
    iterations: int | None = None
    heuristics: bool = False


class Solver:
    """Base of the solvers; each is a class under entry point `sia.solvers`, and has no state."""

    rank: ClassVar[int] = 100
    """The installed solver with the lowest rank is used."""

    @classmethod
    def available(cls) -> bool:
        """Return whether the solver can be used here."""
        return True

    @classmethod
    def solve(cls, program: Program, request: SolverRequest) -> Solved:
        """Solve a program with at least one variable. Raises SolverError for a crash."""
        raise NotImplementedError


def solvers() -> list[str]:
    """Return the names of the solvers that can be used here, best first."""
    return [name for name, solver in _loaded().items() if solver.available()]


def _loaded() -> dict[str, type[Solver]]:
    """Return the solvers whose packages are installed, best first."""
    found: dict[str, type[Solver]] = {}
    for name in plugins(SOLVERS):
        try:
            found[name] = load_plugin(SOLVERS, name)
        except PluginError:
            continue
    return dict(sorted(found.items(), key=lambda item: (item[1].rank, item[0])))


def chosen(solver: str | None = None) -> type[Solver]:
    """Return the solver of this name, by default the best one.

    Raises SolverError if it cannot be used here, or if there is none.
    """
    loaded = _loaded()
    if solver is None:  # asking each of them takes longer than solving a small program
        for best in loaded.values():
            if best.available():
                return best
        raise SolverError(f"no solver is installed; {INSTALL}")
    names = solvers()
    if solver not in names:
        use = f"use one of {', '.join(names)}." if names else INSTALL
        raise SolverError(f"solver {solver}: not installed; {use}{did_you_mean(solver, names)}")
    return loaded[solver]


def solve(
    program: Program,
    *,
    relaxed: bool = False,
    interior: bool = False,
    seconds: float = inf,
    start: Sequence[float] | None = None,
    gap: float = 0.0,
    progress: SolverCallback | None = None,
    improved: OnIncumbent | None = None,
    nodes: int | None = None,
    iterations: int | None = None,
    heuristics: bool = False,
    solver: str | None = None,
) -> Solved:
    """Solve a program, or its LP if `relaxed`; see `SolverRequest`.

    With `interior`, HiGHS solves an LP by the interior-point method. This is four times faster on
    large LPs, but the solution is not a vertex, and its cost is not a valid bound.

    Raises SolverError if the solver is not installed or crashes.
    """
    one = chosen(solver)
    if program.impossible:
        return Solved("infeasible", None, inf, inf)
    if not program.costs:
        return Solved("optimal", [], program.offset, program.offset)
    relaxed = relaxed or not any(program.whole)  # solvers report no MIP bound for an LP
    request = SolverRequest(
        relaxed, interior, seconds, start, gap, progress, improved, nodes, iterations, heuristics
    )
    return one.solve(program, request)


class SolverAnswer(NamedTuple):
    """The answer to a core's request, and one line on the problem if its status is `failed`."""

    event: ProgramSolved
    why: str = ""


def answer(
    now: float, asked: SolveProgram, *, timed: bool, solver: str | None = None
) -> SolverAnswer:
    """Solve a core's request; the answer carries the time `now`.

    The limits on work always hold; the limit on seconds only if `timed`. Whole variables of the
    answer are exactly whole. If the solver raises an exception, the answer has status `failed`.
    """
    program, limit = asked.program, asked.limit
    try:
        solved = solve(
            program,
            seconds=limit.seconds if timed else inf,
            start=asked.start or None,
            gap=limit.gap,
            nodes=limit.nodes,
            iterations=limit.iterations,
            heuristics=True,
            solver=solver,
        )
    except Exception as error:  # noqa: BLE001  a defect of a solver must not stop the scheduler
        known = isinstance(error, SolverError)
        return failed(now, asked, str(error) if known else f"the solver crashed: {error!r}")
    if solved.status == "infeasible":
        return SolverAnswer(ProgramSolved(now, asked.request, "infeasible"))
    bound = solved.bound if isfinite(solved.bound) else None
    if solved.values is None:
        return SolverAnswer(ProgramSolved(now, asked.request, "limit", bound=bound))
    status: SolveStatus = "optimal" if solved.status == "optimal" else "feasible"
    values = _rounded(program, solved.values)
    return verified(asked, ProgramSolved(now, asked.request, status, values, bound))


def _rounded(program: Program, values: Sequence[float]) -> Sequence[float]:
    """Return the values, with those of whole variables rounded to exact whole numbers."""
    found = [*values]
    if len(found) == len(program.whole):
        for column in compress(range(len(found)), program.whole):
            if isfinite(found[column]):
                found[column] = float(round(found[column]))
    return found


def verified(asked: SolveProgram, event: ProgramSolved) -> SolverAnswer:
    """Return the answer, or one of status `failed` if it does not fit the request. O(nonzeros).

    A driver that got the answer from another process calls this before the core sees it.
    """
    if event.request != asked.request:
        return failed(event.time, asked, f"it answered request {event.request}")
    if event.status in ("optimal", "feasible"):
        wrong = asked.program.violation(event.values)
    else:
        wrong = "values without a solution" if event.values else ""
    if wrong:
        return failed(event.time, asked, f"the solver's answer is wrong: {wrong}")
    return SolverAnswer(event)


def failed(now: float, asked: SolveProgram, why: str) -> SolverAnswer:
    """Return the answer to a request that no solver could answer."""
    return SolverAnswer(ProgramSolved(now, asked.request, "failed"), why)
