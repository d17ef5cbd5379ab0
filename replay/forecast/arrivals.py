"""Measures how well arrivals and load are predicted on a log (§5.4.1, appendix B).

Models learn from the first part of a log and are measured on the rest, with a prediction per tick
and pool; counts are summed over pools and ticks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import ceil
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from predictors.learning.features import GROUPS
from predictors.learning.model import QUANTILES, Model, Scores, booster
from predictors.learning.training import TrainingRows, judge, learn_arrivals, persistence, score
from predictors.loads.learned import ASKED, LoadCalibration
from replay.logs.trace import Trace
from sia.wording import HOUR, WEEK

ScoreRow = dict[str, Any]
Bools = NDArray[np.bool_]

BASE = "persistence"
"""Baseline: the next window has the arrivals of the last one. Learning must beat it."""

OWN = "more"
"""The name of the set of all features, which the model itself uses."""

LENGTHS = ((0.0, 5.0), (5.0, 60.0), (60.0, 720.0), (720.0, np.inf))
"""Bounds in minutes: pools are grouped by the mean duration of their jobs (Table 23)."""

STATED = QUANTILES[2:]
"""Quantiles of load whose coverage is measured."""

DIGITS = 4


class ArrivalForecasts(NamedTuple):
    """Predictions of one set of features for a window (seconds), and the truth: (ticks, pools)."""

    window: float
    features: str
    times: NDArray[np.float64]
    predicted: Bools
    true: Bools


class ArrivalScores(NamedTuple):
    """All tables and curves of one log, as JSON values.

    `table` and `groups` have a row for each window and set of features, `groups` also for each
    group of pools. `pool_recall` and `hour_recall` are by window (seconds): the recall in each
    pool, and in each hour of each pool in which jobs arrived (Figs. 22 and 21). `reliability` has a
    row for each window and stated quantile of load.
    """

    table: list[ScoreRow]
    groups: list[ScoreRow]
    pool_recall: dict[float, list[float]]
    hour_recall: dict[float, list[float]]
    reliability: list[ScoreRow]


def evaluate_arrivals(
    rows: TrainingRows,
    model: Model,
    trace: Trace,
    pools: Sequence[str],
    *,
    name: str,
    since: float,
    sets: bool = True,
) -> ArrivalScores:
    """Measure a model from `since` (seconds) on; `rows` are of `trace` in these pools, in order.

    With `sets`, models of the smaller sets of features are trained on the same span, to show what
    each set adds. Without it, the model may be from another log.
    """
    forecasts = list(_forecasts(rows, model, since, sets=sets))
    own = [of for of in forecasts if of.features == OWN]
    lengths = mean_durations(trace, pools)
    windows = [
        window for window in range(len(rows.windows)) if len(rows.ticks(window, since, rows.end))
    ]
    return ArrivalScores(
        table=[_row(name, of, score(of.predicted.ravel(), of.true.ravel())) for of in forecasts],
        groups=[row for of in forecasts for row in _by_length(name, of, lengths)],
        pool_recall={of.window: _recalls(of.predicted, of.true) for of in own},
        hour_recall={of.window: _hourly_recalls(of) for of in own},
        reliability=[row for window in windows for row in _reliable(rows, model, window, since)],
    )


def _forecasts(
    rows: TrainingRows, model: Model, since: float, *, sets: bool
) -> Iterator[ArrivalForecasts]:
    """Return the predictions of each set of features from `since` on, by window."""
    for window, seconds in enumerate(rows.windows):
        ticks = rows.ticks(window, since, rows.end)
        if not len(ticks):
            continue
        shape = (len(ticks), rows.jobs.shape[1])
        true, inputs = rows.some(ticks, window).reshape(shape), rows.inputs(ticks, window)
        answers = {BASE: persistence(rows, ticks, window)}
        for features, count in GROUPS.items():
            if features == OWN:
                answers[features] = model.arrives(inputs, window)
            elif sets:
                span = (model.manifest.since, model.manifest.until)
                trees, threshold, _ = learn_arrivals(rows, window, *span, features=count)
                chances = booster(trees).inplace_predict(inputs[:, :count])
                answers[features] = chances >= np.float32(threshold)
        for features, answer in answers.items():
            yield ArrivalForecasts(
                seconds, features, rows.times[ticks], answer.reshape(shape), true
            )


def _row(name: str, of: ArrivalForecasts, scores: Scores) -> ScoreRow:
    return {
        "trace": name,
        "window_s": of.window,
        "feature_set": of.features,
        "precision": round(scores.precision, DIGITS),
        "recall": round(scores.recall, DIGITS),
        "f": round(scores.f, DIGITS),
        "positives": scores.positives,
        "n": scores.n,
    }


def mean_durations(trace: Trace, pools: Sequence[str]) -> NDArray[np.float64]:
    """Return the mean run time of each pool's jobs in seconds; 0 without jobs."""
    sums: dict[str, list[float]] = {pool: [] for pool in pools}
    for job, seconds in trace.arrivals:
        if job.pool in sums:
            sums[job.pool].append(seconds)
    return np.array([sum(of) / max(1, len(of)) for of in sums.values()])


def _by_length(name: str, of: ArrivalForecasts, lengths: NDArray[np.float64]) -> Iterator[ScoreRow]:
    """Return a row for each group of pools, with the number of pools."""
    for least, most in LENGTHS:
        group = (lengths > least * 60) & (lengths <= most * 60)
        if group.any():
            row = _row(name, of, score(of.predicted[:, group].ravel(), of.true[:, group].ravel()))
            top = None if most == np.inf else most
            yield {**row, "over_min": least, "up_to_min": top, "pools": int(group.sum())}


def _recalls(predicted: Bools, true: Bools) -> list[float]:
    """Return the recall in each column that has arrivals, ascending."""
    came = true.sum(axis=0)
    recalls = (predicted & true).sum(axis=0)[came > 0] / came[came > 0]
    return [round(recall, DIGITS) for recall in np.sort(recalls).tolist()]


def _hourly_recalls(of: ArrivalForecasts) -> list[float]:
    """Return the recall in each hour of each pool, without hours that have no arrivals."""
    starts = np.flatnonzero(np.diff(of.times // HOUR, prepend=-np.inf))
    hits = np.add.reduceat(of.predicted & of.true, starts, axis=0, dtype=np.int64).ravel()
    came = np.add.reduceat(of.true, starts, axis=0, dtype=np.int64).ravel()
    recalls = hits[came > 0] / came[came > 0]
    return [round(recall, DIGITS) for recall in np.sort(recalls).tolist()]


def _reliable(rows: TrainingRows, model: Model, window: int, since: float) -> Iterator[ScoreRow]:
    """Return the coverage of each stated quantile: as learned, and as corrected online."""
    ticks = rows.ticks(window, since, rows.end)
    shape = (len(ticks), rows.jobs.shape[1], len(QUANTILES))
    learned = model.quantiles(rows.inputs(ticks, window), window).reshape(shape)
    true = rows.gpus[ticks, :, window]
    raw = (true[:, :, None] <= learned).mean(axis=(0, 1))
    for quantile in STATED:
        stated = _online(rows, model, window, quantile, ticks, learned)
        yield {
            "window_s": rows.windows[window],
            "stated": quantile,
            "covered": round(float((true <= stated).mean()), DIGITS),
            "covered_as_learned": round(float(raw[QUANTILES.index(quantile)]), DIGITS),
            "nothing_came": round(float((true == 0).mean()), DIGITS),
            "mean_gpus": round(float(stated.mean()), DIGITS),
        }


def _online(
    rows: TrainingRows,
    model: Model,
    window: int,
    quantile: float,
    ticks: NDArray[np.int64],
    learned: NDArray[np.int64],
) -> NDArray[np.int64]:
    """Return the forecasts that an online forecast makes, tick by tick: (ticks, pools)."""
    length = ceil(rows.windows[window] / rows.tick)
    calibration = LoadCalibration(model.manifest.learned[window], quantile, length)
    return np.stack(
        [
            calibration.state(
                round(rows.times[tick] / rows.tick), of, rows.features[tick, :, window, ASKED]
            )
            for tick, of in zip(ticks, learned, strict=True)
        ]
    )


def ageing(rows: TrainingRows, model: Model) -> list[ScoreRow]:
    """Return a model's scores in the weeks after its training span: a row per week and window."""
    begin, facts = model.manifest.until, []
    for week in range(int((rows.end - begin) / WEEK)):
        since = begin + week * WEEK
        for of in judge(model, rows, since, since + WEEK):
            window = rows.windows.index(of.window)
            ticks = rows.ticks(window, since, since + WEEK)
            base = score(persistence(rows, ticks, window), rows.some(ticks, window))
            facts.append({
                "week": week + 1,
                "window_s": of.window,
                "precision": round(of.scores.precision, DIGITS),
                "recall": round(of.scores.recall, DIGITS),
                "f": round(of.scores.f, DIGITS),
                "f_persistence": round(base.f, DIGITS),
                "covered_p90": round(of.covered[QUANTILES.index(0.9)], DIGITS),
                "n": of.scores.n,
            })  # fmt: skip
    return facts
