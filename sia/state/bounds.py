"""Validation of values of jobs and pools, for every source of them."""

from __future__ import annotations

from math import inf

from sia.limits import MAX_PRIORITY, MAX_QUOTA, MAX_RESUME_COST, MAX_WEIGHT, UNLIMITED
from sia.model import Job


def check_job(job: Job, run_time: float) -> None:
    """Raise ValueError if a width, cost, priority or estimate is out of bounds."""
    if not 1 <= job.width <= MAX_QUOTA:
        raise ValueError(f"job {job.id}: width must be 1 to {MAX_QUOTA} (got {job.width})")
    if job.min_width or job.max_width or job.demand:
        _check_elastic(job)
    if job.preemptible is not None and not 0 <= job.preemptible <= MAX_RESUME_COST:
        raise ValueError(
            f"job {job.id}: preemptible must be 0 to {MAX_RESUME_COST:g} seconds "
            f"(got {job.preemptible:g})"
        )
    if job.priority:
        check_priority(job.id, job.priority)
    if not 0 <= run_time < inf:
        raise ValueError(f"job {job.id}: run time must be finite and not negative (got {run_time})")


def check_priority(job_id: str, priority: int) -> None:
    """Raise ValueError if a priority is out of bounds."""
    if not -MAX_PRIORITY <= priority <= MAX_PRIORITY:
        raise ValueError(
            f"job {job_id}: priority must be -{MAX_PRIORITY} to {MAX_PRIORITY} (got {priority})"
        )


def check_sharing(pool: str, lend_limit: int, borrow_limit: int, weight: float) -> None:
    """Raise ValueError if limits or the weight of a pool are out of bounds."""
    if not (0 <= lend_limit <= UNLIMITED and 0 <= borrow_limit <= UNLIMITED):
        raise ValueError(f"pool {pool!r}: lend and borrow limits must be 0 to {UNLIMITED}")
    if not 1 / MAX_WEIGHT <= weight <= MAX_WEIGHT:
        raise ValueError(
            f"pool {pool!r}: weight must be {1 / MAX_WEIGHT:g} to {MAX_WEIGHT:g} (got {weight:g})"
        )


def _check_elastic(job: Job) -> None:
    if not 0 <= job.min_width <= job.width <= (job.max_width or job.width) <= MAX_QUOTA:
        raise ValueError(f"job {job.id}: min_width, width and max_width must be in ascending order")
    gpus = [point[0] for point in job.demand]
    if gpus != sorted(set(gpus)) or any(g < 1 or not 0 < s < inf for g, s in job.demand):
        raise ValueError(f"job {job.id}: demand must have ascending GPUs and seconds above 0")
