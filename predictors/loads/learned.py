"""TotalNewLoad from a learned model (§5.4): what may arrive, where anything will."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from math import ceil
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from predictors.learning.features import NAMES, FeatureArray, Features
from predictors.learning.model import BEYOND, QUANTILES, Model, WindowModel, between, place
from predictors.loads.said import differences
from predictors.loads.sliding import SlidingMaximum
from sia.forecasts import Loads, PredictorContext, QuantileLimit
from sia.limits import MAX_GROUP, RECENT
from sia.model import Job, Load

RATE = 0.02
"""Places among the learned quantiles that a tick without a hit moves a calibration by. Ten times
less takes weeks to notice that a log has changed; ten times more swings with every burst."""

ASKED = NAMES.index("GPUs in [-1k, 0]")


class LoadCalibration:
    """A stated quantile of the loads of one window, over all pools, held to what it states.

    It is read off between two of the learned quantiles. Once a window is over, the place moves down
    if more was covered than stated, and up if less (Gibbs and Candès 2021). O(pools) a tick.
    """

    def __init__(self, learned: WindowModel, quantile: float, ticks: int) -> None:
        """Begin where the days held out say, for a window of so many ticks.

        Raises ValueError for a quantile beyond those learned.
        """
        self._at = place(quantile, learned.covered)
        self._quantile = quantile
        self._ticks = ticks
        self._open: deque[tuple[int, NDArray[np.int64]]] = deque()

    def state(
        self, tick: int, quantiles: NDArray[np.int64], arrived: NDArray[Any]
    ) -> NDArray[np.int64]:
        """GPUs that at most arrive from this tick on: (pools).

        `quantiles` (pools, `QUANTILES`) are the learned ones, `arrived` (pools) the GPUs that
        arrived in the window that ends now. Ticks ascend; where some are left out, what came is
        held against what was stated last before its window began.
        """
        over = None
        while self._open and self._open[0][0] <= tick - self._ticks:
            over = self._open.popleft()[1]
        if over is not None:
            missed = self._quantile - float((arrived <= over).mean())
            self._at = min(max(self._at + RATE * missed, 0.0), len(QUANTILES) - 1 + BEYOND)
        stated = between(quantiles, self._at)
        self._open.append((tick, stated))
        return stated


class LearnedLoads(Loads):
    """The sliding maximum where a model says that jobs will arrive, otherwise 0.

    Or, with `load_quantile`, the GPUs that at most arrive with this chance. Either is said anew at
    every tick and at no other time: O(pools · windows · features) a tick, O(windows) an event.
    Until a window has gone by, anything may arrive in it.
    """

    summary = "a model says where anything arrives, the highest load of late how much"
    takes_quantile = True
    needs_model = True

    @classmethod
    def build(cls, context: PredictorContext) -> Self:
        """Build one that has seen nothing yet, from a model of the same windows."""
        model, recent, quantile = context.model, context.recent, context.quantile
        assert isinstance(model, Model), "needs_model"
        return cls(context.pools, context.windows, context.start, model, recent, quantile)

    @classmethod
    def quantile_limit(cls, windows: Sequence[float]) -> QuantileLimit:
        """Return the highest quantile that models are trained for."""
        return QuantileLimit(QUANTILES[-1], "models are trained for no higher quantile")

    @classmethod
    def describe(cls, quantile: float | None, recent: int) -> str:
        """Say what the model states: whether jobs arrive, or how many GPUs."""
        if quantile is not None:
            return "a model says how many GPUs arrive at most"
        return f"{cls.summary}, {recent} windows back"

    def __init__(
        self,
        pools: Sequence[str],
        windows: Sequence[float],
        start: float,
        model: Model,
        recent: int = RECENT,
        load_quantile: float | None = None,
    ) -> None:
        """Begin to observe at `start` (seconds).

        Raises ValueError where the model is of other windows or features, or was taught no such
        quantile.
        """
        if tuple(windows) != model.manifest.windows:
            raise ValueError(f"the model is of windows {model.manifest.windows}, not {windows}")
        self._pools = pools
        self._windows = windows
        self._start = start
        self._tick_length = model.manifest.tick
        self._features = Features(pools, windows, start, self._tick_length)
        if model.manifest.features != NAMES:
            raise ValueError("the model is of other features")
        self._model = model
        self._calibrations = [
            LoadCalibration(learned, load_quantile, ceil(window / self._tick_length))
            for learned, window in zip(model.manifest.learned, windows, strict=True)
            if load_quantile is not None
        ]
        self._sliding = (
            SlidingMaximum(pools, windows, start, recent) if load_quantile is None else None
        )
        self._said = np.zeros((len(pools), len(windows)), np.int64)
        self._tick = float("-inf")

    def submitted(self, now: float, job: Job) -> None:
        """Learn that a job arrived."""
        self._features.submitted(now, job)
        if self._sliding is not None:
            self._sliding.submitted(now, job)

    def started(self, now: float, job: Job, run_time: float) -> None:
        """Learn that a job runs from now on, and how long it is thought to."""
        self._features.started(now, job, run_time)

    def finished(self, now: float, job: Job) -> None:
        """Learn that a job has ended."""
        self._features.finished(now, job)

    def withdrawn(self, now: float, job: Job) -> None:
        """Learn that a job is gone without having ended."""
        self._features.withdrawn(now, job)

    def unasked(self, now: float) -> None:
        """Calibrate, as what would have been said at this tick is held against what comes."""
        if self._calibrations:
            self._loads(now)

    def changes(self, now: float) -> list[Load]:
        """All loads that the newest tick changed."""
        if now // self._tick_length == self._tick:
            return []
        self._tick = now // self._tick_length
        if self._sliding is not None:
            self._sliding.changes(now)  # what it would say is forgotten, and its memory freed
        loads = self._loads(now)
        said, self._said = self._said, loads
        return differences(self._pools, said, loads)

    def _loads(self, now: float) -> NDArray[np.int64]:
        """GPUs thought to arrive: (pools, windows)."""
        features = self._features.at(now)
        loads = np.full(self._said.shape, MAX_GROUP, np.int64)
        for window, length in enumerate(self._windows):
            if now >= self._start + length:
                inputs = np.ascontiguousarray(features[:, window])
                loads[:, window] = self._load(now, inputs, window)
        return loads

    def _load(self, now: float, features: FeatureArray, window: int) -> NDArray[np.int64]:
        """GPUs thought to arrive within a window: (pools)."""
        if self._sliding is None:
            quantiles = self._model.quantiles(features, window)
            tick = int(now // self._tick_length)
            return self._calibrations[window].state(tick, quantiles, features[:, ASKED])
        arrives = self._model.arrives(features, window)
        loads = np.zeros(len(arrives), np.int64)
        for pool in np.flatnonzero(arrives).tolist():
            loads[pool] = self._sliding.estimate(now, self._pools[pool], window)
        return loads
