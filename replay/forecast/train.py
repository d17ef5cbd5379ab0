"""Forecasts of arrivals learned from a job log."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, inf
from statistics import fmean
from typing import NamedTuple

import numpy as np

from predictors.learning.features import NAMES, FeatureArray, Features
from predictors.learning.model import Model
from predictors.learning.training import JudgedForecast, TooShortError, TrainingRows, judge, train
from predictors.run_times.history import HistoryRunTimes
from replay.forecast.model_folder import require_xgboost
from replay.logs.limits import MAX_HOURS
from replay.logs.trace import PoolTable, Trace, checksum_of_jobs, playable
from sia import Core, Pool
from sia.console.errors import UserError
from sia.core.playout import Arrival, play
from sia.forecasts import Loads
from sia.limits import MAX_QUOTA, TICK, WINDOWS
from sia.model import Job, Load
from sia.policies.queues.fcfs import Fcfs
from sia.wording import DAY, HOUR, as_typed

MAX_OBSERVED = 1_800_000
"""Maximum of ticks times pools times windows observed of one log: 400 MB of features. All 1,230,000
of Philly fit; of a larger log every second tick is used, or every third, as many as fit."""

GOLDEN = (5**0.5 - 1) / 2
"""Multiples of the golden ratio choose the ticks, because they follow no period. On Philly's newest
days, jobs arrive within 5 minutes after 17 % of the odd ticks and 10 % of the even ones (averaged
over pools). A threshold chosen on even ticks alone gave an F of 0.38 instead of 0.58."""

RECENT_SPAN = 60 * DAY
"""Default of the seconds before the held-out days that a retrained model learns from. On Philly the
first 40 days spoil the result, and two months contain each weekday eight times."""


def train_on(
    trace: Trace,
    table: PoolTable | None,
    *,
    since: float = -inf,
    until: float = inf,
    windows: Sequence[float] = WINDOWS,
    name: str = "the log",
) -> Model:
    """Train a model on a log as it was read, from the jobs submitted in [since, until] (seconds).

    For `table` see `observe`. Raises UserError if the log is too short, or xgboost is not
    installed.
    """
    rows = observe(trace, table, until=until, windows=windows, name=name)
    checksum = checksum_of_jobs(trace, rows.end)
    return learn(rows, until=rows.end, trace_sha256=checksum, since=since, name=name)


def learn(
    rows: TrainingRows,
    *,
    until: float,
    trace_sha256: str,
    since: float = -inf,
    name: str = "the log",
) -> Model:
    """Train on rows. Raises UserError if there are too few, or xgboost is not installed."""
    require_xgboost()
    try:
        return train(rows, until=until, trace_sha256=trace_sha256, since=since)
    except TooShortError as error:
        raise UserError(
            f"{name}: is too short to train a window of {as_typed(error.window)}; give a"
            f" longer log, at least ten times the window, or shorter --windows"
        ) from None


def observe(
    trace: Trace,
    table: PoolTable | None,
    *,
    until: float = inf,
    windows: Sequence[float] = WINDOWS,
    name: str = "the log",
) -> TrainingRows:
    """Return what an online forecast would have seen at every tick, and the arrivals that followed.

    The log is replayed first come, first served in the pools of `table`; without it every job
    starts when it is submitted. Jobs submitted after `until` (seconds) are ignored. Raises
    UserError if no job is left, the log is too long, or a window is not a whole number of ticks.
    """
    refuse_windows(windows)
    every = trace.arrivals if table is None else playable(trace, table).arrivals
    arrivals = [arrival for arrival in every if arrival.job.submit <= until]
    if not arrivals:
        raise UserError(f"{name}: has no jobs to learn from; give a log that has, or a later time")
    pools = pools_of(arrivals, table)
    start, end = arrivals[0].job.submit, min(until, every[-1].job.submit)
    if end - start > MAX_HOURS * HOUR:
        raise UserError(f"{name}: is longer than {MAX_HOURS:,} hours; are its times seconds?")
    observer = _Observer([pool.name for pool in pools], windows, start, end)
    watch(arrivals, table, observer, end)
    return observer.rows([arrival.job for arrival in arrivals])


def thinned(rows: TrainingRows) -> str:
    """Return a note if not every tick of a log was used (`MAX_OBSERVED`); else an empty text."""
    every = round(rows.step / rows.tick)
    if every <= 1:
        return ""
    return (
        f"too many ticks, pools and windows to keep: one of {every} ticks is looked at; "
        "fewer --windows or a shorter log would keep more"
    )


def refuse_windows(windows: Sequence[float]) -> None:
    """Raise UserError if a window (seconds) is not a whole number of ticks."""
    for window in windows:
        if window % TICK:
            raise UserError(
                f"--windows: {as_typed(window)} is not a multiple of {as_typed(TICK)}; "
                "use multiples, like 5m,1h"
            )


def watch(arrivals: Sequence[Arrival], table: PoolTable | None, loads: Loads, end: float) -> None:
    """Inform a forecast of all events up to second `end`, first come, first served."""
    facts = [] if table is None else table.changes
    core, run_times = Core(pools_of(arrivals, table), Fcfs()), HistoryRunTimes()
    for instant in play(core, arrivals, run_times=run_times, loads=loads, facts=facts):
        if instant.now >= end:
            break


def pools_of(arrivals: Sequence[Arrival], table: PoolTable | None) -> list[Pool]:
    """Return the pools of a table; without it, a pool per name in which no job ever waits."""
    if table is not None:
        return table.pools
    names = dict.fromkeys(arrival.job.pool for arrival in arrivals)
    return [Pool(pool, MAX_QUOTA, share=False) for pool in names]


class _Observer(Loads):
    """Records the features of every tick, as an online forecast sees them; predicts nothing."""

    def __init__(
        self, pools: Sequence[str], windows: Sequence[float], start: float, end: float
    ) -> None:
        self._pools, self._windows, self._end = pools, tuple(windows), end
        self._features = Features(pools, windows, start)
        self._tick = self._first = ceil(start / TICK)
        ticks = int(end // TICK) + 1 - self._first
        self._every = max(1, ceil(ticks * len(pools) * len(windows) / MAX_OBSERVED))
        self._times: list[float] = []
        most = ceil(ticks / self._every)
        self._seen: FeatureArray = np.empty(
            (most, len(pools), len(windows), len(NAMES)), np.float32
        )

    def submitted(self, now: float, job: Job) -> None:
        self._look_before(now)
        self._features.submitted(now, job)

    def started(self, now: float, job: Job, run_time: float) -> None:
        self._look_before(now)
        self._features.started(now, job, run_time)

    def finished(self, now: float, job: Job) -> None:
        self._look_before(now)
        self._features.finished(now, job)

    def changes(self, now: float) -> Sequence[Load]:
        self._look_before(now)
        if self._tick * TICK == now <= self._end:
            self._look()
        return ()

    def _look_before(self, now: float) -> None:
        while self._tick * TICK < now and self._tick * TICK <= self._end:
            self._look()

    def _look(self) -> None:
        now = self._tick * TICK
        self._seen[len(self._times)] = self._features.at(now)
        self._times.append(now)
        begun = len(self._times)
        among = int(self._every * (begun * GOLDEN % 1))  # one of the next `_every` ticks
        self._tick = self._first + self._every * begun + among

    def rows(self, jobs: Sequence[Job]) -> TrainingRows:
        self._look_before(inf)
        times = np.array(self._times)
        shape = (len(times), len(self._pools), len(self._windows))
        counts, gpus = np.zeros(shape, np.int32), np.zeros(shape, np.int64)
        for i, pool in enumerate(self._pools):
            own = [job for job in jobs if job.pool == pool]
            submits = np.array([job.submit for job in own])
            asked = np.concatenate([[0], np.cumsum([job.width for job in own], dtype=np.int64)])
            after = np.searchsorted(submits, times, "right")
            for window, length in enumerate(self._windows):
                by = np.searchsorted(submits, times + length, "right")
                counts[:, i, window] = by - after
                gpus[:, i, window] = asked[by] - asked[after]
        return TrainingRows(
            times, self._seen[: len(times)], counts, gpus, self._end, self._windows, TICK
        )


class Comparison(NamedTuple):
    """A new and an old model, by window, on days that neither has learned from."""

    new: Model
    of_new: list[JudgedForecast]
    of_old: list[JudgedForecast]

    @property
    def f(self) -> tuple[float, float]:
        """Return F of the new and of the old model, averaged over the windows."""
        new, old = (fmean(of.scores.f for of in judged) for judged in (self.of_new, self.of_old))
        return new, old

    @property
    def loss(self) -> tuple[float, float]:
        """Return the loss of load of the new and of the old model, averaged over the windows."""
        new, old = (fmean(of.pinball for of in judged) for judged in (self.of_new, self.of_old))
        return new, old

    @property
    def better(self) -> bool:
        """Return whether the new model predicts arrivals better on average, and load no worse."""
        return self.f[0] > self.f[1] and self.loss[0] <= self.loss[1]


def compare(
    rows: TrainingRows,
    old: Model,
    *,
    held_from: float,
    trace_sha256: str,
    since: float | None = None,
) -> Comparison:
    """Train a new model on [since, held_from], and measure both models on later jobs.

    Times are seconds; without `since` the recent span is used. Raises UserError if the old model
    has other windows or features, if it has learned from the later jobs, and if the log is too
    short.
    """
    if old.manifest.windows != rows.windows or old.manifest.features != NAMES:
        raise UserError("--compare: the old model has other windows or features; leave it out")
    if old.manifest.until > held_from:
        raise UserError(
            f"--compare: the old model was trained up to second {ceil(old.manifest.until)}, but "
            f"the test starts at second {ceil(held_from)}; give a longer log"
        )
    since = held_from - RECENT_SPAN if since is None else since
    new = learn(rows, until=held_from, trace_sha256=trace_sha256, since=since)
    return Comparison(new, judge(new, rows, held_from), judge(old, rows, held_from))
