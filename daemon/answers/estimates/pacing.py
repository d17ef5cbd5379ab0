"""Choose the interval and the number of simulated worlds by the speed of the machine. Pure."""

from __future__ import annotations

from daemon.answers.estimates.worlds import WORLDS

FEWER = (WORLDS, 11, 5)
"""Numbers of worlds; each failure moves to the next one, about half as many. With 5 worlds the p90
is the last result, which calibration corrects. All are primes, as `RunTimeDistributions.chances`
requires."""

WITHIN = 600.0
"""Time limit of a simulation in seconds; 20,000 jobs take three minutes of one core."""

ANSWER = 5.0
"""Maximum duration in seconds of a simulation for a question of a user who waits for the answer."""

A_JOB = 2e-4
"""Seconds per world and job, measured with 20,000 jobs (`benchmarks/answers/eta_speed.py`).

Used for questions that arrive before the first simulation has ended."""

SELDOM = 4 * 3600.0
"""Maximum seconds between two attempts. A queue that is too long for a simulation by day may be
short enough at night."""


class SimulationBudget:
    """Halve the worlds and double the interval after each failure; add worlds again if they fit.

    Attributes:
        worlds: Number of worlds of the next simulation.
        wait: Seconds until the next simulation.
        rest: Minimum seconds until the next simulation if a job needs it before `wait`. As long as
            the newest simulation took, so that simulations use at most half of one core.
        failures: Number of simulations that took too long or were killed.
    """

    def __init__(self, every: float) -> None:
        """Start with all worlds, and simulate every `every` seconds."""
        self._every, self._place = every, 0
        self.wait, self.failures, self.rest = every, 0, 0.0
        self._took = 0.0  # seconds per world of the newest simulation

    @property
    def worlds(self) -> int:
        """Number of worlds of the next simulation."""
        return FEWER[self._place]

    def fits(self, jobs: int) -> int:
        """Return how many worlds with `jobs` jobs fit into `ANSWER` seconds; 0 if too few do."""
        each = max(self._took, jobs * A_JOB)
        return next((count for count in FEWER if count * each <= ANSWER), 0)

    def done(self, took: float) -> None:
        """Record a simulation that completed in `took` seconds; rest for at least as long."""
        self.wait, self.rest, self._took = max(self._every, took), took, took / self.worlds
        if self._place and took * FEWER[self._place - 1] / self.worlds < WITHIN / 2:
            self._place -= 1

    def failed(self, took: float) -> None:
        """Record a simulation that was killed or timed out after `took` seconds."""
        self.failures += 1
        self._place = min(self._place + 1, len(FEWER) - 1)
        self.wait = self.rest = min(max(2 * self.wait, took), SELDOM)
