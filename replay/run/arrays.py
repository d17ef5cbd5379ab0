"""The results of a replay as arrays, for its report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from replay.logs.trace import PoolTable, Trace
from replay.plotting import canvas
from replay.plotting.canvas import FloatArray
from replay.run.run import BASELINE, Settings
from replay.run.schedule import Result, Schedule
from replay.run.summary import span
from sia.limits import SLOWED
from sia.policies import load


class JobArrays(NamedTuple):
    """The jobs of a trace as arrays of shape (jobs,). `pool` is an index into the pool table."""

    submit: FloatArray
    width: FloatArray
    duration: FloatArray
    pool: NDArray[np.int64]


class PolicyOutcome(NamedTuple):
    """One schedule and its baseline as arrays of shape (jobs,). Times are in seconds.

    `jct` and `baseline_jct` are valid only where `measured` is true.
    """

    trace: Trace
    log: JobArrays
    schedule: Schedule
    starts: FloatArray
    ends: FloatArray
    jct: FloatArray
    baseline_jct: FloatArray
    measured: NDArray[np.bool_]
    slowed: NDArray[np.bool_]
    lost: int
    """Number of jobs that end in the baseline but not in this schedule."""


class Replayed:
    """The results of a replay: jobs, and the outcome of each policy."""

    def __init__(
        self,
        table: PoolTable,
        settings: Settings,
        summary: Mapping[str, Any],
        results: Sequence[Result],
    ) -> None:
        """Convert the results to arrays. O(jobs · policies)."""
        first = results[0]
        self.trace = first.loop.log if first.loop else first.trace
        self.table, self.settings = table, settings
        self.version = str(summary["version"])
        self.measures: Mapping[str, Mapping[str, Any]] = summary["policies"]
        self.log = self._log(self.trace)
        self.outcomes = {result.schedule.policy: self._outcome(result) for result in results}
        self.looks = canvas.looks(self.outcomes, BASELINE)
        self.sharing = [
            name
            for name, outcome in self.outcomes.items()
            if shares(name, lent=bool(outcome.schedule.loans))
        ]

    def _log(self, trace: Trace) -> JobArrays:
        jobs = [arrival.job for arrival in trace.arrivals]
        index = {pool.name: i for i, pool in enumerate(self.table.pools)}
        return JobArrays(
            submit=floats([job.submit for job in jobs]),
            width=floats([job.width for job in jobs]),
            duration=floats([arrival.duration for arrival in trace.arrivals]),
            pool=np.asarray([index[job.pool] for job in jobs], dtype=np.int64),
        )

    def _outcome(self, result: Result) -> PolicyOutcome:
        trace, baseline, schedule = result[:3]
        log = self.log if trace is self.trace else self._log(trace)
        base = floats(baseline.ends)
        starts, ends = floats(schedule.starts), floats(schedule.ends)
        jct, baseline_jct = ends - log.submit, base - log.submit
        measured = (log.submit >= self.settings.warmup) & (jct > 0) & ~np.isnan(baseline_jct)
        slowed = measured & (jct - baseline_jct > SLOWED)
        lost = int(np.count_nonzero(np.isnan(ends) & ~np.isnan(base)))
        return PolicyOutcome(
            trace, log, schedule, starts, ends, jct, baseline_jct, measured, slowed, lost
        )

    @cached_property
    def pools(self) -> list[int]:
        """Indices of the pools, in descending order of the GPU-time that their jobs request."""
        requested = self.by_pool(self.log, self.log.width * self.log.duration)
        names = [pool.name for pool in self.table.pools]
        return sorted(range(len(names)), key=lambda i: (-requested[i], names[i]))

    def by_pool(self, log: JobArrays, weights: FloatArray | NDArray[np.bool_]) -> FloatArray:
        """Return the sum of `weights` (one per job) over the jobs of each pool, shape (pools,)."""
        return np.bincount(log.pool, weights, len(self.table.pools)).astype(np.float64)

    def pool_name(self, index: int) -> str:
        """Return the name of the pool at an index of the table."""
        return self.table.pools[index].name

    def range(self) -> tuple[float, float]:
        """Return the first and last second of the time lines.

        The range ends at the last submission; if all jobs are submitted at once, at the last end.
        """
        if not len(self.log.submit):
            return 0.0, 1.0
        begin, last = float(self.log.submit[0]), span(self.trace, self.settings)[1]
        shortest = max(1.0, begin * 1e-9)  # shorter bins are not distinct as floats
        if last - begin >= shortest:
            return begin, last
        ends = [np.nanmax(o.ends, initial=begin) for o in self.outcomes.values()]
        return begin, max(begin + shortest, *map(float, ends))


def floats(values: Sequence[float | None]) -> FloatArray:
    """Return an array; None becomes NaN."""
    return np.array(values, dtype=np.float64)


def shares(label: str, *, lent: bool) -> bool:
    """Return whether a policy shares GPUs; an unknown policy does if it `lent` any."""
    try:
        return load(label).shares
    except KeyError:  # the policy is not installed here
        return lent
