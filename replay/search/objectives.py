"""What a search minimises, like `avg:jct` and `p99:pred_err`, and how a simulation measures it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from math import fsum, inf
from typing import NamedTuple

from replay.logs.trace import PoolTable, Trace
from replay.run.fluid import fluid_ends
from replay.run.metrics import quantile
from replay.run.predictions import error_pct, unfairness_pct
from replay.search.playout import SampleColumns, columns, simulate
from replay.search.space import Point
from replay.search.workload import Sample
from sia.model import Pool
from sia.wording import did_you_mean

METRICS = {
    "jct": "completion time",
    "pred_err": "prediction error",
    "unfairness": "unfairness",
}
"""Metrics of each job: JCT in seconds; |JCT − JCTpred| / JCTpred, and the time beyond the finish
under fluid fair share / that, both in percent."""

MEASURES = {"avg": None, "p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}
"""Measures of a metric over all jobs, and their quantiles; None is the mean. Quantile p of n
ascending values is value[int(n · p)]."""

DEFAULT = ("avg:jct", "avg:pred_err")


class Objective(NamedTuple):
    """A measure of a metric, which is minimised."""

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


QUARTERS = 4
"""Number of groups of jobs by size: few enough to compare at a glance."""

BY_SIZE = ("jct", "pred_err")
"""Metrics whose means are also measured by quarter, as `avg:jct:1` for the smallest jobs."""


class Prepared(NamedTuple):
    """A sample in the form that the playout needs, and its ends under fluid fair share."""

    name: str
    jobs: SampleColumns
    fair: Sequence[float]
    quarters: Sequence[int]
    """The quarter of each job by size, from 0."""


def quarter_limits(sizes: Sequence[float]) -> list[float]:
    """Return the largest size of each quarter except the last; `sizes` must ascend."""
    return [sizes[len(sizes) * k // QUARTERS] for k in range(1, QUARTERS)]


def prepare(sample: Sample, gpus: int, limits: Sequence[float]) -> Prepared:
    """Prepare a sample for all of its simulations; `limits` are those of `quarter_limits`."""
    pool = sample.arrivals[0].job.pool
    fair = fluid_ends(Trace(sample.arrivals), PoolTable([Pool(pool, gpus)]))
    ends = [inf if end is None else end for end in fair]
    jobs = columns(sample.arrivals, gpus)
    return Prepared(sample.name, jobs, ends, [bisect_left(limits, size) for size in jobs.sizes])


def evaluate(point: Point, sample: Prepared, resume_cost: float = 0.0) -> Measured:
    """Simulate a point on a sample, and return all measures."""
    jobs = sample.jobs
    ends, predicted = simulate(jobs, point, resume_cost)
    jct, errors, unfair = [], [], []
    for submit, end, told, fair in zip(jobs.submits, ends, predicted, sample.fair, strict=True):
        jct.append(end - submit)
        errors.append(error_pct(submit, told, end) or 0.0)
        unfair.append(unfairness_pct(submit, fair, end))
    found: Measured = {}
    for metric, values in (("jct", jct), ("pred_err", errors), ("unfairness", unfair)):
        if metric in BY_SIZE:
            found |= _by_size(metric, values, sample.quarters)
        values.sort()
        for measure, part in MEASURES.items():
            value = fsum(values) / len(values) if part is None else quantile(values, part)
            assert value is not None, "a sample has jobs"
            found[f"{measure}:{metric}"] = value
    return found


def _by_size(metric: str, values: Sequence[float], quarters: Sequence[int]) -> Measured:
    """Return the mean of each quarter; 0 for one without jobs."""
    groups: list[list[float]] = [[] for _ in range(QUARTERS)]
    for value, quarter in zip(values, quarters, strict=True):
        groups[quarter].append(value)
    return {
        f"avg:{metric}:{i}": fsum(group) / (len(group) or 1) for i, group in enumerate(groups, 1)
    }
