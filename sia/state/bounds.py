"""Validation of values of jobs and pools, for every source of them."""

from __future__ import annotations

from itertools import pairwise
from math import inf

from sia.limits import (
    MAX_PRIORITY,
    MAX_QUOTA,
    MAX_RESUME_COST,
    MAX_SLOWDOWN,
    MAX_TIME,
    MAX_VALUE,
    MAX_WEIGHT,
    UNKNOWN_RUN_TIME,
    UNLIMITED,
)
from sia.model import Job


def check_job(job: Job, run_time: float) -> None:
    """Raise ValueError if a width, cost, priority or estimate is out of bounds."""
    if not 1 <= job.width <= MAX_QUOTA:
        raise ValueError(f"job {job.id}: width must be 1 to {MAX_QUOTA} (got {job.width})")
    if job.min_width or job.max_width or job.demand:
        _check_elastic(job)
    cost = job.preemptible
    if isinstance(cost, float | int) and not 0 <= cost <= MAX_RESUME_COST:
        raise ValueError(
            f"job {job.id}: preemptible must be 0 to {MAX_RESUME_COST:g} seconds (got {cost:g})"
        )
    if job.deadline is not None and not -MAX_TIME <= job.deadline <= MAX_TIME:
        raise ValueError(f"job {job.id}: deadline must be a time (got {job.deadline:g})")
    if job.value is not None and not 0 <= job.value <= MAX_VALUE:
        raise ValueError(f"job {job.id}: value must be 0 to {MAX_VALUE:g} (got {job.value:g})")
    if job.estimate is not None and not 0 < job.estimate <= UNKNOWN_RUN_TIME:
        raise ValueError(f"job {job.id}: estimate must be above 0 seconds (got {job.estimate:g})")
    if job.slowdown is not None and not 1 <= job.slowdown <= MAX_SLOWDOWN:
        raise ValueError(
            f"job {job.id}: slowdown must be 1 to {MAX_SLOWDOWN:g} (got {job.slowdown:g})"
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
    if any(later > before for (_, before), (_, later) in pairwise(job.demand)):
        raise ValueError(f"job {job.id}: demand must not rise: more GPUs never take longer")
