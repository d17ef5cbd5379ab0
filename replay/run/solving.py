"""How a replay solves the programs of policies: at once, with limits on work alone."""

from __future__ import annotations

from sia.contract.solvers import answer, chosen
from sia.decisions import SolveProgram
from sia.events import ProgramSolved


class ReplaySolver:
    """Solves each program when a policy asks; the answer arrives after a time of the log.

    Wall-clock time does not matter, so the same replay gives the same bytes on every machine.

    Attributes:
        solved: The number of programs so far.
        failed: The number of those that the solver failed to solve.
        why: What went wrong the first time, in one line.
    """

    def __init__(self, solver: str | None, latency: float) -> None:
        """Use the solver of this name, by default the best one, and so many seconds each time.

        Raises SolverError if there is no such solver.
        """
        chosen(solver)
        self._solver, self._latency = solver, latency
        self.solved = self.failed = 0
        self.why = ""

    def __call__(self, now: float, asked: SolveProgram) -> ProgramSolved:
        """Return the answer, whose time is when it arrives."""
        event, why = answer(now + self._latency, asked, timed=False, solver=self._solver)
        self.solved += 1
        self.failed += event.status == "failed"
        self.why = self.why or why
        return event
