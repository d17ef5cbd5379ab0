"""Solvers for the programs of a policy in a playout, with limits on their work and their time.

They run in the child process of the playout, so only the caller's question waits for them.
"""

from __future__ import annotations

from replay.run.solving import ReplaySolver
from sia.contract.policy import Policy
from sia.contract.solvers import SolverError
from sia.core.playout import Solve, no_solver
from sia.wording import counted


class PlayoutSolvers:
    """Make a solver for each playout of a question, and note which programs stayed unsolved."""

    def __init__(self, policy: Policy, solver: str | None, seconds: float) -> None:
        """Use the solver of this name, by default the best one.

        All playouts together may use `seconds` of wall-clock time; each program also has its own
        limit on work. Once the time is used up, the policy decides as after a failed program.
        """
        self._needed, self._solver, self._seconds = policy.needs.solver, solver, seconds
        self._used: list[ReplaySolver] = []
        self._missing = ""

    def share(self, playouts: int = 1) -> Solve:
        """Return a solver that may use the time of one of `playouts` playouts."""
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
        """Return a line for each reason why programs were not solved, with what is assumed."""
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
                f"{counted(solved, 'program')}: after that, assumes that jobs start without the "
                "policy's planner"
            )
        return found
