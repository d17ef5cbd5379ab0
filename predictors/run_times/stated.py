"""Run times that users state: column `estimate` of a log."""

from __future__ import annotations

from sia.forecasts import RunTimes
from sia.limits import UNKNOWN_RUN_TIME
from sia.model import Job


class StatedRunTimes(RunTimes):
    """Returns each job's own `estimate`, and `UNKNOWN_RUN_TIME` for a job without one."""

    summary = "each job's own estimate was believed"
    learns = False

    def run_time(self, job: Job) -> float:
        """Return the user's estimate, in seconds at the job's own width."""
        return UNKNOWN_RUN_TIME if job.estimate is None else job.estimate
