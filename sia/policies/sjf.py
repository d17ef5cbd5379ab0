"""Shortest job first in each pool, no sharing (§6.1, Baselines)."""

from __future__ import annotations

from sia.policies.ssf import Ssf
from sia.state.state import JobState


class Sjf(Ssf):
    """The job with least run time, however wide, starts when it fits in quota; it blocks."""

    reason = "least run time of its pool, within quota"

    def rank(self, job: JobState) -> tuple[int, float, int, str]:
        """By priority, then by run time; ties go to who came first."""
        return -job.job.priority, job.run_time, job.sequence, job.job.id
