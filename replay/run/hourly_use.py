"""How much of all GPUs is used hour by hour (Fig. 2)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from replay.logs.trace import PoolTable
from replay.run.run import Settings
from replay.run.schedule import Result
from replay.run.summary import span
from sia.wording import HOUR


def hourly_use(result: Result, table: PoolTable, settings: Settings) -> list[float]:
    """GPU-time used / owned over all pools, in percent, of each whole hour (Fig. 2).

    From the end of the warm-up to the last submission.
    """
    begin, end = span(result.trace, settings)
    hours = int((end - begin) / HOUR)
    runs = ((run.start, run.end, run.width) for run in result.schedule.runs(result.trace))
    used = gpu_hours(runs, begin, hours)
    owned = gpu_hours(_ownership(table), begin, hours)
    return [round(100 * u / o, 4) if o else 0.0 for u, o in zip(used, owned, strict=True)]


def _ownership(table: PoolTable) -> Iterator[tuple[float, float, int]]:
    for steps in table.quotas().values():
        stops = [time for time, _ in steps[1:]] + [float("inf")]
        for (start, quota), stop in zip(steps, stops, strict=True):
            yield start, stop, quota


def gpu_hours(spans: Iterable[tuple[float, float, int]], begin: float, hours: int) -> list[float]:
    """GPU-hours that (from, to, GPUs) make up in each of so many hours from `begin` on."""
    parts = [0.0] * (hours + 1)  # of hours in which a span begins or ends
    steps = [0] * (hours + 2)  # GPUs that come and go between those that it fills
    for start, stop, gpus in spans:
        first = max(0.0, (start - begin) / HOUR)
        last = min(float(hours), (stop - begin) / HOUR)
        if first >= last:
            continue
        low, high = int(first), int(last)
        if low == high:
            parts[low] += gpus * (last - first)
            continue
        parts[low] += gpus * (low + 1 - first)
        parts[high] += gpus * (last - high)
        steps[low + 1] += gpus
        steps[high] -= gpus
    level, whole = 0, []
    for hour in range(hours):
        level += steps[hour]
        whole.append(level + parts[hour])
    return whole
