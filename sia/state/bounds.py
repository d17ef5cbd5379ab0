"""What a job or a pool may say of itself, whoever brings it in."""

from __future__ import annotations

from math import inf

from sia.limits import MAX_PRIORITY, MAX_QUOTA, MAX_RESUME_COST, MAX_WEIGHT, UNLIMITED
from sia.model import Job


def check_job(job: Job, run_time: float) -> None:
    """Raise ValueError for a width, a cost, a priority or an estimate out of bounds."""
    if not 1 <= job.width <= MAX_QUOTA:
        raise ValueError(f"job {job.id}: a width is 1 to {MAX_QUOTA}, not {job.width}")
    if job.min_width or job.max_width or job.demand:
        _check_elastic(job)
    if job.preemptible is not None and not 0 <= job.preemptible <= MAX_RESUME_COST:
        raise ValueError(f"job {job.id}: stopping it costs 0 to {MAX_RESUME_COST:g} seconds")
    if job.priority:
        check_priority(job.id, job.priority)
    if not 0 <= run_time < inf:
        raise ValueError(f"job {job.id}: a run time is finite, not {run_time}")


def check_priority(job_id: str, priority: int) -> None:
    """Raise ValueError for a priority out of bounds."""
    if not -MAX_PRIORITY <= priority <= MAX_PRIORITY:
        raise ValueError(
            f"job {job_id}: a priority is -{MAX_PRIORITY} to {MAX_PRIORITY}, not {priority}"
        )


def check_sharing(pool: str, lend_limit: int, borrow_limit: int, weight: float) -> None:
    """Raise ValueError for limits or a weight of a pool that are out of bounds."""
    if not (0 <= lend_limit <= UNLIMITED and 0 <= borrow_limit <= UNLIMITED):
        raise ValueError(f"pool {pool!r}: a limit on lending or borrowing is 0 to {UNLIMITED}")
    if not 1 / MAX_WEIGHT <= weight <= MAX_WEIGHT:
        raise ValueError(f"pool {pool!r}: a weight is {1 / MAX_WEIGHT:g} to {MAX_WEIGHT:g}")


def _check_elastic(job: Job) -> None:
    if not 0 <= job.min_width <= job.width <= (job.max_width or job.width) <= MAX_QUOTA:
        raise ValueError(f"job {job.id}: widths must ascend: min_width, width, max_width")
    gpus = [point[0] for point in job.demand]
    if gpus != sorted(set(gpus)) or any(g < 1 or not 0 < s < inf for g, s in job.demand):
        raise ValueError(f"job {job.id}: a demand is GPUs, ascending, and seconds above 0")
