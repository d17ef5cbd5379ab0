"""The future as it will be: the most that any forecast can give (§6.3)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from sia.forecasts import Loads, PredictorContext, RunTimes
from sia.model import Job, Load


class PerfectRunTimes(RunTimes):
    """Every run time in advance."""

    summary = "each job's run time was read from the log itself"
    needs_log = True
    replay_only = True
    learns = False

    @classmethod
    def build(cls, context: PredictorContext) -> Self:
        """Build one that knows the log."""
        return cls({job.id: duration for job, duration in context.log})

    def __init__(self, durations: dict[str, float]) -> None:
        """Take seconds by job id."""
        self._durations = durations

    def run_time(self, job: Job) -> float:
        """The true duration."""
        return self._durations[job.id]


class PerfectLoads(Loads):
    """Every arrival in advance: GPUs asked for in (now, now + window], for each pool and window.

    O(windows) an arrival, whatever the number of pools and of calls.
    """

    summary = "the load of the next windows was read from the log itself"
    needs_log = True
    replay_only = True
    learns = False

    @classmethod
    def build(cls, context: PredictorContext) -> Self:
        """Build one that knows the log."""
        return cls([job for job, _ in context.log], context.windows)

    def __init__(self, jobs: Sequence[Job], windows: Sequence[float]) -> None:
        """Take all jobs to come, in order of submission; windows are seconds."""
        self._jobs = jobs
        self._windows = windows
        self._seen = [0] * len(windows)  # jobs before this one are in the window or past it
        self._passed = 0  # jobs before this one have arrived
        self._loads = {job.pool: [0] * len(windows) for job in jobs}

    def changes(self, now: float) -> list[Load]:
        """Loads of the pools whose arrivals entered or left a window since the last call."""
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
            for (pool, window), said in before.items()
            if (gpus := loads[pool][window]) != said
        ]
