"""What a job may say of itself, whoever brings it in."""

from __future__ import annotations

from math import inf

from sia.limits import MAX_QUOTA, MAX_RESUME_COST
from sia.model import Job


def check_job(job: Job, run_time: float) -> None:
    """Raise ValueError for a width, a cost of stopping or an estimate out of bounds."""
    if not 1 <= job.width <= MAX_QUOTA:
        raise ValueError(f"job {job.id}: a width is 1 to {MAX_QUOTA}, not {job.width}")
    if job.min_width or job.max_width or job.demand:
        _check_elastic(job)
    if job.preemptible is not None and not 0 <= job.preemptible <= MAX_RESUME_COST:
        raise ValueError(f"job {job.id}: stopping it costs 0 to {MAX_RESUME_COST:g} seconds")
    if not 0 <= run_time < inf:
        raise ValueError(f"job {job.id}: a run time is finite, not {run_time}")


def _check_elastic(job: Job) -> None:
    if not 0 <= job.min_width <= job.width <= (job.max_width or job.width) <= MAX_QUOTA:
        raise ValueError(f"job {job.id}: widths must ascend: min_width, width, max_width")
    gpus = [point[0] for point in job.demand]
    if gpus != sorted(set(gpus)) or any(g < 1 or not 0 < s < inf for g, s in job.demand):
        raise ValueError(f"job {job.id}: a demand is GPUs, ascending, and seconds above 0")
