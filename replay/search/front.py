"""The front of a search as a file, as a table and in sentences, with named presets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import dist, fsum, sqrt
from typing import Any, NamedTuple

import click

from replay.search.algorithms import front_of
from replay.search.objectives import Measured, Objective
from replay.search.search import Evaluated, Found
from sia.console.tables import show_table
from sia.wording import HOUR, duration

FIFO, FAST, PREDICTABLE, FAIR, BALANCED = "fifo", "fast", "predictable", "fair", "balanced"
PRESETS = {
    FAST: "jct",
    PREDICTABLE: "pred_err",
    FAIR: "unfairness",
}
"""Presets with the metric that they minimise; they exist if the metric is an objective."""

ROWS_SHOWN = 16
"""Maximum number of points in the table, so that table and presets fit on a screen."""


class Values(NamedTuple):
    """The values of an objective on the samples of one side."""

    mean: float
    deviation: float
    """The standard deviation between samples; 0 with one sample."""
    least: float
    most: float


def values_of(runs: Sequence[Measured], objective: str) -> Values:
    """Return the mean and deviation of an objective on the samples."""
    found = [run[objective] for run in runs]
    mean = fsum(found) / len(found)
    if len(found) < 2:
        return Values(mean, 0.0, mean, mean)
    squares = fsum((value - mean) ** 2 for value in found)
    return Values(mean, sqrt(squares / (len(found) - 1)), min(found), max(found))


def front_json(
    found: Found,
    objectives: Sequence[Objective],
    limits: Sequence[float],
    facts: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the content of front.json; `limits` divide the jobs into quarters by size."""
    named = presets(found, objectives)
    fast = _fastest(found)
    kept = [str(objective) for objective in objectives]
    means = [tuple(test.mean(each) for each in kept) for _, test in found.front]
    holds = set(front_of(means))
    points = [
        {
            **_point(train, test, kept),
            "by_size": by_size(test, found.fifo[1], limits),
            "presets": [
                *([FIFO] if train.number == found.fifo[0].number else []),
                *(name for name, chosen in named.items() if chosen == i),
            ],
            "front_on_test": i in holds,
            "words": words(test, fast, own=train.number == fast.number),
        }
        for i, (train, test) in enumerate(found.front)
    ]
    return {
        **facts,
        "points": points,
        FIFO: {
            **_point(*found.fifo, kept),
            "presets": [FIFO],
            "by_size": by_size(found.fifo[1], found.fifo[1], limits),
            "words": words(found.fifo[1], fast, own=found.fifo[0].number == fast.number),
        },
        "presets": {
            FIFO: found.fifo[0].point.exact,
            **{name: found.front[i][0].point.exact for name, i in named.items()},
        },
    }


def _point(train: Evaluated, test: Evaluated, kept: Sequence[str]) -> dict[str, Any]:
    point = train.point
    return {
        "number": train.number,
        "label": point.label,
        "exact": point.exact,
        "sizes": point.limits,
        "weights": point.weights,
        "zeta": point.zeta,
        "delta": point.delta,
        "objectives": {
            each: {
                "train": values_of(train.runs, each)._asdict(),
                "test": values_of(test.runs, each)._asdict(),
            }
            for each in kept
        },
        "measures": {key: test.mean(key) for key in test.runs[0] if key.count(":") == 1},
    }


def by_size(
    test: Evaluated, fifo: Evaluated, limits: Sequence[float]
) -> list[dict[str, float | None]]:
    """Return the mean metrics of a point for each quarter of the jobs by size, next to FIFO's."""
    return [
        {
            "sizes_up_to": upto,
            "jct_s": test.mean(f"avg:jct:{i}"),
            "fifo_jct_s": fifo.mean(f"avg:jct:{i}"),
            "pred_err_pct": test.mean(f"avg:pred_err:{i}"),
        }
        for i, upto in enumerate([*limits, None], 1)
    ]


def _fastest(found: Found) -> Evaluated:
    """Return the point of the front, on test samples, with the shortest mean JCT."""
    return min((test for _, test in found.front), key=lambda each: each.mean("avg:jct"))


def presets(found: Found, objectives: Sequence[Objective]) -> dict[str, int]:
    """Return the position on the front of each preset.

    A preset of a metric is the best point in the first objective of the metric; the balanced one is
    nearest to the best value of all objectives, each in parts of its range on the front.
    """
    named = {}
    for name, metric in PRESETS.items():
        own = next((each for each in objectives if each.metric == metric), None)
        if own is not None:
            means = [train.mean(str(own)) for train, _ in found.front]
            named[name] = means.index(min(means))
    if len(objectives) > 1:
        columns = [[train.mean(str(each)) for train, _ in found.front] for each in objectives]
        parts = [
            [(value - min(column)) / (max(column) - min(column) or 1.0) for value in column]
            for column in columns
        ]
        rows = list(zip(*parts, strict=True))
        away = [dist(row, (0.0,) * len(row)) for row in rows]
        named[BALANCED] = away.index(min(away))
    return named


def words(test: Evaluated, fast: Evaluated, *, own: bool) -> str:
    """Describe a point in comparison with the fastest one of the front.

    Like `8 % longer on average, worst error 12 % in place of 300 %`.
    """
    worst = f"worst error {_percent(test.mean('max:pred_err'))}"
    if own:
        return f"shortest on average ({duration(test.mean('avg:jct'))}), {worst}"
    longer = 100.0 * (test.mean("avg:jct") / fast.mean("avg:jct") - 1.0)
    length = "as long on average" if longer < 0.05 else f"{_percent(longer)} longer on average"
    return f"{length}, {worst} in place of {_percent(fast.mean('max:pred_err'))}"


def _percent(value: float) -> str:
    """Format a percentage with about two significant digits."""
    return f"{value:,.0f} %" if value >= 9.95 or not value else f"{value:.1f} %"


def shown_value(objective: str, value: float) -> str:
    """Format a value of an objective with its unit."""
    return duration(value) if objective.endswith(":jct") else _percent(value)


def show_front(front: Mapping[str, Any]) -> None:
    """Print points of the front, by the first objective, and FIFO; then the presets' labels.

    If there are too many points, the presets and `ROWS_SHOWN` evenly spaced points are printed.
    """
    kept, points = front["objectives"], front["points"]
    step = max(1.0, len(points) / ROWS_SHOWN)
    apart = {int(i * step) for i in range(ROWS_SHOWN)} | {len(points) - 1}
    header = ["point", *(f"{each} (test)" for each in kept), "preset", "in plain words"]
    rows = [
        _row(str(point["number"]), point, kept, ", ".join(point["presets"]))
        for i, point in enumerate(points)
        if i in apart or point["presets"]
    ]
    cut = f" ({len(rows)} of {len(points)} points)" if len(rows) < len(points) else ""
    if all(point["number"] != front[FIFO]["number"] for point in points):
        rows.append(_row(str(front[FIFO]["number"]), front[FIFO], kept, FIFO))
    show_table(f"Front{cut}", header, rows, ("preset", "in plain words"))
    show_table("Presets", ("preset", "policy"), [*map(list, front["presets"].items())], ("policy",))


def _row(name: str, point: Mapping[str, Any], kept: Sequence[str], named: str) -> list[str]:
    shown = []
    for each in kept:
        train, test = (point["objectives"][each][side]["mean"] for side in ("train", "test"))
        shown.append(f"{shown_value(each, train)} ({shown_value(each, test)})")
    return [name, *shown, named, point["words"]]


def show_point(point: Mapping[str, Any]) -> None:
    """Print one point: its settings, its queues, and its metrics by quarter of the jobs."""
    named = f" ({', '.join(point['presets'])})" if point["presets"] else ""
    click.echo(f"point {point['number']}{named}: {point['words']}")
    click.echo(f"found as: {point['label']}")
    click.echo(f"policy:   {point['exact']}")
    total = sum(point["weights"])
    queues = [
        [_upto(limit), f"{_percent(100 * weight / total)}"]
        for limit, weight in zip([*point["sizes"], None], point["weights"], strict=True)
    ]
    show_table("Queues", ("sizes up to", "share of the GPUs if all queues have jobs"), queues)
    rows = [
        [
            _upto(each["sizes_up_to"]),
            duration(each["jct_s"]),
            duration(each["fifo_jct_s"]),
            _percent(each["pred_err_pct"]),
        ]
        for each in point["by_size"]
    ]
    header = ("quarter of the jobs, sizes up to", "mean JCT", "under FIFO", "mean error")
    show_table("For whom", header, rows)


def _upto(gpu_seconds: float | None) -> str:
    return "any" if gpu_seconds is None else f"{gpu_seconds / HOUR:,.4g} GPU-h"
