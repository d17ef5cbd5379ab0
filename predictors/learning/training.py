"""WillJobsArrive and quantiles of load learned from what was observed (§5.4.1).

Time is never shuffled: the newest part of the training span is held out, the threshold chosen and
the scores taken there, and then all of the span is learned from.
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
"""Share of the training span, its newest, that the threshold is chosen on: three weeks of Philly's
fifteen, so that no single week decides."""

PLATEAU = 0.99
"""The threshold is in the middle of those whose F is so close to the best: the best itself jumps
about from week to week."""

OVERLAP = 6
"""Rows a window that are learned from. Rows a tick apart see nearly the same window, and trees take
them for confirmation of each other."""

MAX_ROWS = 100_000
"""Rows learned from for one window: some seconds of work; half as many again gave no better F."""

MAX_LOAD_ROWS = 30_000
"""The same for quantiles of load, of which there are eight to learn."""

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
"""Small trees, each from a part of the rows and features: deeper ones learn single weeks by heart.
One thread: several wait for each other where cores are shared, and do not add up the same twice."""

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
    """What was observed at each tick, and what came after it.

    `times` are seconds (ticks), `features` (ticks, pools, windows, `NAMES`), `jobs` and `gpus` what
    arrived in (t, t + window] (ticks, pools, windows). Nothing is known of arrivals after `end`.
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
        """Seconds from one row to the next, on average: of large logs not every tick is there."""
        count = len(self.times)
        return self.tick if count < 2 else float(self.times[-1] - self.times[0]) / (count - 1)

    def ticks(self, window: int, since: float, until: float) -> NDArray[np.int64]:
        """Ticks from `since` on whose window is over by `until`."""
        over = self.times + self.windows[window] <= min(until, self.end)
        return np.flatnonzero((self.times >= since) & over)

    def inputs(self, ticks: NDArray[np.int64], window: int) -> FeatureArray:
        """Features at these ticks for one window: (ticks · pools, features)."""
        return self.features[ticks, :, window].reshape(-1, self.features.shape[3])

    def some(self, ticks: NDArray[np.int64], window: int) -> NDArray[np.bool_]:
        """Whether any job arrived: (ticks · pools)."""
        return (self.jobs[ticks, :, window] > 0).ravel()

    def load(self, ticks: NDArray[np.int64], window: int) -> NDArray[np.int64]:
        """GPUs that arrived: (ticks · pools)."""
        return self.gpus[ticks, :, window].ravel()


class TooShortError(Exception):
    """A span has nothing to learn from for this window (seconds), or nothing to hold out."""

    def __init__(self, window: float) -> None:
        """Name the window."""
        super().__init__(window)
        self.window = window


class JudgedForecast(NamedTuple):
    """What a model said of one window (seconds) and what came; `covered` as in `WindowModel`."""

    window: float
    scores: Scores
    covered: tuple[float, ...]
    pinball: float


def train(rows: TrainingRows, *, until: float, trace_sha256: str, since: float = -np.inf) -> Model:
    """Learn from the rows of [since, until], of which nothing later is seen.

    Raises TooShortError where a window does not fit into the span several times.
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
    """Trees for WillJobsArrive from [since, until], their threshold, and the scores held out.

    They learn from the first `features` of `NAMES`, or all. Raises TooShortError.
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
    """The earlier ticks, whose windows are over before the newest begin, and the newest."""
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
    """Ticks far enough from each other, and few enough."""
    apart = int(rows.windows[window] / OVERLAP / rows.step)
    too_many = -(-len(ticks) * rows.jobs.shape[1] // most)
    return ticks[:: max(1, apart, too_many)]


def best_threshold(chances: FeatureArray, true: NDArray[np.bool_]) -> float:
    """The chance from which on to say yes, for the best F: the middle of those nearly as good.

    0, always yes, where all or nothing was true: nothing is known then of when to say no.
    """
    if true.all() or not true.any():
        return 0.0
    order = np.argsort(-chances, kind="stable")
    falling = chances[order]
    hits = np.cumsum(true[order])
    f = 2 * hits / (np.arange(1, len(hits) + 1) + hits[-1])
    f[:-1][falling[:-1] == falling[1:]] = 0.0  # a threshold takes in all of the same chance
    good = falling[f >= PLATEAU * f.max()]
    return float((good[0] + good[-1]) / 2)


def score(said: NDArray[np.bool_], true: NDArray[np.bool_]) -> Scores:
    """Precision, recall and F of the class 'some job arrives'; 0 where there is none."""
    hits, positives = int((said & true).sum()), int(true.sum())
    return Scores(
        precision=hits / max(1, int(said.sum())),
        recall=hits / max(1, positives),
        f=2 * hits / max(1, int(said.sum()) + positives),
        positives=positives,
        n=len(true),
    )


def judge(
    model: Model, rows: TrainingRows, since: float, until: float = np.inf
) -> list[JudgedForecast]:
    """What a model says in [since, until], by window; windows that bring no row are left out."""
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
    """The share of the rows in which no more came than each stated quantile."""
    return tuple(float(share) for share in (true[:, None] <= gpus).mean(axis=0))


def pinball(gpus: NDArray[np.int64], true: NDArray[np.int64]) -> float:
    """The mean loss of the stated quantiles of log(1 + GPUs) (rows, quantiles): less is better."""
    missed = np.log1p(true)[:, None] - np.log1p(gpus)
    levels = np.array(QUANTILES)
    return float(np.maximum(levels * missed, (levels - 1) * missed).mean())


def _versions() -> dict[str, str]:
    import xgboost  # noqa: PLC0415  an extra

    return {"numpy": np.__version__, "xgboost": xgboost.__version__}


def persistence(rows: TrainingRows, ticks: NDArray[np.int64], window: int) -> NDArray[np.bool_]:
    """The least a forecast must beat: what arrived in the last window arrives in the next."""
    at = NAMES.index("new in [-1k, 0]")
    return rows.inputs(ticks, window)[:, at] > 0
