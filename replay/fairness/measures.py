"""Finish-time fairness of a schedule, and how efficient the schedule is.

Finish-time fairness is a job's completion time divided by the one that it would have on an even
share of the GPUs. A job above 1 was treated unfairly. The measures differ in the share:

- `ftf_jobs`: all jobs of the log share the GPUs, all the time (the headline of Shockwave's §8);
- `ftf_life`: the jobs that were present while this one was, on average;
- `ftf_share`: as `ftf_life`, but each job counts with its width.

A job is present from its submission until its end.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate
from math import fsum
from typing import Any, NamedTuple

from replay.logs.trace import PoolTable, Trace
from sia.core.playout import Arrival

MEASURES = ("ftf_jobs", "ftf_life", "ftf_share")

TOLERATED = (1.05, 1.1, 1.25, 1.5, 2.0)
"""Values besides 1 for which the share of jobs above is measured."""


class RunSegment(NamedTuple):
    """A period in which a job ran. Times are in seconds, the width in GPUs."""

    start: float
    end: float
    width: int


class PresentJobs:
    """A step function of time: the sum of the weights of the jobs that are present."""

    def __init__(self, spans: Sequence[tuple[float, float, float]]) -> None:
        """Take the (begin, end, weight) of each job. O(n · log n)."""
        steps = sorted(
            change for begin, end, weight in spans for change in ((begin, weight), (end, -weight))
        )
        self._times = [time for time, _ in steps]
        self._levels = [*accumulate(weight for _, weight in steps)]
        self._areas = [0.0]
        for i in range(1, len(steps)):
            lasted = self._times[i] - self._times[i - 1]
            self._areas.append(self._areas[-1] + self._levels[i - 1] * lasted)

    def average(self, begin: float, end: float) -> float:
        """Return the average from `begin` to `end`; if they are equal, the value at `begin`."""
        if end <= begin:
            return self._level(begin)
        return (self._area(end) - self._area(begin)) / (end - begin)

    def _level(self, time: float) -> float:
        at = bisect_right(self._times, time)
        return self._levels[at - 1] if at else 0.0

    def _area(self, time: float) -> float:
        at = bisect_right(self._times, time)
        if not at:
            return 0.0
        return self._areas[at - 1] + self._levels[at - 1] * (time - self._times[at - 1])


def gpus_of(table: PoolTable) -> int:
    """Return the sum of the largest quotas of all pools."""
    return sum(max(quota for _, quota in steps) for steps in table.quotas().values())


def fairness(
    trace: Trace, table: PoolTable, segments: Mapping[str, Sequence[RunSegment]]
) -> dict[str, Any]:
    """Return the measures of each job, and of the whole schedule. O(n · log n).

    A job ends with its last segment, whatever its duration says. Jobs without segments never ended:
    they are present until the last end, and have no measures. The GPUs are the largest quotas.
    """
    gpus = gpus_of(table)
    ends = {job_id: runs[-1].end for job_id, runs in segments.items() if runs}
    last = max(ends.values(), default=0.0)
    spans = [(job.submit, ends.get(job.id, max(last, job.submit))) for job, _ in trace.arrivals]
    by_jobs = PresentJobs([(begin, end, 1.0) for begin, end in spans])
    by_widths = PresentJobs(
        [(*span, a.job.width) for span, a in zip(spans, trace.arrivals, strict=True)]
    )
    ended = [arrival for arrival in trace.arrivals if arrival.job.id in ends]
    even = max(1.0, len(trace.arrivals) / gpus) if gpus else 1.0

    def measured(arrival: Arrival) -> dict[str, float]:
        submit, end = arrival.job.submit, ends[arrival.job.id]
        takes = (end - submit) / arrival.duration
        shares = [by.average(submit, end) / gpus if gpus else 1.0 for by in (by_jobs, by_widths)]
        values = (even, *(max(1.0, share) for share in shares))
        return {name: takes / value for name, value in zip(MEASURES, values, strict=True)}

    jobs = {arrival.job.id: measured(arrival) for arrival in ended}
    found: dict[str, Any] = {"jobs": jobs}
    for name in MEASURES:
        found |= _summary(name, [job[name] for job in jobs.values()])
    return found | _efficiency(trace, ended, segments, ends, gpus)


def _summary(name: str, values: Sequence[float]) -> dict[str, float | None]:
    """Return the worst value of a measure and the percentages of jobs above some values."""
    found: dict[str, float | None] = {f"worst_{name}": max(values, default=None)}
    for limit in (1.0, *TOLERATED):
        key = f"unfair_{name}" if limit == 1.0 else f"unfair_{name}_{limit:g}"
        over = sum(value > limit for value in values)
        found[key] = 100.0 * over / len(values) if values else None
    return found


def _efficiency(
    trace: Trace,
    ended: Sequence[Arrival],
    segments: Mapping[str, Sequence[RunSegment]],
    ends: Mapping[str, float],
    gpus: int,
) -> dict[str, Any]:
    first = min(arrival.job.submit for arrival in trace.arrivals)
    makespan = max(ends.values(), default=first) - first
    used = fsum((s.end - s.start) * s.width for runs in segments.values() for s in runs)
    waited = [ends[job.id] - job.submit for job, _ in ended]
    return {
        "makespan": makespan,
        "avg_jct": fsum(waited) / len(waited) if waited else None,
        "utilisation": used / (gpus * makespan) if gpus and makespan else None,
        "starts": sum(map(_starts, segments.values())),
        "gpus": gpus,
        "never_ended": len(trace.arrivals) - len(ended),
    }


def _starts(runs: Sequence[RunSegment]) -> int:
    """Count the starts of a job; a segment of equal width that follows at once does not count."""
    starts, before = 0, None
    for run in runs:
        starts += before is None or (run.start, run.width) != (before.end, before.width)
        before = run
    return starts
