"""The report's first section: the verdict, and the figures and tables that support it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from markupsafe import Markup

from replay.logs.limits import POINTS_DRAWN, POOLS_DRAWN
from replay.plotting import canvas
from replay.plotting.canvas import FloatArray, Steps
from replay.plotting.decision import (
    ForecastPanel,
    WaitBars,
    draw_accuracy,
    draw_exchange,
    draw_use,
    draw_waits,
)
from replay.plotting.numbers import hours, inlined, minutes
from replay.run.arrays import PolicyOutcome, Replayed, floats
from replay.run.schedule import Result
from replay.verdict.accuracy import Compared, compared_loads
from replay.verdict.show import COLUMNS, columns_of, comparison
from sia.wording import NONE, duration, percent

PANELS = 3
"""Lengths of windows with a figure of forecasts: the longest ones that fit into its width."""


class DecisionTable(NamedTuple):
    """A table; the first cell of each row is its heading."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]


def decision_section(
    replayed: Replayed, verdict: Mapping[str, Any], results: Sequence[Result]
) -> dict[str, Any]:
    """Return the values of the template's macro `evidence_of`."""
    shown = columns_of(verdict)
    labels = [entry["policy"] for entry in shown.values()]
    return {
        "columns": labels,
        "comparison": DecisionTable(*comparison(verdict)) if verdict["waits"]["all"] else None,
        "pools": _waits("pools", verdict["waits"]["pools"], shown, replayed.looks),
        "widths": _waits("widths", verdict["waits"]["widths"], shown, replayed.looks),
        "exchange": _exchange(verdict),
        "use": _use(replayed, labels),
        "forecasts": _forecasts(replayed, verdict, results),
    }


def evidence_over_runs(
    verdict: Mapping[str, Any], looks: Mapping[str, canvas.PolicyStyle]
) -> dict[str, Any]:
    """Return the values of the template's macro `evidence_of` for an experiment."""
    shown = columns_of(verdict)
    return {
        "columns": [entry["policy"] for entry in shown.values()],
        "comparison": DecisionTable(*comparison(verdict)) if len(shown) > 1 else None,
        "pools": _waits("pools", verdict["waits"]["pools"], shown, looks),
        "widths": _waits("widths", verdict["waits"]["widths"], shown, looks),
        "exchange": _exchange(verdict),
        "use": None,
        "forecasts": None,
    }


def _waits(
    name: str,
    rows: Sequence[Mapping[str, Any]],
    shown: Mapping[str, Any],
    looks: Mapping[str, canvas.PolicyStyle],
) -> dict[str, Any] | None:
    """Return the figure and the table of the waits of groups of jobs; None without a job."""
    if not rows:
        return None
    some = rows[:POOLS_DRAWN]
    bars = [
        WaitBars(entry["policy"], floats([row[column]["mean_s"] for row in some]))
        for column, entry in shown.items()
    ]
    with_p90 = all("p90_s" in row[column] for row in rows for column in shown)
    header = [name.removesuffix("s"), "jobs"]
    for column, entry in shown.items():
        words = f"{COLUMNS[column]} ({entry['policy']})"
        header += [f"mean wait {words}", *([f"90th percentile {words}"] if with_p90 else [])]
    cells = []
    for row in rows:
        line = [str(row["group"]), f"{max(row[column]['jobs'] for column in shown):,}"]
        for column in shown:
            line.append(duration(row[column]["mean_s"]))
            line += [duration(row[column]["p90_s"])] if with_p90 else []
        cells.append(line)
    groups = [str(row["group"]) for row in some]
    return {
        "picture": inlined(draw_waits(f"waits-{name}", groups, bars, looks)),
        "table": DecisionTable(header, cells),
        "cut": len(rows) - len(some),
    }


def _exchange(verdict: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the figure and the table of lenders and borrowers; None if no pool lends."""
    rows = verdict["pools"]
    if not any(row["gpu_hours_lent"] for row in rows):
        return None
    net = sorted(rows, key=lambda row: row["gpu_hours_borrowed"] - row["gpu_hours_lent"])
    drawn = [row for row in net if row["gpu_hours_lent"] or row["gpu_hours_borrowed"]]
    ends = drawn if len(drawn) <= POOLS_DRAWN else _both_ends(drawn)
    header = [
        "pool", "GPUs", "GPU-hours lent", "borrowed", "its jobs end sooner by, mean",
        "jobs slowed", "worst delay",
    ]  # fmt: skip
    cells = [
        [
            row["pool"],
            f"{row['gpus']:,}",
            hours(row["gpu_hours_lent"]),
            hours(row["gpu_hours_borrowed"]),
            _signed(row["sooner_s"]),
            f"{row['slowed']:,} of {row['measured']:,}",
            minutes(row["worst_delay_s"] / 60) if row["slowed"] else NONE,
        ]
        for row in net
    ]
    lent, borrowed = (
        floats([row[key] for row in ends]) for key in ("gpu_hours_lent", "gpu_hours_borrowed")
    )
    return {
        "picture": inlined(draw_exchange([row["pool"] for row in ends], lent, borrowed)),
        "table": DecisionTable(header, cells),
        "cut": len(drawn) - len(ends),
    }


def _both_ends(rows: Sequence[Any]) -> list[Any]:
    """Return the largest net lenders and the largest net borrowers."""
    half = POOLS_DRAWN // 2
    return [*rows[:half], *rows[-half:]]


def _signed(seconds: float | None) -> str:
    """Format a gain; a loss has a minus sign."""
    if seconds is None:
        return NONE
    return f"{'−' if seconds <= -0.5 else ''}{duration(abs(seconds))}"


def _use(replayed: Replayed, labels: Sequence[str]) -> Markup:
    """Return the figure of the GPUs in use over time, without and with sharing."""
    edges = canvas.bins(*replayed.range())
    owned = np.zeros(len(edges) - 1)
    for steps in replayed.table.quotas().values():
        sizes = floats([quota for _, quota in steps])
        owned += canvas.averages(
            [Steps(floats([time for time, _ in steps]), np.diff(sizes, prepend=0.0))], edges
        )
    outcomes = {name: replayed.outcomes[name] for name in labels if name in replayed.outcomes}
    curves = {name: _used(outcome, edges) for name, outcome in outcomes.items()}
    return inlined(draw_use(edges, owned, curves, replayed.looks, replayed.settings.warmup))


def _used(outcome: PolicyOutcome, edges: FloatArray) -> FloatArray:
    runs = [run[1:4] for run in outcome.schedule.runs(outcome.trace)]
    start, end, gpus = floats([x for run in runs for x in run]).reshape(-1, 3).T
    return canvas.averages([canvas.during(start, end, gpus)], edges)


def _forecasts(
    replayed: Replayed, verdict: Mapping[str, Any], results: Sequence[Result]
) -> dict[str, Any] | None:
    """Return the tables of forecasts and actual values, and a figure of the largest lender."""
    forecasts = verdict["forecasts"]
    if forecasts is None:
        return None
    outcomes = ("all_reserved", "covered", "missed")
    loads = DecisionTable(
        ("window", "forecasts", "all GPUs reserved", "high enough", "too low",
         "GPUs forecast, mean", "GPUs needed, mean"),
        [
            [
                duration(row["window_s"]),
                f"{row['forecasts']:,}",
                *(_part(row[key], row["forecasts"]) for key in outcomes),
                f"{row['forecast_gpus']:,.1f}",
                f"{row['actual_gpus']:,.1f}",
            ]
            for row in forecasts["loads"]
        ],
    )  # fmt: skip
    run_times = DecisionTable(
        ("run time of at most", "jobs expected", "of these it was true for", "jobs with it in all"),
        [
            [
                duration(row["window_s"]),
                f"{row['expected']:,}",
                _part(row["kept"], row["expected"]),
                f"{row['actual']:,} of {row['jobs']:,}",
            ]
            for row in forecasts["run_times"]
        ],
    )
    [result] = [each for each in results if each.schedule.policy == forecasts["policy"]]
    return {
        "policy": forecasts["policy"],
        "loads": loads if loads.rows else None,
        "run_times": run_times if run_times.rows else None,
        **_lender(replayed, verdict, compared_loads(result, replayed.table, replayed.settings)),
    }


def _part(part: int, whole: int) -> str:
    return f"{part:,} ({percent(100 * part / whole)} %)" if whole else NONE


def _lender(
    replayed: Replayed, verdict: Mapping[str, Any], compared: Sequence[Compared]
) -> dict[str, Any]:
    """Return the figure of the pool that lends most."""
    few = [each for each in compared if 1 < len(each.begins) <= POINTS_DRAWN][-PANELS:]
    if not few or not verdict["pools"]:
        return {"lender": "", "picture": None}
    first = verdict["pools"][0]
    place = [pool.name for pool in replayed.table.pools].index(first["pool"])
    panels = [
        ForecastPanel(
            f"windows of {duration(each.length)}",
            np.append(each.begins, 2 * each.begins[-1] - each.begins[-2]),
            np.minimum(each.forecast[place], first["gpus"]).astype(np.float64),
            each.actual[place].astype(np.float64),
        )
        for each in few
    ]
    start = replayed.range()[0]
    picture = inlined(draw_accuracy(panels, first["gpus"], start))
    return {"lender": first["pool"], "picture": picture}
