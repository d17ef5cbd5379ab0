"""Shortest job first in each pool, without sharing (§6.1, Baselines)."""

from __future__ import annotations

from sia.contract.views import JobStateView
from sia.policies.queues.ssf import Ssf


class Sjf(Ssf):
    """Starts the job with the least run time, whatever its width, once it fits in quota."""

    reason = "shortest job of its pool, within quota"

    def rank(self, job: JobStateView) -> tuple[int, float, int, str]:
        """Return the order of a job: priority, run time, sequence."""
        return -job.job.priority, job.run_time, job.sequence, job.job.id
