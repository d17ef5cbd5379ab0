"""True run times with an error of a given size, to see what wrong estimates cost.

An error depends on the seed and the job's id only: neither on other jobs nor on their order. The
job itself runs as long as the log says.
"""

from __future__ import annotations

from abc import abstractmethod
from statistics import NormalDist
from typing import Self

from predictors.random_forecast import draw
from sia.forecasts import PredictorContext, RunTimes
from sia.model import Job

LEAST_FACTOR, MOST_FACTOR = 0.5, 2.0
"""Bounds of the factor of `noisy`: with a wide normal distribution it could be negative."""

MOST_PERCENT = 1000.0
"""The largest error: an estimate of eleven times the run time is as good as none."""


class _WithErrors(RunTimes):
    """Returns the real run time times a factor of its own for each job."""

    needs_log = True
    replay_only = True
    learns = False

    @classmethod
    def build(cls, context: PredictorContext) -> Self:
        """Build a predictor that knows the log and the size of its error."""
        assert context.percent is not None, "a label without the percentage is refused"
        run_times = {job.id: duration for job, duration in context.log}
        return cls(run_times, context.percent / 100, context.seed)

    def __init__(self, run_times: dict[str, float], error: float, seed: int = 0) -> None:
        """Take run times in seconds by job id, and the error as a share of the run time."""
        self._run_times, self._error, self._seed = run_times, error, seed

    def run_time(self, job: Job) -> float:
        """Return the wrong run time, always the same for a job."""
        return self._run_times[job.id] * self._factor(job)

    @abstractmethod
    def _factor(self, job: Job) -> float:
        """Return the estimate of a job relative to its run time."""

    def _uniform(self, job: Job) -> float:
        """Return a number between 0 and 1, both excluded: 52 bits, so that it is never rounded."""
        return ((draw(self._seed, "error", job.id) >> 12) + 0.5) / 2**52


class WithinRunTimes(_WithErrors):
    """`within:20`: off by up to 20 % in either direction, each error equally likely."""

    summary = "true run times, off by up to this percentage in either direction"
    percent_bounds = (0.0, 99.0)

    def _factor(self, job: Job) -> float:
        return 1.0 + self._error * (2.0 * self._uniform(job) - 1.0)


class BiasedRunTimes(_WithErrors):
    """`biased:-50`: half of the run time for every job, `biased:100` twice of it."""

    summary = "true run times, all off by this percentage"
    percent_bounds = (-99.0, MOST_PERCENT)

    def _factor(self, job: Job) -> float:
        return 1.0 + self._error


class NoisyRunTimes(_WithErrors):
    """`noisy:40`: times 1 + N(0, 0.4), but at least half and at most twice of the run time."""

    summary = "true run times with a normal error of this standard deviation"
    percent_bounds = (0.0, MOST_PERCENT)

    def _factor(self, job: Job) -> float:
        noise = NormalDist().inv_cdf(self._uniform(job))
        return min(MOST_FACTOR, max(LEAST_FACTOR, 1.0 + self._error * noise))
