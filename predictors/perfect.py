"""Perfect forecasts, read from the log: the upper bound of any forecast (§6.3)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from sia.forecasts import Loads, PredictorContext, RunTimes
from sia.model import Job, Load


class PerfectRunTimes(RunTimes):
    """Returns the real run time of every job."""

    summary = "each job's run time was read from the log itself"
    needs_log = True
    replay_only = True
    learns = False

    @classmethod
    def build(cls, context: PredictorContext) -> Self:
        """Build a predictor that knows the log."""
        return cls({job.id: duration for job, duration in context.log})

    def __init__(self, durations: dict[str, float]) -> None:
        """Take run times in seconds by job id."""
        self._durations = durations

    def run_time(self, job: Job) -> float:
        """Return the real run time."""
        return self._durations[job.id]


class PerfectLoads(Loads):
    """Returns the GPUs requested in (now, now + window] for each pool and window.

    O(windows) for each arrival, independent of the numbers of pools and calls.
    """

    summary = "the load of the next windows was read from the log itself"
    needs_log = True
    replay_only = True
    learns = False

    @classmethod
    def build(cls, context: PredictorContext) -> Self:
        """Build a predictor that knows the log."""
        return cls([job for job, _ in context.log], context.windows)

    def __init__(self, jobs: Sequence[Job], windows: Sequence[float]) -> None:
        """Take all future jobs in order of submission, and the windows in seconds."""
        self._jobs = jobs
        self._windows = windows
        self._seen = [0] * len(windows)  # index of the first job beyond each window
        self._passed = 0  # index of the first job that has not arrived
        self._loads = {job.pool: [0] * len(windows) for job in jobs}

    def changes(self, now: float) -> list[Load]:
        """Return the loads of pools whose arrivals entered or left a window since the last call."""
        jobs, loads, end = self._jobs, self._loads, len(self._jobs)
        before: dict[tuple[str, int], int] = {}
        for window, length in enumerate(self._windows):
            seen = self._seen[window]
            while seen < end and jobs[seen].submit <= now + length:
                job = jobs[seen]
                before.setdefault((job.pool, window), loads[job.pool][window])
                loads[job.pool][window] += job.width
                seen += 1
            self._seen[window] = seen
        while self._passed < end and jobs[self._passed].submit <= now:
            job = jobs[self._passed]
            load = loads[job.pool]
            for window in range(len(load)):
                before.setdefault((job.pool, window), load[window])
                load[window] -= job.width
            self._passed += 1
        return [
            Load(pool, window, gpus)
            for (pool, window), last in before.items()
            if (gpus := loads[pool][window]) != last
        ]
