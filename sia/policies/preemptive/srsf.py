"""Shortest remaining service first over all pools of a group, with preemption."""

from __future__ import annotations

from typing import Any

from sia.contract.views import JobStateView
from sia.policies.preemptive.srtf import Srtf


class Srsf(Srtf):
    """Ranks jobs by remaining seconds · GPUs."""

    def waiting_rank(self, job: JobStateView) -> Any:
        """Return the remaining GPU-seconds if the job started now."""
        return super().waiting_rank(job) * job.width

    def running_rank(self, key: Any, width: int, now: float) -> Any:
        """Return the GPU-seconds until the estimated end."""
        return (key - now) * width
