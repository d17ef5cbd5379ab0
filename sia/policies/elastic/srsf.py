"""Elastic shortest remaining service first, as Tiresias with known sizes (PCS, §5.1)."""

from __future__ import annotations

from sia.contract.views import JobStateView
from sia.policies.elastic.srtf import ElasticSrtf
from sia.policies.shared.elastic import remaining, size_of


class ElasticSrsf(ElasticSrtf):
    """Gives GPUs within each pool by the remaining GPU-seconds at a job's least width."""

    reason = "shortest remaining service of its pool"

    def left_to_do(self, job: JobStateView, now: float) -> float:
        """Return the GPU-seconds that remain at the job's least width."""
        return size_of(job.job, remaining(job, now))
