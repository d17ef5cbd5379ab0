"""Training of WillJobsArrive and of load quantiles from observations (§5.4.1).

Time is never shuffled. The newest part of the training span is held out to choose the threshold and
compute scores. Then the model is trained on the whole span.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from predictors.learning.features import NAMES, FeatureArray
from predictors.learning.model import (
    FORMAT,
    QUANTILES,
    Manifest,
    Model,
    Scores,
    WindowModel,
    as_gpus,
    booster,
    digest,
)

HELD_OUT = 0.2
"""The newest share of the training span, on which the threshold is chosen: three of Philly's
fifteen weeks, so that no single week decides."""

PLATEAU = 0.99
"""The threshold is the middle of those whose F score is within this factor of the best. The best
threshold itself varies strongly from week to week."""

OVERLAP = 6
"""Training rows per window length. Rows a tick apart cover almost the same window, and trees would
treat them as independent confirmation."""

MAX_ROWS = 100_000
"""Maximum training rows for one window. They take some seconds; 50 % more did not improve F."""

MAX_LOAD_ROWS = 30_000
"""Maximum training rows for load quantiles, of which there are eight."""

TREES: dict[str, Any] = {
    "tree_method": "hist",
    "nthread": 1,
    "seed": 0,
    "max_depth": 3,
    "eta": 0.05,
    "min_child_weight": 20,
    "subsample": 0.3,
    "colsample_bynode": 0.1,
    "reg_lambda": 10,
}
"""Small trees, each trained on part of the rows and features; deeper ones overfit single weeks. One
thread, because several block each other on shared cores and sum in varying order."""

ARRIVAL_TREES: dict[str, Any] = {**TREES, "objective": "binary:logistic", "base_score": 0.5}
LOAD_TREES: dict[str, Any] = {
    **TREES,
    "objective": "reg:quantileerror",
    "quantile_alpha": list(QUANTILES[1:]),
    "colsample_bynode": 0.3,
    "eta": 0.1,
}

ARRIVAL_ROUNDS = 200
LOAD_ROUNDS = 60


class TrainingRows(NamedTuple):
    """Observations at each tick, and the arrivals that followed.

    `times` are seconds (ticks). `features` have shape (ticks, pools, windows, `NAMES`). `jobs` and
    `gpus` are the arrivals in (t, t + window], with shape (ticks, pools, windows). Arrivals after
    `end` are unknown.
    """

    times: NDArray[np.float64]
    features: FeatureArray
    jobs: NDArray[np.int32]
    gpus: NDArray[np.int64]
    end: float
    windows: tuple[float, ...]
    tick: float

    @property
    def step(self) -> float:
        """Mean seconds between rows. For large logs some ticks are left out."""
        count = len(self.times)
        return self.tick if count < 2 else float(self.times[-1] - self.times[0]) / (count - 1)

    def ticks(self, window: int, since: float, until: float) -> NDArray[np.int64]:
        """Return the ticks from `since` on whose window is over by `until`."""
        over = self.times + self.windows[window] <= min(until, self.end)
        return np.flatnonzero((self.times >= since) & over)

    def inputs(self, ticks: NDArray[np.int64], window: int) -> FeatureArray:
        """Return the features at these ticks for one window: (ticks · pools, features)."""
        return self.features[ticks, :, window].reshape(-1, self.features.shape[3])

    def some(self, ticks: NDArray[np.int64], window: int) -> NDArray[np.bool_]:
        """Return whether any job arrived: (ticks · pools)."""
        return (self.jobs[ticks, :, window] > 0).ravel()

    def load(self, ticks: NDArray[np.int64], window: int) -> NDArray[np.int64]:
        """Return the GPUs that arrived: (ticks · pools)."""
        return self.gpus[ticks, :, window].ravel()


class TooShortError(Exception):
    """The span is too short to train for a window (seconds) or to hold out rows."""

    def __init__(self, window: float) -> None:
        """Take the window in seconds."""
        super().__init__(window)
        self.window = window


class JudgedForecast(NamedTuple):
    """Scores of a model for one window (seconds); `covered` is as in `WindowModel`."""

    window: float
    scores: Scores
    covered: tuple[float, ...]
    pinball: float


def train(rows: TrainingRows, *, until: float, trace_sha256: str, since: float = -np.inf) -> Model:
    """Train a model on the rows in [since, until]. Later rows are not used.

    Raises TooShortError if a window does not fit into the span several times.
    """
    windows = range(len(rows.windows))
    learned = [_train_window(rows, window, since, until) for window in windows]
    manifest = Manifest(
        format=FORMAT,
        features=NAMES,
        windows=rows.windows,
        tick=rows.tick,
        quantiles=QUANTILES,
        since=max(float(since), float(rows.times[0])),
        until=float(until),
        rows=sum(len(rows.ticks(window, since, until)) for window in windows) * rows.jobs.shape[1],
        trace_sha256=trace_sha256,
        versions=_versions(),
        learned=tuple(of for of, _, _ in learned),
    )
    return Model(manifest, [arrivals for _, arrivals, _ in learned], [load for *_, load in learned])


def _train_window(
    rows: TrainingRows, window: int, since: float, until: float
) -> tuple[WindowModel, bytes, bytes]:
    arrivals, threshold, scores = learn_arrivals(rows, window, since, until)
    loads, covered, loss = _learn_loads(rows, window, since, until)
    learned = WindowModel(threshold, scores, covered, loss, digest(arrivals), digest(loads))
    return learned, arrivals, loads


def learn_arrivals(
    rows: TrainingRows, window: int, since: float, until: float, features: int | None = None
) -> tuple[bytes, float, Scores]:
    """Train WillJobsArrive on [since, until]; return trees, threshold and held-out scores.

    Uses the first `features` of `NAMES`, or all. Raises TooShortError.
    """
    earlier, held = _split(rows, window, since, until)
    chances = booster(_fit_arrivals(rows, window, earlier, features)).inplace_predict(
        rows.inputs(held, window)[:, :features]
    )
    true = rows.some(held, window)
    threshold = best_threshold(chances, true)
    trees = _fit_arrivals(rows, window, rows.ticks(window, since, until), features)
    return trees, threshold, score(chances >= np.float32(threshold), true)


def _learn_loads(
    rows: TrainingRows, window: int, since: float, until: float
) -> tuple[bytes, tuple[float, ...], float]:
    earlier, held = _split(rows, window, since, until)
    logs = booster(_fit_loads(rows, window, earlier)).inplace_predict(rows.inputs(held, window))
    gpus, true = as_gpus(logs), rows.load(held, window)
    trees = _fit_loads(rows, window, rows.ticks(window, since, until))
    return trees, coverage(gpus, true), pinball(gpus, true)


def _split(
    rows: TrainingRows, window: int, since: float, until: float
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the earlier and the held-out ticks. Windows of the former end before the latter."""
    begin = max(since, float(rows.times[0]))
    held_from = until - HELD_OUT * (until - begin)
    earlier, held = rows.ticks(window, since, held_from), rows.ticks(window, held_from, until)
    if not len(earlier) or not len(held):
        raise TooShortError(rows.windows[window])
    return earlier, held


def _fit_arrivals(
    rows: TrainingRows, window: int, ticks: NDArray[np.int64], features: int | None
) -> bytes:
    ticks = _thinned(rows, window, ticks, MAX_ROWS)
    inputs = rows.inputs(ticks, window)[:, :features]
    return _fit(inputs, rows.some(ticks, window), ARRIVAL_TREES, ARRIVAL_ROUNDS)


def _fit_loads(rows: TrainingRows, window: int, ticks: NDArray[np.int64]) -> bytes:
    ticks = _thinned(rows, window, ticks, MAX_LOAD_ROWS)
    logs = np.log1p(rows.load(ticks, window))
    return _fit(rows.inputs(ticks, window), logs, LOAD_TREES, LOAD_ROUNDS)


def _fit(inputs: FeatureArray, labels: NDArray[Any], trees: dict[str, Any], rounds: int) -> bytes:
    import xgboost  # noqa: PLC0415  an extra, and slow to load

    matrix = xgboost.QuantileDMatrix(inputs, labels, nthread=1)
    return bytes(xgboost.train(trees, matrix, rounds).save_raw("ubj"))


def _thinned(
    rows: TrainingRows, window: int, ticks: NDArray[np.int64], most: int
) -> NDArray[np.int64]:
    """Return a subset of ticks that are far enough apart, and not too many."""
    apart = int(rows.windows[window] / OVERLAP / rows.step)
    too_many = -(-len(ticks) * rows.jobs.shape[1] // most)
    return ticks[:: max(1, apart, too_many)]


def best_threshold(chances: FeatureArray, true: NDArray[np.bool_]) -> float:
    """Return the probability threshold with the best F score: the middle of the plateau.

    Returns 0, which always predicts arrivals, if all or no rows are positive.
    """
    if true.all() or not true.any():
        return 0.0
    order = np.argsort(-chances, kind="stable")
    falling = chances[order]
    hits = np.cumsum(true[order])
    f = 2 * hits / (np.arange(1, len(hits) + 1) + hits[-1])
    f[:-1][falling[:-1] == falling[1:]] = 0.0  # equal chances are on the same side of any threshold
    good = falling[f >= PLATEAU * f.max()]
    return float((good[0] + good[-1]) / 2)


def score(predicted: NDArray[np.bool_], true: NDArray[np.bool_]) -> Scores:
    """Return precision, recall and F of the class 'some job arrives', or 0 if it is empty."""
    hits, positives = int((predicted & true).sum()), int(true.sum())
    return Scores(
        precision=hits / max(1, int(predicted.sum())),
        recall=hits / max(1, positives),
        f=2 * hits / max(1, int(predicted.sum()) + positives),
        positives=positives,
        n=len(true),
    )


def judge(
    model: Model, rows: TrainingRows, since: float, until: float = np.inf
) -> list[JudgedForecast]:
    """Return the scores of a model in [since, until] for each window that has rows."""
    judged = []
    for window, seconds in enumerate(rows.windows):
        ticks = rows.ticks(window, since, until)
        if len(ticks):
            inputs, load = rows.inputs(ticks, window), rows.load(ticks, window)
            scores = score(model.arrives(inputs, window), rows.some(ticks, window))
            gpus = model.quantiles(inputs, window)
            judged.append(
                JudgedForecast(seconds, scores, coverage(gpus, load), pinball(gpus, load))
            )
    return judged


def coverage(gpus: NDArray[np.int64], true: NDArray[np.int64]) -> tuple[float, ...]:
    """Return the share of rows that did not exceed each quantile."""
    return tuple(float(share) for share in (true[:, None] <= gpus).mean(axis=0))


def pinball(gpus: NDArray[np.int64], true: NDArray[np.int64]) -> float:
    """Return the mean pinball loss of quantiles of log(1 + GPUs): (rows, quantiles)."""
    missed = np.log1p(true)[:, None] - np.log1p(gpus)
    levels = np.array(QUANTILES)
    return float(np.maximum(levels * missed, (levels - 1) * missed).mean())


def _versions() -> dict[str, str]:
    import xgboost  # noqa: PLC0415  an extra

    return {"numpy": np.__version__, "xgboost": xgboost.__version__}


def persistence(rows: TrainingRows, ticks: NDArray[np.int64], window: int) -> NDArray[np.bool_]:
    """Return a baseline forecast: jobs arrive in the next window if they did in the last one."""
    at = NAMES.index("new in [-1k, 0]")
    return rows.inputs(ticks, window)[:, at] > 0
