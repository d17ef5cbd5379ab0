"""Validation of values of jobs and pools, for every source of them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import inf

from sia.limits import (
    MAX_CONFIG,
    MAX_JOB_BUDGET,
    MAX_POINTS,
    MAX_PRIORITY,
    MAX_QUOTA,
    MAX_REGIME,
    MAX_RESUME_COST,
    MAX_SLOWDOWN,
    MAX_STEPS,
    MAX_TIME,
    MAX_VALUE,
    MAX_WEIGHT,
    UNKNOWN_RUN_TIME,
    UNLIMITED,
)
from sia.model import FULL_REWARD, LEAST_REWARD, Job
from sia.state.strl import problem_of


class JobFieldError(ValueError):
    """A field of a job is out of bounds: which field, what is wrong with it, and the fix."""

    def __init__(self, job_id: str, field: str, problem: str, fix: str) -> None:
        """`problem` and `fix` are texts for people; `problem` begins with the field."""
        super().__init__(f"job {job_id}: {problem}; {fix}")
        self.field, self.problem, self.fix = field, problem, fix


def check_job(job: Job, run_time: float) -> None:
    """Raise ValueError if a field of a job or the estimate of its run time is out of bounds."""
    check_fields(job)
    if job.priority:
        check_priority(job.id, job.priority)
    if not 0 <= run_time < inf:
        raise ValueError(f"job {job.id}: run time must be finite and not negative (got {run_time})")


def check_fields(job: Job) -> None:
    """Raise JobFieldError if a field of a job is out of bounds. O(points of its demand)."""
    if not 1 <= job.width <= MAX_QUOTA:
        raise _out_of_bounds(job, "width", job.width, f"1 to {MAX_QUOTA}")
    least, most = job.min_width, job.max_width
    if job.demand or not (least == most == job.width or least == most == 0):
        _check_elastic(job)  # almost all jobs have one width
    if job.preemptible is not None or job.min_run_time is not None:
        _check_stops(job)
    if job.deadline is not None and not -MAX_TIME <= job.deadline <= MAX_TIME:
        raise _out_of_bounds(
            job, "deadline", job.deadline, f"a time of at most {MAX_TIME:g} seconds"
        )
    if job.soft:
        check_steps(job.id, job.soft)
    if job.value is not None and not 0 <= job.value <= MAX_VALUE:
        raise _out_of_bounds(job, "value", job.value, f"0 to {MAX_VALUE:g}")
    if job.budget is not None and not 1 / MAX_JOB_BUDGET <= job.budget <= MAX_JOB_BUDGET:
        bounds = f"{1 / MAX_JOB_BUDGET:g} to {MAX_JOB_BUDGET:g}"
        raise _out_of_bounds(job, "budget", job.budget, bounds)
    if job.estimate is not None and not 0 < job.estimate <= UNKNOWN_RUN_TIME:
        raise _out_of_bounds(
            job, "estimate", job.estimate, f"above 0 and at most {UNKNOWN_RUN_TIME:g} seconds"
        )
    if job.slowdown is not None or job.regimes or job.prefers or job.strl:
        _check_speeds(job)


def _out_of_bounds(job: Job, field: str, value: float, bounds: str) -> JobFieldError:
    return JobFieldError(
        job.id,
        field,
        f"{field} must be {bounds} (got {value:g})",
        f"change {field}, or leave it out",
    )


def _check_stops(job: Job) -> None:
    cost = None if job.preemptible is None else job.stop_seconds
    if cost is not None and not 0 <= cost <= MAX_RESUME_COST:
        raise JobFieldError(
            job.id,
            "preemptible",
            f"preemptible must be 0 to {MAX_RESUME_COST:g} seconds (got {cost:g})",
            "change it, or write restart or never",
        )
    least_time = job.min_run_time
    if least_time is not None and not 0 < least_time <= UNKNOWN_RUN_TIME:
        raise _out_of_bounds(
            job, "min_run_time", least_time, f"above 0 and at most {UNKNOWN_RUN_TIME:g} seconds"
        )


def _check_strl(job: Job) -> None:
    for name, given in (
        ("prefers", job.prefers), ("slowdown", job.slowdown), ("value", job.value),
    ):  # fmt: skip
        if given not in ("", None):
            said = f"strl says what {name} says"
            raise JobFieldError(job.id, "strl", said, f"leave out either strl or {name}")
    found = problem_of(job.strl, job.width)
    if found is not None:
        raise JobFieldError(job.id, "strl", *found)


def _check_speeds(job: Job) -> None:
    if job.strl:
        _check_strl(job)
    if job.prefers.startswith("("):
        fix = "write an attribute of nodes, or same:rack; strl names nodes in parentheses"
        raise JobFieldError(job.id, "prefers", "prefers begins with a parenthesis", fix)
    if job.slowdown is not None and not 1 <= job.slowdown <= MAX_SLOWDOWN:
        raise _out_of_bounds(job, "slowdown", job.slowdown, f"1 to {MAX_SLOWDOWN:g}")
    if len(job.regimes) > MAX_REGIME:
        raise JobFieldError(
            job.id,
            "regimes",
            f"regimes has {len(job.regimes)} regimes",
            f"give at most {MAX_REGIME}",
        )
    for number, (config, *values) in enumerate(job.regimes):
        if not _names_config(config):
            raise JobFieldError(
                job.id,
                "regimes",
                f"regimes must name a configuration in 1 to {MAX_CONFIG} printable characters "
                f"without : and ; (got {config[:40]!a} in regime {number})",
                "name it like 32",
            )
        for name, value in zip(("epochs", "seconds", "steps"), values, strict=True):
            if value is not None and not 0 < value <= MAX_TIME:
                raise JobFieldError(
                    job.id,
                    "regimes",
                    f"regimes must have {name} above 0 and at most {MAX_TIME:g} (got {value:g} in "
                    f"regime {number})",
                    "write CONFIG:EPOCHS:SECONDS for each regime, like 32:9:36.5;64:21:20",
                )


def _names_config(config: str) -> bool:
    """Return whether this name of a configuration can be in a job log and on a terminal."""
    fits = len(config) <= MAX_CONFIG and config.isprintable()
    return fits and bool(config.strip()) and ":" not in config and ";" not in config


def check_steps(job_id: str, soft: Sequence[tuple[float, float]]) -> None:
    """Check that the steps of a deadline ascend and their rewards fall. Raises JobFieldError."""

    def wrong(problem: str, fix: str) -> JobFieldError:
        return JobFieldError(job_id, "soft", f"soft {problem}", fix)

    times, reward, least = 1.0, inf, True
    if len(soft) > MAX_STEPS:
        raise wrong(f"has {len(soft)} steps", f"give at most {MAX_STEPS}")
    for multiple, earned in soft:
        if not (multiple >= 1.0 if least else multiple > times) or not multiple <= MAX_TIME:
            raise wrong(
                f"does not ascend: step {multiple:g} comes after {times:g}",
                "write multiples of the time to the deadline from 1 up, ascending",
            )
        if not LEAST_REWARD <= earned <= FULL_REWARD:
            raise wrong(
                f"has the reward {earned:g}",
                f"write rewards of {LEAST_REWARD:g} to {FULL_REWARD:g}",
            )
        if multiple > 1.0 and not earned < min(reward, FULL_REWARD):
            raise wrong(
                f"does not fall: a reward of {earned:g} comes after {min(reward, FULL_REWARD):g}",
                "each later step must earn less than the one before it",
            )
        times, reward, least = multiple, earned, False


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
    for field, width in (("min_width", job.min_width), ("max_width", job.max_width)):
        if not 0 <= width <= MAX_QUOTA:
            raise _out_of_bounds(job, field, width, f"1 to {MAX_QUOTA}")
    if job.min_width > job.width:
        raise _descending(job, "min_width", f"min_width {job.min_width} is above")
    if 0 < job.max_width < job.width:
        raise _descending(job, "max_width", f"max_width {job.max_width} is below")
    if job.demand:
        _check_demand(job)


def _descending(job: Job, field: str, what: str) -> JobFieldError:
    return JobFieldError(
        job.id,
        field,
        f"{what} the job's width of {job.width} GPUs",
        "widths must ascend: min_width, width, max_width",
    )


def _check_demand(job: Job) -> None:
    """Check that more GPUs never take longer, so that a policy can rely on it."""

    def wrong(problem: str, fix: str) -> JobFieldError:
        return JobFieldError(job.id, "demand", f"demand {problem}", fix)

    demand = job.demand
    if len(demand) > MAX_POINTS:
        raise wrong(
            f"has {len(demand)} points", f"give at most {MAX_POINTS}: between them it is linear"
        )
    for gpus, seconds in demand:
        if not (1 <= gpus <= MAX_QUOTA and 0 < seconds <= MAX_TIME):
            raise wrong(
                f"has the point {gpus}:{seconds:g}",
                f"write points of 1 to {MAX_QUOTA} GPUs and seconds above 0, like 1:3600;2:1900",
            )
    for (few, before), (more, after) in pairwise(demand):
        if few >= more:
            raise wrong(
                f"does not ascend: width {more} comes after {few}",
                "write the points by GPUs, ascending",
            )
        if after > before:
            raise wrong(
                f"rises: {after:g} seconds on {more} GPUs, {before:g} on {few}",
                "leave out points that are slower than with fewer GPUs",
            )
