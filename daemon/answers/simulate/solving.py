"""Solvers of the programs that a policy asks for in a playout: limited work, and limited time.

They run where the playout runs, in a child process, so nobody waits for them but the question.
"""

from __future__ import annotations

from replay.run.solving import ReplaySolver
from sia.contract.policy import Policy
from sia.contract.solvers import SolverError
from sia.core.playout import Solve, no_solver
from sia.wording import counted


class PlayoutSolvers:
    """Makes a solver for each playout of a question, and says what the playouts went without."""

    def __init__(self, policy: Policy, solver: str | None, seconds: float) -> None:
        """Use the solver of this name, by default the best one.

        `seconds` is the limit on wall-clock time of all playouts together; the limits on work are
        those of each program. The policy decides as after a failed program when the time is over.
        """
        self._needed, self._solver, self._seconds = policy.needs.solver, solver, seconds
        self._used: list[ReplaySolver] = []
        self._missing = ""

    def share(self, playouts: int = 1) -> Solve:
        """Return a solver with the time of one of so many playouts."""
        if not self._needed:
            return no_solver
        try:
            made = ReplaySolver(self._solver, 0.0, self._seconds / playouts)
        except SolverError as error:
            self._missing = str(error)
            return no_solver
        self._used.append(made)
        return made

    def notes(self) -> list[str]:
        """Return in one line each what the policy had to decide without."""
        if self._missing:
            return [f"{self._missing}; assumes that jobs start without the policy's planner"]
        solved = sum(each.solved for each in self._used)
        late = sum(each.late for each in self._used)
        broken = sum(each.failed for each in self._used) - late
        found = []
        if broken:
            why = next(each.why for each in self._used if each.failed > each.late)
            found.append(f"the solver failed {broken} of {counted(solved, 'program')}: {why}")
        if late:
            found.append(
                f"{self._seconds:g} s of solving were too few for {late} of "
                f"{counted(solved, 'program')}: from there on assumes that jobs start without the "
                "policy's planner"
            )
        return found
