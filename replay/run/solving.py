"""Solves the programs of policies in playouts: synchronously, with limits on the work.

Replays use it, and so does the daemon when it answers questions about the future.
"""

from __future__ import annotations

from math import inf
from time import perf_counter

from msgspec.structs import replace

from sia.contract.solvers import SolverAnswer, answer, chosen, failed
from sia.decisions import SolveProgram
from sia.events import ProgramSolved

LATE = "the time for solving was over"


class ReplaySolver:
    """Solves each program when a policy asks; the answer arrives after a time of the log.

    Without a limit on wall-clock time the same playout gives the same bytes on every machine.

    Attributes:
        solved: The number of programs so far.
        failed: The number of those for which the solver failed.
        late: The number of those that came after the limit on wall-clock time.
        why: The first error, in one line.
    """

    def __init__(self, solver: str | None, latency: float, seconds: float = inf) -> None:
        """Use the solver of this name, by default the best one; answers take `latency` seconds.

        `seconds` limits the wall-clock time of all programs together. Raises SolverError if there
        is no such solver.
        """
        chosen(solver)
        self._solver, self._latency = solver, latency
        self._limited, self._left = seconds < inf, seconds
        self.solved = self.failed = self.late = 0
        self.why = ""

    def __call__(self, now: float, asked: SolveProgram) -> ProgramSolved:
        """Return the answer; its time is the time when it arrives."""
        then = now + self._latency
        if self._limited:
            event, why = self._in_time(then, asked)
        else:
            event, why = answer(then, asked, timed=False, solver=self._solver)
        self.solved += 1
        self.failed += event.status == "failed"
        self.why = self.why or why
        return event

    def _in_time(self, then: float, asked: SolveProgram) -> SolverAnswer:
        if self._left <= 0:
            self.late += 1
            return failed(then, asked, LATE)
        began, limit = perf_counter(), asked.limit
        limit = replace(limit, seconds=min(limit.seconds, self._left))
        found = answer(then, replace(asked, limit=limit), timed=True, solver=self._solver)
        self._left -= perf_counter() - began
        return found
