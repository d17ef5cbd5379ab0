"""Build the predictors of a replay; perfect ones read the whole log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from predictors.catalog import Choice, loads_by, run_times_by
from replay.logs.past import PastJobs
from replay.logs.trace import PoolTable, Trace, checksum_of_jobs
from sia.forecasts import Loads, PredictorContext, RunTimes

if TYPE_CHECKING:
    from predictors.learning.model import Model


def trained_until(model: Model, trace: Trace) -> float | None:
    """Return the second of the log until which a model was trained; None if on another log.

    Pass the log as read, because the checksum covers all of its jobs.
    """
    until = model.manifest.until
    return until if checksum_of_jobs(trace, until) == model.manifest.trace_sha256 else None


def run_times_of(
    choice: Choice, trace: Trace, context: PredictorContext, past: PastJobs | None = None
) -> RunTimes:
    """Build the run-time predictor that is chosen; it may know the `past` and the whole trace."""
    before = [] if past is None else [arrival for arrival, _ in past.jobs]
    return run_times_by(choice, context._replace(log=[*before, *trace.arrivals]))


def loads_of(
    choice: Choice,
    trace: Trace,
    table: PoolTable,
    context: PredictorContext,
    past: PastJobs | None = None,
) -> Loads | None:
    """Return the chosen load forecast, or None for the forecast `none`.

    It begins to observe at the start of `past` if given, else at the first submission.
    """
    pools = [pool.name for pool in table.pools]
    start = _begin(trace) if past is None else past.begin
    quotas = {pool.name: pool.quota for pool in table.pools}
    groups = {pool.name: pool.sharing_group for pool in table.pools}
    context = context._replace(
        pools=pools, start=start, log=trace.arrivals, quotas=quotas, groups=groups
    )
    return loads_by(choice, context)


def guarded(
    loads: Loads, max_slowed_pct: float, trace: Trace, table: PoolTable, windows: Sequence[float]
) -> Loads:
    """Return the forecast with a share controller that limits the slowed jobs to a percentage."""
    from predictors.loads.guard import GuardedLoads  # noqa: PLC0415  numpy is slow to import

    return GuardedLoads(loads, table.pools, windows, _begin(trace), max_slowed_pct)


def _begin(trace: Trace) -> float:
    return trace.arrivals[0].job.submit if trace.arrivals else 0.0
