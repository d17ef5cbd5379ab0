"""Shortest remaining time first over all pools of a group, with preemption."""

from __future__ import annotations

from typing import Any

from sia.policies.shared.ranked import Ranked
from sia.state.state import JobState


class Srtf(Ranked):
    """By the seconds that a job still has to run, those of going on after a preemption included."""

    def waiting_rank(self, job: JobState) -> Any:
        """Seconds, if it started now."""
        again = self.state.options.resume_cost if job.done else 0.0
        return max(0.0, job.run_time - job.done) + again

    def running_key(self, job: JobState) -> Any:
        """When it should end."""
        return job.end(job.run_time)

    def running_rank(self, key: Any, width: int, now: float) -> Any:
        """Seconds until it should have ended."""
        return key - now
