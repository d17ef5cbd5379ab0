"""Forecasts for pools that are new: a pool does not lend before its load is known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil

from predictors.loads.peaks import apart
from sia.forecasts import Loads
from sia.limits import MAX_GROUP, TICK
from sia.model import Job, Load

WINDOWS_SEEN = 19
"""Number of windows of each length for which a pool is observed before its first forecast. The
highest of 19 values is the 0.95 quantile of the next one (`predictors.loads.peaks`)."""


def judged_after(window: float) -> float:
    """Return the seconds for which a pool is observed before windows of a length are forecast."""
    ticks = ceil(window / TICK)
    return TICK * (ticks + WINDOWS_SEEN * apart(ticks))


class NewPoolLoads(Loads):
    """Wraps a forecast, and returns a load above any quota for pools that are too new.

    A forecast with one history for all pools would count the time before a pool existed as time
    without load.
    """

    def __init__(self, loads: Loads, since: Mapping[str, float], windows: Sequence[float]) -> None:
        """Take the second `since` when each pool exists. Windows are in seconds."""
        self._loads = loads
        young = (
            (begin + judged_after(length), pool, window)
            for pool, begin in since.items()
            for window, length in enumerate(windows)
        )
        self._young = sorted(young, reverse=True)  # the next one last, for pop()
        self._latest: dict[tuple[str, int], int] | None = None  # their latest loads

    def submitted(self, now: float, job: Job) -> None:
        """Record an arrival."""
        self._loads.submitted(now, job)

    def started(self, now: float, job: Job, run_time: float) -> None:
        """Record a start, with the run-time estimate in seconds."""
        self._loads.started(now, job, run_time)

    def finished(self, now: float, job: Job) -> None:
        """Record an end."""
        self._loads.finished(now, job)

    def withdrawn(self, now: float, job: Job) -> None:
        """Record that a job was cancelled."""
        self._loads.withdrawn(now, job)

    def forget(self, pool: str, before: float) -> None:
        """Drop what the forecast has observed of a pool before that second."""
        self._loads.forget(pool, before)

    def requota(self, now: float, pool: str, quota: int) -> None:
        """Record a pool's quota in GPUs."""
        self._loads.requota(now, pool, quota)

    def unasked(self, now: float) -> None:
        """Record a tick without a query."""
        self._loads.unasked(now)

    def changes(self, now: float) -> Sequence[Load]:
        """Return the changed loads.

        O(1) in addition to the wrapped forecast after the first call.
        """
        changed = self._loads.changes(now)
        found = []
        if self._latest is None:
            self._judge(now)
            self._latest = {(pool, window): 0 for _, pool, window in self._young}
            found = [Load(pool, window, MAX_GROUP) for pool, window in self._latest]
        if not self._latest:
            return changed
        for load in changed:
            if (load.pool, load.window) in self._latest:
                self._latest[load.pool, load.window] = load.gpus
            else:
                found.append(load)
        found += (Load(*key, self._latest.pop(key)) for key in self._judge(now))
        return found

    def _judge(self, now: float) -> list[tuple[str, int]]:
        """Return the (pool, window) pairs that have been observed long enough by now, each once."""
        judged = []
        while self._young and self._young[-1][0] <= now:
            judged.append(self._young.pop()[1:])
        return judged
