"""Measures how often the load exceeds forecasts that need no training (§5.4).

`peaks` states a quantile, and the sliding maximum looks back on a number of windows. The rows show
what each setting costs in reserved GPUs, and how often it was enough.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import ceil, inf

import numpy as np
from numpy.typing import NDArray

from predictors.learning.training import TrainingRows
from predictors.loads.peaks import PeakLoads, Peaks
from predictors.loads.sliding import SlidingMaximum
from replay.forecast.arrivals import DIGITS, ScoreRow
from replay.forecast.train import pools_of, watch
from replay.logs.trace import PoolTable, Trace
from sia import Pool
from sia.forecasts import Loads
from sia.limits import MAX_GROUP, TICK
from sia.model import Job, Load

LEVELS = (0.5, 0.8, 0.9, 0.95, 0.99)
"""The quantiles with which `peaks` is measured."""

RECENTS = (3, 6, 12, 24, 48)
"""Numbers of past windows with which the sliding maximum is measured; the paper uses twelve."""

LoadCounts = NDArray[np.int64]


def judge_loads(
    trace: Trace, table: PoolTable | None, rows: TrainingRows, since: float
) -> list[ScoreRow]:
    """Return the coverage over ticks and pools of each window, forecast and setting.

    `rows` are of the same log and pools. From `since` (seconds) on, each forecast, given all
    earlier events, is compared with the maximum of GPUs that new jobs used at once in the window
    (`covered_peak`) and with the sum of what they requested (`covered_sum`). `mean_gpus` is its
    mean, at most the pool's quota.
    """
    arrivals = [a for a in trace.arrivals if a.job.submit <= rows.end]
    pools = pools_of(arrivals, table)
    recorder = _Recorder(pools, rows, arrivals[0].job.submit, since)
    watch(arrivals, table, recorder, rows.end)
    return [*recorder.facts(rows, known=table is not None)]


class _Recorder(Loads):
    """Queries every forecast at every tick; records the answers and the real peaks.

    Only evaluated ticks are recorded: in a large log not every tick is `looked_at`.
    """

    def __init__(
        self, pools: Sequence[Pool], looked_at: TrainingRows, start: float, since: float
    ) -> None:
        self._rows = {pool.name: row for row, pool in enumerate(pools)}
        self._quotas = np.array([pool.quota for pool in pools])
        self._since, self._end = since, looked_at.end
        windows = looked_at.windows
        names = [*self._rows]
        self._asked: dict[tuple[str, float], Loads] = {
            **{("peaks", level): PeakLoads(names, windows, start, level) for level in LEVELS},
            **{("sliding-max", n): SlidingMaximum(names, windows, start, n) for n in RECENTS},
        }
        self._now = {key: np.zeros((len(pools), len(windows)), np.int64) for key in self._asked}
        self._answers: dict[tuple[str, float], list[LoadCounts]] = {key: [] for key in self._asked}
        self._tick = self._first = ceil(start / TICK)
        judged = looked_at.times[looked_at.times >= since]
        self._judged = np.rint(judged / TICK).astype(np.int64)  # ticks whose answers are kept
        self._keeps = frozenset(self._judged.tolist())
        self._ticks = [ceil(window / TICK) for window in windows]
        self._peaks = Peaks(names, max(self._ticks) + 1)
        self._came: list[list[LoadCounts]] = [[] for _ in windows]

    def submitted(self, now: float, job: Job) -> None:
        self._tell(now, job, lambda of: of.submitted(now, job))
        self._peaks.add(job)

    def finished(self, now: float, job: Job) -> None:
        self._tell(now, job, lambda of: of.finished(now, job))
        self._peaks.remove(job)

    def changes(self, now: float) -> Sequence[Load]:
        self._look_before(now)
        return ()

    def _tell(self, now: float, job: Job, tell: Callable[[Loads], None]) -> None:
        self._look_before(now)
        for loads in self._asked.values():
            tell(loads)

    def _look_before(self, now: float) -> None:
        """Query at all ticks before now, once all their events are known."""
        while self._tick * TICK < now and self._tick * TICK <= self._end:
            self._look()
            self._tick += 1

    def _look(self) -> None:
        for key, loads in self._asked.items():
            for pool, window, gpus in loads.changes(self._tick * TICK):
                self._now[key][self._rows[pool], window] = gpus
            if self._tick in self._keeps:
                self._answers[key].append(self._now[key].copy())
        self._peaks.mark()
        for window, ticks in enumerate(self._ticks):
            if self._tick - ticks in self._keeps:
                begun = self._tick - ticks - self._first
                self._came[window].append(self._peaks.since(begun).copy())

    def facts(self, rows: TrainingRows, *, known: bool) -> Iterator[ScoreRow]:
        """Return the results. Without `known` quotas, the mean excludes all above any quota."""
        self._look_before(inf)
        for window, seconds in enumerate(rows.windows):
            ticks = rows.ticks(window, self._since, rows.end)
            if not len(ticks):
                continue
            at = np.searchsorted(self._judged, np.rint(rows.times[ticks] / TICK))
            peak = np.stack(self._came[window])[at]
            for (name, setting), answers in self._answers.items():
                forecasts = np.stack(answers)[at, :, window]
                gpus = np.minimum(forecasts, self._quotas)[known | (forecasts < MAX_GROUP)]
                yield {
                    "window_s": seconds,
                    "forecast": name,
                    "setting": setting,
                    "covered_peak": round(float((peak <= forecasts).mean()), DIGITS),
                    "covered_sum": round(
                        float((rows.gpus[ticks, :, window] <= forecasts).mean()), DIGITS
                    ),
                    "mean_gpus": round(float(gpus.mean()), DIGITS) if len(gpus) else None,
                }
