"""How often the present is played forward, in how many worlds: as the machine bears it. Pure."""

from __future__ import annotations

from daemon.answers.estimates.worlds import WORLDS

FEWER = (WORLDS, 11, 5)
"""Possible worlds, some half as many after each failure. The 90th of 100 is the last of 5 then,
which calibration mends. Primes, as `Lasting.chances` asks for."""

WITHIN = 600.0
"""Seconds that a playout may take: 20,000 jobs take three minutes of a core."""

ANSWER = 5.0
"""Seconds that a question may have the present played forward for: people wait that long."""

A_JOB = 2e-4
"""Seconds of a world for each job that is there, as 20,000 take (`benchmarks/daemon_eta_speed.py`):
for a question that comes before the present was played forward at all."""

SELDOM = 4 * 3600.0
"""Seconds between two tries at most: a queue that is too long by day may be played by night."""


class SimulationBudget:
    """Half as many worlds and twice the wait after each failure; more again where they fit.

    Attributes:
        worlds: How many to play next.
        wait: Seconds before that.
        failures: Playouts that took too long or were ended.
    """

    def __init__(self, every: float) -> None:
        """Begin with all of them, `every` so many seconds."""
        self._every, self._place = every, 0
        self.wait, self.failures = every, 0
        self._took = 0.0  # seconds for each world of the newest playout

    @property
    def worlds(self) -> int:
        """How many to play next."""
        return FEWER[self._place]

    def fits(self, jobs: int) -> int:
        """Worlds that can be played while somebody waits, of so many jobs; 0 if even few cannot."""
        each = max(self._took, jobs * A_JOB)
        return next((count for count in FEWER if count * each <= ANSWER), 0)

    def done(self, took: float) -> None:
        """A playout took so many seconds: rest as long as that."""
        self.wait, self._took = max(self._every, took), took / self.worlds
        if self._place and took * FEWER[self._place - 1] / self.worlds < WITHIN / 2:
            self._place -= 1

    def failed(self, took: float) -> None:
        """A playout came to nothing after so many seconds: it took too long, or was ended."""
        self.failures += 1
        self._place = min(self._place + 1, len(FEWER) - 1)
        self.wait = min(max(2 * self.wait, took), SELDOM)
