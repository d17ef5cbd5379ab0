"""Loads of pools that were not there for long: what nobody has seen is no reason to lend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil

from predictors.loads.peaks import apart
from sia.forecasts import Loads
from sia.limits import MAX_GROUP, TICK
from sia.model import Job, Load

WINDOWS_SEEN = 19
"""Windows of a length that a pool is seen for before anything is said of the next one: of as many
the highest is the quantile 0.95 of what comes (`predictors.peaks`)."""


def judged_after(window: float) -> float:
    """Seconds that a pool is seen for before windows of this length (seconds) are judged."""
    ticks = ceil(window / TICK)
    return TICK * (ticks + WINDOWS_SEEN * apart(ticks))


class NewPoolLoads(Loads):
    """Another forecast, beyond any quota for pools that have not been seen for long enough.

    A forecast of one past for all pools takes the time before one of them came for a time in which
    nothing was asked of it.
    """

    def __init__(self, loads: Loads, since: Mapping[str, float], windows: Sequence[float]) -> None:
        """Pools are seen `since` then (seconds, by name); windows are seconds."""
        self._loads = loads
        young = (
            (begin + judged_after(length), pool, window)
            for pool, begin in since.items()
            for window, length in enumerate(windows)
        )
        self._young = sorted(young, reverse=True)  # the next to be judged last
        self._kept: dict[tuple[str, int], int] | None = None  # what was said of those meanwhile

    def submitted(self, now: float, job: Job) -> None:
        """As the other."""
        self._loads.submitted(now, job)

    def started(self, now: float, job: Job, run_time: float) -> None:
        """As the other."""
        self._loads.started(now, job, run_time)

    def finished(self, now: float, job: Job) -> None:
        """As the other."""
        self._loads.finished(now, job)

    def withdrawn(self, now: float, job: Job) -> None:
        """As the other."""
        self._loads.withdrawn(now, job)

    def unasked(self, now: float) -> None:
        """As the other."""
        self._loads.unasked(now)

    def changes(self, now: float) -> Sequence[Load]:
        """As the other for pools that were seen for long enough. O(1) beside it, but at first."""
        said = self._loads.changes(now)
        found = []
        if self._kept is None:
            self._judge(now)
            self._kept = {(pool, window): 0 for _, pool, window in self._young}
            found = [Load(pool, window, MAX_GROUP) for pool, window in self._kept]
        if not self._kept:
            return said
        for load in said:
            if (load.pool, load.window) in self._kept:
                self._kept[load.pool, load.window] = load.gpus
            else:
                found.append(load)
        found += (Load(*key, self._kept.pop(key)) for key in self._judge(now))
        return found

    def _judge(self, now: float) -> list[tuple[str, int]]:
        """Who has been seen for long enough by now, each once."""
        judged = []
        while self._young and self._young[-1][0] <= now:
            judged.append(self._young.pop()[1:])
        return judged
