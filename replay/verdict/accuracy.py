"""Compare the forecasts of a replay with the actual values.

For loads: the peak of GPUs that new jobs of a pool held in a window, from arrival to end, is
compared with the forecast at the window's beginning. Windows of each length follow each other
without overlap. In clusters with cells, a job counts with the GPUs of its cells, as in the
forecasts. For run times: whether jobs that were expected to end within a window did so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import ceil
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cells.cells import Cells
from predictors.loads.peaks import Peaks
from predictors.loads.rounded import rounded
from replay.logs.trace import PoolTable
from replay.run.run import Settings
from replay.run.schedule import ForecastLog, Result
from replay.run.summary import span
from sia.limits import TICK
from sia.state.state import ClusterState

Gpus = NDArray[np.int64]


class Compared(NamedTuple):
    """Forecasts and actual values in windows of one length: arrays (pools, windows)."""

    length: float
    begins: NDArray[np.float64]
    forecast: Gpus
    actual: Gpus


def compared_loads(result: Result, table: PoolTable, settings: Settings) -> list[Compared]:
    """Return the comparison for each length; lengths without a whole window are left out.

    Empty if the policy made no forecast that could be wrong.
    """
    log = result.schedule.forecasts
    if log is None:
        return []
    begin, end = span(result.trace, settings)
    first, last = ceil(begin / TICK), int(end / TICK)
    pools = [pool.name for pool in table.pools]
    lengths = [ceil(window / TICK) for window in settings.options.windows]
    actual: list[list[Gpus]] = [[] for _ in lengths]
    for window, peak in _peaks(result, pools, lengths, first, last, _gpus(table, settings)):
        actual[window].append(peak)
    steps = _steps(log)
    found = []
    for window, (length, ticks) in enumerate(zip(settings.options.windows, lengths, strict=True)):
        if not actual[window]:
            continue
        begins = np.arange(len(actual[window]), dtype=np.float64) * (ticks * TICK) + first * TICK
        forecast = np.array([_at(steps.get((i, window)), begins) for i in range(len(pools))])
        found.append(Compared(length, begins, forecast, np.array(actual[window]).T))
    return found


def _gpus(table: PoolTable, settings: Settings) -> Callable[[str, int], int]:
    """Return the function from a job's pool and width to the GPUs that it takes."""
    if settings.cells is None:
        return lambda _, width: width
    places = ClusterState(table.pools, settings.options, Cells(settings.cells)).places
    assert places is not None, "there are cells"
    return places.gpus


def _peaks(
    result: Result,
    pools: Sequence[str],
    lengths: Sequence[int],
    first: int,
    last: int,
    gpus: Callable[[str, int], int],
) -> Iterator[tuple[int, Gpus]]:
    """Yield, for each window in order, the index of its length and the peaks of all pools."""
    peaks = Peaks(pools, max(lengths) + 1)
    events: list[tuple[float, int, int]] = []  # ends before arrivals
    for i, (arrival, end) in enumerate(
        zip(result.trace.arrivals, result.schedule.ends, strict=True)
    ):
        if first * TICK < arrival.job.submit <= last * TICK:
            events.append((arrival.job.submit, 1, i))
            if end is not None:
                events.append((end, 0, i))
    events.sort()
    events.append((np.inf, 0, -1))
    for time, arrives, i in events:
        until = min(last, ceil(time / TICK) - 1 if time < np.inf else last)
        while first + peaks.newest < until:
            mark = peaks.mark()
            for window, ticks in enumerate(lengths):
                if mark >= ticks and not mark % ticks:
                    yield window, peaks.since(mark - ticks).copy()
        if i >= 0:
            job = rounded(result.trace.arrivals[i].job, gpus)
            (peaks.add if arrives else peaks.remove)(job)


_Steps = tuple[NDArray[np.float64], Gpus]


def _steps(log: ForecastLog) -> dict[tuple[int, int], _Steps]:
    """Return the times and values of the forecasts of each pool and window."""
    times, gpus = np.array(log.times), np.array(log.gpus, dtype=np.int64)
    keys = np.array(log.pools, dtype=np.int64), np.array(log.windows, dtype=np.int64)
    found = {}
    for pool, window in sorted(set(zip(keys[0].tolist(), keys[1].tolist(), strict=True))):
        mine = (keys[0] == pool) & (keys[1] == window)
        found[pool, window] = (times[mine], gpus[mine])
    return found


def _at(steps: _Steps | None, times: NDArray[np.float64]) -> Gpus:
    """Return the forecast in force at each time; before the first one it is 0."""
    if steps is None:
        return np.zeros(len(times), np.int64)
    place = np.searchsorted(steps[0], times, side="right")
    values: Gpus = np.concatenate([[0], steps[1]])[place]
    return values


def loads_summary(found: Sequence[Compared], quotas: Sequence[int]) -> list[dict[str, Any]]:
    """Return how often the load forecasts of each length were high enough, and by how much.

    A pool whose forecast is its whole quota or more reserves all of its GPUs (`all_reserved`), as
    it does without history. Else the forecast was high enough (`covered`) or too low (`missed`).
    """
    rows = []
    limits = np.array(quotas, dtype=np.int64)[:, None]
    for length, _, forecast, actual in found:
        everything = forecast >= limits
        missed = ~everything & (actual > forecast)
        rows.append({
            "window_s": length,
            "forecasts": int(forecast.size),
            "all_reserved": int(np.count_nonzero(everything)),
            "covered": int(np.count_nonzero(~everything & ~missed)),
            "missed": int(np.count_nonzero(missed)),
            "forecast_gpus": float(np.minimum(forecast, limits).mean()),
            "actual_gpus": float(actual.mean()),
        })  # fmt: skip
    return rows


def run_times_summary(result: Result, settings: Settings) -> list[dict[str, Any]]:
    """Return how many measured jobs were expected to end within each window, and how many did.

    Estimates are those at submission.
    """
    estimates = result.schedule.estimates
    if estimates is None:
        return []
    known = [
        (estimate, duration)
        for (job, duration), estimate in zip(result.trace.arrivals, estimates, strict=True)
        if estimate is not None and job.submit >= settings.warmup
    ]
    rows = []
    for window in settings.options.windows:
        within = [duration for estimate, duration in known if estimate <= window]
        rows.append({
            "window_s": window,
            "jobs": len(known),
            "expected": len(within),
            "kept": sum(1 for duration in within if duration <= window),
            "actual": sum(1 for _, duration in known if duration <= window),
        })  # fmt: skip
    return rows


def accuracy_of(
    result: Result, table: PoolTable, settings: Settings, quotas: Mapping[str, int]
) -> dict[str, Any]:
    """Return the forecasts of a policy and the actual values, as plain values."""
    limits = [quotas[pool.name] for pool in table.pools]
    return {
        "policy": result.schedule.policy,
        "loads": loads_summary(compared_loads(result, table, settings), limits),
        "run_times": run_times_summary(result, settings),
    }
