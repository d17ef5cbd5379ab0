"""The predictors of a replay, which may know the whole log."""

from __future__ import annotations

from typing import TYPE_CHECKING

from predictors.catalog import Choice, Means, loads_by, run_times_by
from predictors.perfect import PerfectLoads, PerfectRunTimes
from replay.logs.past import PastJobs
from replay.logs.trace import PoolTable, Trace, checksum_of_jobs
from sia.forecasts import Loads, RunTimes

if TYPE_CHECKING:
    from predictors.learning.model import Model


def taught_until(model: Model, trace: Trace) -> float | None:
    """The second until which a model has learned from this log, as read; None if of another."""
    until = model.manifest.until
    return until if checksum_of_jobs(trace, until) == model.manifest.trace_sha256 else None


def run_times_of(
    choice: Choice, trace: Trace, means: Means, past: PastJobs | None = None
) -> RunTimes:
    """The run-time predictor that is chosen."""
    if choice.durations != "perfect":
        return run_times_by(choice, means)
    before = [] if past is None else [arrival for arrival, _ in past.jobs]
    return PerfectRunTimes({a.job.id: a.duration for a in [*before, *trace.arrivals]})


def loads_of(
    choice: Choice, trace: Trace, table: PoolTable, means: Means, past: PastJobs | None = None
) -> Loads | None:
    """The load forecast that is chosen, which begins to observe with the `past`, if there is one.

    None foresees nothing.
    """
    if choice.forecast == "perfect":
        return PerfectLoads([arrival.job for arrival in trace.arrivals], means.windows)
    start = _begin(trace) if past is None else past.begin
    return loads_by(choice, [pool.name for pool in table.pools], start, means)


def guarded(
    loads: Loads, max_slowed_pct: float, trace: Trace, table: PoolTable, means: Means
) -> Loads:
    """The same forecast with a share controller that watches it from the first job on."""
    from predictors.loads.guard import GuardedLoads  # noqa: PLC0415  numpy takes its time

    return GuardedLoads(loads, table.pools, means.windows, _begin(trace), max_slowed_pct)


def _begin(trace: Trace) -> float:
    return trace.arrivals[0].job.submit if trace.arrivals else 0.0
