"""The reward that each job earned, and how many deadlines were missed (Chronus, §4.2)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import fsum
from typing import Any, NamedTuple

from replay.logs.trace import Trace
from sia.model import FULL_REWARD, LEAST_REWARD, Job
from sia.wording import HOUR

DEADLINES = "deadlines.csv"
HEADER = ("job_id", "label", "planned", "end", "reward")

BEST_EFFORT = "best effort"
GUARANTEED, UNGUARANTEED, LOST = "guaranteed", "unguaranteed", "lost"
IN_PROFILER = "in the profiler"


class Promised(NamedTuple):
    """What became of a job's deadline: a label, and the end that the plan at admission foresaw."""

    label: str
    planned: float | None = None


Promises = Mapping[str, Promised]
"""Outcomes by job ID. A job with a deadline that is not in it was not promised anything."""

NO_PROMISES: Promises = {}


def reward_of(job: Job, end: float | None) -> float:
    """Return the reward of a job that ends at `end` (seconds; None if never), from 1 to 100."""
    met = None if end is None else job.step_met(end)
    return LEAST_REWARD if met is None else job.steps[met].reward


def deadline_rows(
    trace: Trace, ends: Sequence[float | None], promises: Promises = NO_PROMISES
) -> Iterable[tuple[Any, ...]]:
    """Yield the row of each job for `deadlines.csv`; None is an empty cell. O(jobs)."""
    for (job, _), end in zip(trace.arrivals, ends, strict=True):
        if job.deadline is None:
            yield job.id, BEST_EFFORT, None, end, LEAST_REWARD
        else:
            label, planned = promises.get(job.id, Promised(UNGUARANTEED))
            yield job.id, label, planned, end, reward_of(job, end)


def deadline_measures(
    trace: Trace, ends: Sequence[float | None], warmup: float = 0.0
) -> dict[str, Any]:
    """Return the measures of deadlines of the jobs submitted from second `warmup` on.

    A job that never ended missed its deadline. A mean over no job is None. O(jobs).
    """
    strict: list[float] = []
    soft: list[float] = []
    best_effort: list[float] = []
    others = missed = 0
    for (job, _), end in zip(trace.arrivals, ends, strict=True):
        if job.submit < warmup:
            continue
        if job.deadline is None:
            others += 1
            if end is not None:
                best_effort.append(end - job.submit)
            continue
        lost = 1.0 - (reward_of(job, end) - LEAST_REWARD) / (FULL_REWARD - LEAST_REWARD)
        (soft if job.soft else strict).append(lost)
        missed += end is None or job.step_met(end) != 0
    count = len(strict) + len(soft)
    return {
        "slo_jobs": count,
        "best_effort_jobs": others,
        "slo_missed_pct": 100 * missed / count if count else None,
        "wdmr": _mean([*strict, *soft]),
        "wdmr_strict": _mean(strict),
        "wdmr_soft": _mean(soft),
        "best_effort_avg_jct_s": _mean(best_effort),
        **({"best_effort_goodput_gpu_h": _goodput(trace, ends, warmup)} if count else {}),
    }


def _goodput(trace: Trace, ends: Sequence[float | None], warmup: float) -> float:
    """Return the work, in GPU-hours, of best-effort jobs that ended by the last submission.

    After that the cluster only drains, and every policy would do the same work (JamaisVu, Table 2).
    """
    last = trace.arrivals[-1].job.submit
    return fsum(
        job.width * duration / HOUR
        for (job, duration), end in zip(trace.arrivals, ends, strict=True)
        if job.deadline is None and job.submit >= warmup and end is not None and end <= last
    )


def _mean(values: Sequence[float]) -> float | None:
    return fsum(values) / len(values) if values else None
