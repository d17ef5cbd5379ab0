"""What a search minimises, like `avg:jct` and `p99:pred_err`, and how a simulation measures it."""

from __future__ import annotations

from collections.abc import Sequence
from math import fsum, inf
from typing import NamedTuple

from replay.search.playout import SampleColumns, columns, simulate
from replay.search.space import Point
from replay.search.workload import Sample
from sia.wording import did_you_mean

METRICS = {
    "jct": "completion time",
    "pred_err": "prediction error",
    "unfairness": "unfairness",
}
"""Metrics of each job: JCT in seconds; |JCT − JCTpred| / JCTpred, and the time beyond the finish
under fluid fair share / that, both in percent."""

MEASURES = {"avg": None, "p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}
"""What is made of a metric of all jobs: its mean or a quantile; of n ascending values quantile p is
value[int(n · p)]."""

DEFAULT = ("avg:jct", "avg:pred_err")


class Objective(NamedTuple):
    """A measure of a metric; the lower the better."""

    measure: str
    metric: str

    def __str__(self) -> str:
        """Return the text that `parse_objective` reads."""
        return f"{self.measure}:{self.metric}"


def parse_objective(text: str) -> Objective:
    """Parse `avg:jct`. Raises ValueError."""
    measure, colon, metric = text.strip().partition(":")
    if not colon:
        raise ValueError(f"{text!r} is no objective; write a measure and a metric, like avg:jct")
    if measure not in MEASURES:
        known = ", ".join(MEASURES)
        hint = did_you_mean(measure, MEASURES)
        raise ValueError(f"{text!r}: no measure {measure!r}; write one of {known}.{hint}")
    if metric not in METRICS:
        known = ", ".join(METRICS)
        hint = did_you_mean(metric, METRICS)
        raise ValueError(f"{text!r}: no metric {metric!r}; write one of {known}.{hint}")
    return Objective(measure, metric)


Measured = dict[str, float]
"""Every measure of every metric of a simulation, by the text of its objective."""


class Prepared(NamedTuple):
    """A sample as the playout takes it, and when its jobs end under fluid fair share."""

    name: str
    jobs: SampleColumns
    fair: Sequence[float]


def prepare(sample: Sample, gpus: int) -> Prepared:
    """Return what all simulations of a sample share."""
    jobs = columns(sample.arrivals, gpus)
    return Prepared(sample.name, jobs, fair_ends(jobs))


def evaluate(point: Point, sample: Prepared, resume_cost: float = 0.0) -> Measured:
    """Simulate a point on a sample, and measure everything."""
    jobs = sample.jobs
    ends, predicted = simulate(jobs, point, resume_cost)
    jct, errors, unfair = [], [], []
    for submit, end, told, fair in zip(jobs.submits, ends, predicted, sample.fair, strict=True):
        jct.append(end - submit)
        errors.append(100.0 * abs(end - told) / (told - submit))
        unfair.append(100.0 * max(0.0, end - fair) / (fair - submit))
    found: Measured = {}
    for metric, values in (("jct", jct), ("pred_err", errors), ("unfairness", unfair)):
        values.sort()
        for measure, part in MEASURES.items():
            place = -1 if part == 1.0 else int(len(values) * (part or 0.0))
            value = fsum(values) / len(values) if part is None else values[place]
            found[f"{measure}:{metric}"] = value
    return found


def fair_ends(jobs: SampleColumns) -> list[float]:
    """Return when each job ends if the GPUs are divided evenly at all times, in any fraction.

    A job gets no more than it can use; what it leaves is divided between the others. On a fraction
    of a GPU its speed is that fraction of the speed on one, between two widths it is interpolated.
    O(jobs · jobs at once).
    """
    ends = [inf] * len(jobs.submits)
    left: dict[int, float] = {}  # work to do, in order of arrival
    rates: dict[int, float] = {}
    now, following = 0.0, 0
    while following < len(ends) or left:
        end = min((now + work / rates[job] for job, work in left.items()), default=inf)
        submit = jobs.submits[following] if following < len(ends) else inf
        until = min(end, submit)
        for job, work in list(left.items()):
            left[job] = work - (until - now) * rates[job]
            if left[job] <= 1e-9 * jobs.works[job]:
                ends[job] = until
                del left[job]
        now = until
        while following < len(ends) and jobs.submits[following] <= now:
            left[following] = jobs.works[following]
            following += 1
        level = _level([jobs.mosts[job] for job in left], jobs.gpus)
        rates = {job: _speed(jobs.speeds[job], min(level, jobs.mosts[job])) for job in left}
    return ends


def _level(mosts: Sequence[int], gpus: int) -> float:
    """Return the most GPUs that any job gets, so that all are used or all have what they can."""
    left, count = float(gpus), len(mosts)
    for most in sorted(mosts):
        if most * count > left:
            return left / count
        left -= most
        count -= 1
    return inf


def _speed(speeds: Sequence[float], gpus: float) -> float:
    whole = int(gpus)
    if whole == gpus:
        return speeds[whole]
    return speeds[whole] + (gpus - whole) * (speeds[whole + 1] - speeds[whole])
