"""Random forecasts: the ablations of Fig. 15a.

Draws depend on the seed and the question, not on earlier calls. Adding a pool or a query does not
change other results.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Self

from predictors.loads.sliding import SlidingMaximum
from sia.forecasts import Loads, PredictorContext, RunTimes
from sia.limits import RECENT, TICK
from sia.model import Job, Load

SEPARATOR = b"\x1f"


def draw(*question: object) -> int:
    """Return a pseudo-random 64-bit number that depends only on the arguments."""
    return _drawn(_text(*question))


def _text(*question: object) -> bytes:
    return SEPARATOR.join(repr(part).encode() for part in question)


def _drawn(text: bytes) -> int:
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "big")


class RandomLoads(Loads):
    """WillJobsArrive by a coin flip for each pool and window at every tick.

    If jobs arrive, TotalNewLoad is the sliding maximum, otherwise 0.
    """

    summary = "a coin decides whether load arrives"
    replay_only = True

    @classmethod
    def build(cls, context: PredictorContext) -> Self:
        """Build a predictor without history."""
        seed, recent = context.seed, context.recent
        return cls(context.pools, context.windows, context.start, seed, recent)

    @classmethod
    def describe(cls, quantile: float | None, recent: int) -> str:
        """Describe the predictor, with the number of windows that it remembers."""
        return f"{cls.summary}, over {recent} windows"

    def __init__(
        self,
        pools: Sequence[str],
        windows: Sequence[float],
        start: float,
        seed: int,
        recent: int = RECENT,
    ) -> None:
        """Start to observe at `start` (seconds). Windows are in seconds."""
        self._sliding = SlidingMaximum(pools, windows, start, recent)
        self._last = {(pool, window): 0 for pool in pools for window in range(len(windows))}
        # The questions at a tick differ only in their end, the tick.
        self._questions = {
            (pool, window): _text(seed, "load", pool, window) + SEPARATOR
            for pool, window in self._last
        }
        self._tick = float("-inf")

    def submitted(self, now: float, job: Job) -> None:
        """Record an arrival in the sliding maximum."""
        self._sliding.submitted(now, job)

    def changes(self, now: float) -> list[Load]:
        """Return the loads that the newest tick changed.

        O(pools · windows) for a new tick, else O(1).
        """
        if now // TICK == self._tick:
            return []
        self._tick = now // TICK
        self._sliding.changes(now)
        changed, end = [], _text(self._tick)
        for (pool, window), last in self._last.items():
            arrives = _drawn(self._questions[pool, window] + end) & 1
            gpus = self._sliding.estimate(now, pool, window) if arrives else 0
            if gpus != last:
                self._last[pool, window] = gpus
                changed.append(Load(pool, window, gpus))
        return changed


class RandomRunTimes(RunTimes):
    """A random run-time bin for each job. The last bin ends at twice the longest window."""

    summary = "a duration bin was drawn for each job"
    replay_only = True
    learns = False

    @classmethod
    def build(cls, context: PredictorContext) -> Self:
        """Build a predictor with the seed of the replay."""
        return cls(context.windows, context.seed)

    def __init__(self, windows: Sequence[float], seed: int) -> None:
        """Take the windows in seconds and the seed."""
        self._ends = [*windows, 2 * windows[-1]]
        self._seed = seed

    def run_time(self, job: Job) -> float:
        """Return the upper end of the job's bin, always the same for a job."""
        return self._ends[draw(self._seed, "run time", job.id) % len(self._ends)]
