"""TotalNewLoad from a learned model (§5.4)."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from math import ceil
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from predictors.learning.features import NAMES, FeatureArray, Features
from predictors.learning.model import BEYOND, QUANTILES, Model, WindowModel, between, place
from predictors.loads.differences import differences
from predictors.loads.sliding import SlidingMaximum
from sia.forecasts import Loads, PredictorContext, QuantileLimit
from sia.limits import MAX_GROUP, RECENT
from sia.model import Job, Load

RATE = 0.02
"""Step of the calibration at a tick without coverage, in indexes of `QUANTILES`. A tenth of it
takes weeks to adapt to a changed log; ten times as much follows every burst."""

ASKED = NAMES.index("GPUs in [-1k, 0]")


class LoadCalibration:
    """Calibrates a quantile of the loads of one window, over all pools.

    The value is interpolated between learned quantiles. When a window is over, the index moves down
    if the coverage was above the quantile, and up if below (Gibbs and Candès 2021). O(pools) for
    each tick.
    """

    def __init__(self, learned: WindowModel, quantile: float, ticks: int) -> None:
        """Start at the index given by the held-out days, for a window of `ticks` ticks.

        Raises ValueError for a quantile above the learned ones.
        """
        self._at = place(quantile, learned.covered)
        self._quantile = quantile
        self._ticks = ticks
        self._open: deque[tuple[int, NDArray[np.int64]]] = deque()

    def state(
        self, tick: int, quantiles: NDArray[np.int64], arrived: NDArray[Any]
    ) -> NDArray[np.int64]:
        """Return the calibrated quantile of arriving GPUs from this tick on: (pools).

        Args:
            tick: The tick. Ticks ascend; some may be left out. A load is compared with the last
                value stated before its window began.
            quantiles: The learned quantiles in GPUs: (pools, `QUANTILES`).
            arrived: GPUs that arrived in the window that ends now: (pools).
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
    """The sliding maximum if the model predicts arrivals, otherwise 0.

    With `load_quantile`, a calibrated quantile of the GPUs that arrive. Forecasts change only at
    ticks: O(pools · windows · features) for each tick, O(windows) for each event. Until a window's
    length has passed, its forecast is above any quota.
    """

    summary = "a model predicts whether jobs arrive, the highest recent load how many GPUs"
    takes_quantile = True
    needs_model = True

    @classmethod
    def build(cls, context: PredictorContext) -> Self:
        """Build a predictor without history from a model of the same windows."""
        model, recent, quantile = context.model, context.recent, context.quantile
        assert isinstance(model, Model), "needs_model"
        return cls(context.pools, context.windows, context.start, model, recent, quantile)

    @classmethod
    def quantile_limit(cls, windows: Sequence[float]) -> QuantileLimit:
        """Return the highest quantile that models are trained for."""
        return QuantileLimit(QUANTILES[-1], "models are trained for no higher quantile")

    @classmethod
    def describe(cls, quantile: float | None, recent: int) -> str:
        """Describe what the model predicts: whether jobs arrive, or how many GPUs."""
        if quantile is not None:
            return "a model predicts the maximum of arriving GPUs"
        return f"{cls.summary}, over {recent} windows"

    def __init__(
        self,
        pools: Sequence[str],
        windows: Sequence[float],
        start: float,
        model: Model,
        recent: int = RECENT,
        load_quantile: float | None = None,
    ) -> None:
        """Start to observe at `start` (seconds).

        Raises ValueError if the model has other windows or features, or no such quantile.
        """
        if tuple(windows) != model.manifest.windows:
            raise ValueError(f"the model has windows {model.manifest.windows}, not {windows}")
        self._pools = pools
        self._windows = windows
        self._start = start
        self._tick_length = model.manifest.tick
        self._features = Features(pools, windows, start, self._tick_length)
        if model.manifest.features != NAMES:
            raise ValueError("the model has other features; train it with this version")
        self._model = model
        self._calibrations = [
            LoadCalibration(learned, load_quantile, ceil(window / self._tick_length))
            for learned, window in zip(model.manifest.learned, windows, strict=True)
            if load_quantile is not None
        ]
        self._sliding = (
            SlidingMaximum(pools, windows, start, recent) if load_quantile is None else None
        )
        self._last = np.zeros((len(pools), len(windows)), np.int64)
        self._tick = float("-inf")

    def submitted(self, now: float, job: Job) -> None:
        """Record an arrival."""
        self._features.submitted(now, job)
        if self._sliding is not None:
            self._sliding.submitted(now, job)

    def started(self, now: float, job: Job, run_time: float) -> None:
        """Record a start, with the run-time estimate in seconds."""
        self._features.started(now, job, run_time)

    def finished(self, now: float, job: Job) -> None:
        """Record an end."""
        self._features.finished(now, job)

    def withdrawn(self, now: float, job: Job) -> None:
        """Record that a job was cancelled."""
        self._features.withdrawn(now, job)

    def unasked(self, now: float) -> None:
        """Calibrate at a tick without a query, with the forecast that it would have returned."""
        if self._calibrations:
            self._loads(now)

    def changes(self, now: float) -> list[Load]:
        """Return the loads that the newest tick changed."""
        if now // self._tick_length == self._tick:
            return []
        self._tick = now // self._tick_length
        if self._sliding is not None:
            self._sliding.changes(now)  # discards its forecasts and frees memory
        loads = self._loads(now)
        before, self._last = self._last, loads
        return differences(self._pools, before, loads)

    def _loads(self, now: float) -> NDArray[np.int64]:
        """Return the forecasts in GPUs: (pools, windows)."""
        features = self._features.at(now)
        loads = np.full(self._last.shape, MAX_GROUP, np.int64)
        for window, length in enumerate(self._windows):
            if now >= self._start + length:
                inputs = np.ascontiguousarray(features[:, window])
                loads[:, window] = self._load(now, inputs, window)
        return loads

    def _load(self, now: float, features: FeatureArray, window: int) -> NDArray[np.int64]:
        """Return the forecasts in GPUs for one window: (pools)."""
        if self._sliding is None:
            quantiles = self._model.quantiles(features, window)
            tick = int(now // self._tick_length)
            return self._calibrations[window].state(tick, quantiles, features[:, ASKED])
        arrives = self._model.arrives(features, window)
        loads = np.zeros(len(arrives), np.int64)
        for pool in np.flatnonzero(arrives).tolist():
            loads[pool] = self._sliding.estimate(now, self._pools[pool], window)
        return loads
