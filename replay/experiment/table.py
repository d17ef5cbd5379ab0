"""The rows of `experiments.csv`, and their table for the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from sia.console.tables import show_table
from sia.wording import decimal, duration, percent

MEASURES = (
    "jobs", "skipped", "measured", "peak_gpus", "total_gpus", "speedup_mean", "speedup_geomean",
    "speedup_p5", "speedup_p50", "speedup_p90", "speedup_p95", "avg_jct_s", "baseline_avg_jct_s",
    "avg_jct_ratio", "slowed_pct", "slowdown_total_min", "slowdown_max_min", "utilisation_pct",
    "gpu_hours_lent",
)  # fmt: skip

HEADER = ("run", "seed", "policy", "queues", "size", "withdrawn", *MEASURES)


def rows_of(run: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a run's rows of experiments.csv, one per policy."""
    drawn = {
        "run": run["run"],
        "seed": run["seed"],
        "queues": run["queues"],
        "size": run["size"],
        "withdrawn": ";".join(run["withdrawn"]),
    }
    return [
        {**drawn, "policy": policy, **{key: measures[key] for key in MEASURES}}
        for policy, measures in run["policies"].items()
    ]


def show_medians(
    rows: Sequence[Mapping[str, Any]], policies: Sequence[str], *, by_size: bool
) -> None:
    """Print a row per policy, in this order, for each number of queues, or for each size."""
    groups: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault((_group(row, by_size=by_size), row["policy"]), []).append(row)
    order = list(dict.fromkeys(group for group, _ in groups))
    widest = max(len(policy) for _, policy in groups)
    header = [
        "size" if by_size else "queues", "policy".ljust(widest), "runs", "mean",
        "geo", "p5", "p95", "% runs slowing", "% slowed", "worst run", "at most",
    ]  # fmt: skip
    table = [
        [group, policy.ljust(widest), *_medians(groups[group, policy])]
        for group, policy in sorted(
            groups, key=lambda key: (order.index(key[0]), policies.index(key[1]))
        )
    ]
    show_table("Speed-up per job against FCFS in each pool alone: medians over runs", header, table)


def _group(row: Mapping[str, Any], *, by_size: bool) -> str:
    if not by_size:
        return str(row["queues"])
    return f"{row['size']:g}" + (f" without {row['withdrawn']}" if row["withdrawn"] else "")


def _medians(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the cells of a policy's row; runs without a measured job are omitted."""
    found = [row for row in rows if row["measured"]]
    slowing = [row for row in found if row["slowed_pct"]]
    speedups = (_median(found, f"speedup_{key}") for key in ("mean", "geomean", "p5", "p95"))
    worst = max((row["slowed_pct"] for row in found), default=None)
    most = max((row["slowdown_max_min"] for row in found), default=None)
    return [
        str(len(found)),
        *(decimal(speedup) for speedup in speedups),
        decimal(100 * len(slowing) / len(found) if found else None, 0),
        percent(_median(found, "slowed_pct")),
        percent(worst),
        duration(None if most is None else 60 * most),
    ]


def _median(rows: Sequence[Mapping[str, Any]], key: str) -> float | None:
    values = [row[key] for row in rows if row[key] is not None]
    return median(values) if values else None
