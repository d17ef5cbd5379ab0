"""Shortest remaining time first over all pools of a group, with preemption."""

from __future__ import annotations

from typing import Any

from sia.contract.views import JobStateView
from sia.policies.shared.ranked import Ranked


class Srtf(Ranked):
    """Ranks jobs by their remaining run time in seconds, including the cost of resuming."""

    def waiting_rank(self, job: JobStateView) -> Any:
        """Return the remaining seconds if the job started now."""
        left = max(0.0, job.run_time - job.done) / job.pace
        return left + job.pause(self.state.options.resume_cost)

    def running_key(self, job: JobStateView) -> Any:
        """Return the estimated end."""
        return job.end(job.run_time)

    def running_rank(self, key: Any, width: int, now: float) -> Any:
        """Return the seconds until the estimated end."""
        return key - now
