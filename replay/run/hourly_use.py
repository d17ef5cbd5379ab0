"""GPU utilisation by hour (Fig. 2)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from replay.logs.trace import PoolTable
from replay.run.run import Settings
from replay.run.schedule import Result
from replay.run.summary import span
from sia.wording import HOUR


def hourly_use(result: Result, table: PoolTable, settings: Settings) -> list[float]:
    """Return the utilisation over all pools of each whole hour, in percent (Fig. 2).

    The hours span the time from the end of the warm-up to the last submission.
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


def gpu_hours(spans: Iterable[tuple[float, float, float]], begin: float, hours: int) -> list[float]:
    """Return the GPU-hours of spans (from, to, GPUs) in each hour from `begin` on.

    O(spans + hours).
    """
    parts = [0.0] * (hours + 1)  # partly covered hours, at the ends of spans
    steps = [0.0] * (hours + 2)  # change of GPUs at the hours that spans cover completely
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
    level, whole = 0.0, []
    for hour in range(hours):
        level += steps[hour]
        whole.append(level + parts[hour])
    return whole
