"""The verdict of an experiment: the rule of a replay, over the jobs of all runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import fsum
from typing import Any

from replay.experiment.measures import Experiment, entries
from replay.logs.trace import PoolTable
from replay.run.run import BASELINE, Settings
from replay.run.schedule import Result
from replay.verdict.build import can_share, described
from replay.verdict.kinds import kind_of
from replay.verdict.rule import Outcome, recommend
from replay.verdict.waits import class_name, waited, width_class
from replay.verdict.words import Ground

POOL_SUMS = ("gpu_hours_lent", "gpu_hours_borrowed", "measured", "sooner_total_s", "slowed")
"""Measures of a pool that are summed over the runs."""


def sharing_of(
    table: PoolTable,
    settings: Settings,
    results: Iterable[Result],
    pools: Mapping[str, Mapping[str, Any]],
) -> dict[str, Any]:
    """Return the values of one run that a verdict needs, for `run.json`.

    `pools` are the measures of each policy's pools. Waits are sums over the measured jobs.
    """
    return {
        "possible": can_share(table),
        "policies": {
            result.schedule.policy: {
                "pools": {
                    name: _pool(pool) for name, pool in pools[result.schedule.policy].items()
                },
                **_waits(result, settings),
            }
            for result in results
        },
    }


def _pool(pool: Mapping[str, Any]) -> dict[str, Any]:
    """Return a pool's gain and cost as sums."""
    avg, alone = pool["avg_jct_s"] or 0.0, pool["baseline_avg_jct_s"] or 0.0
    return {
        "gpus": pool["quota"],
        "gpu_hours_lent": pool["gpu_hours_lent"],
        "gpu_hours_borrowed": pool["gpu_hours_borrowed"],
        "measured": pool["measured"],
        "sooner_total_s": (alone - avg) * pool["measured"],
        "slowed": pool["slowed"],
        "worst_delay_s": 60 * pool["slowdown_max_min"],
    }


def _waits(result: Result, settings: Settings) -> dict[str, Any]:
    """Return the number of measured jobs and their total wait, by pool and by width."""
    by_pool: dict[str, list[float]] = {}
    by_width: dict[int, list[float]] = {}
    for job, wait in waited(result, settings, result.schedule):
        by_pool.setdefault(job.pool, []).append(wait)
        by_width.setdefault(width_class(job), []).append(wait)
    return {
        "waits": [[name, len(by_pool[name]), fsum(by_pool[name])] for name in sorted(by_pool)],
        "widths": [
            [width, len(by_width[width]), fsum(by_width[width])] for width in sorted(by_width)
        ],
    }


def verdict_of(experiment: Experiment) -> dict[str, Any]:
    """Return the verdict over all runs, with the keys of that of a replay.

    Every measured job counts the same, in whichever run it was. Waits have no percentiles.
    """
    settings = experiment.settings_of_replay._replace(policies=experiment.policies)
    outcomes = [_outcome(experiment, settings, label) for label in experiment.rivals]
    possible = any(run["sharing"]["possible"] for run in experiment.runs)
    recommendation = recommend(outcomes, can_share=possible)
    ground = Ground(0, len(experiment.runs), in_cells=experiment.in_cells)
    verdict = described(recommendation, ground, settings)
    shown = recommendation.today or recommendation.perfect
    avg = None if shown is None else shown.avg_jct_s + shown.sooner_s
    baseline = {"policy": BASELINE, "kind": "baseline", "avg_jct_s": avg}
    compared = verdict["compared"] = {"baseline": baseline} | verdict["compared"]
    columns = {name: entry["policy"] for name, entry in compared.items() if entry is not None}
    pools, widths = (_merged(experiment, columns, key) for key in ("waits", "widths"))
    for row in widths:
        row["group"] = class_name(row["group"])
    verdict["waits"] = {"all": _all(pools, columns), "pools": pools, "widths": widths}
    for name in columns:
        compared[name]["wait_avg_s"] = verdict["waits"]["all"][name]["mean_s"]
    verdict["pools"] = (
        [] if recommendation.today is None else _pools(experiment, recommendation.today.policy)
    )
    verdict["forecasts"] = None
    return verdict


def _outcome(experiment: Experiment, settings: Settings, label: str) -> Outcome:
    """Return the gain and cost of a policy over all measured jobs."""
    found = entries(experiment.runs, label)
    shown = sum(entry["measured"] for entry in found)
    total, alone = (
        fsum(entry[key] * entry["measured"] for entry in found)
        for key in ("avg_jct_s", "baseline_avg_jct_s")
    )
    lent = [row for row in _pools(experiment, label) if row["gpu_hours_lent"]]
    return Outcome(
        policy=label,
        kind=kind_of(settings, label),
        measured=shown,
        sooner_s=(alone - total) / shown if shown else 0.0,
        avg_jct_s=total / shown if shown else 0.0,
        slowed=sum(entry["slowed"] for entry in found),
        worst_delay_s=60 * max((entry["slowdown_max_min"] for entry in found), default=0.0),
        lost=sum(max(0, e["never_ended"] - e["baseline_never_ended"]) for e in found),
        gpu_hours_lent=fsum(entry["gpu_hours_lent"] for entry in found),
        lenders=len(lent),
        stops=sum(entry["interruptions"] for entry in found),
        gpu_hours_thrown_away=fsum(entry["gpu_hours_thrown_away"] for entry in found),
    )


def _of_runs(experiment: Experiment, label: str) -> list[Mapping[str, Any]]:
    """Return the values that each run stores about the sharing of a policy."""
    found = (run["sharing"]["policies"].get(label) for run in experiment.runs)
    return [each for each in found if each is not None]


def _pools(experiment: Experiment, label: str) -> list[dict[str, Any]]:
    """Return what each pool gives and gets under a policy in all runs, the largest lender first."""
    rows: dict[str, dict[str, Any]] = {}
    for run in _of_runs(experiment, label):
        for name, pool in run["pools"].items():
            row = rows.setdefault(
                name, {"gpus": 0, "worst_delay_s": 0.0, **dict.fromkeys(POOL_SUMS, 0)}
            )
            for key in POOL_SUMS:
                row[key] += pool[key]
            for key in ("gpus", "worst_delay_s"):
                row[key] = max(row[key], pool[key])
    for row in rows.values():
        total = row.pop("sooner_total_s")
        row["sooner_s"] = total / row["measured"] if row["measured"] else None
    found = [{"pool": name, **row} for name, row in rows.items()]
    return sorted(found, key=lambda row: (-row["gpu_hours_lent"], row["pool"]))


def _merged(experiment: Experiment, columns: Mapping[str, str], key: str) -> list[dict[str, Any]]:
    """Return the mean waits by pool or width in each column, over the jobs of all runs."""
    sums: dict[str, dict[Any, tuple[int, float]]] = {}
    for name, label in columns.items():
        own = sums[name] = {}
        for run in _of_runs(experiment, label):
            for group, jobs, wait in run[key]:
                before = own.get(group, (0, 0.0))
                own[group] = (before[0] + jobs, before[1] + wait)
    groups = sorted({group for own in sums.values() for group in own})
    return [
        {"group": group, **{name: _mean(*own.get(group, (0, 0.0))) for name, own in sums.items()}}
        for group in groups
    ]


def _mean(jobs: int, wait: float) -> dict[str, Any]:
    return {"jobs": jobs, "mean_s": wait / jobs if jobs else None}


def _all(pools: list[dict[str, Any]], columns: Mapping[str, str]) -> dict[str, Any]:
    """Return the mean wait of all jobs in each column."""
    found = {}
    for name in columns:
        cells = [row[name] for row in pools if row[name]["jobs"]]
        jobs = sum(cell["jobs"] for cell in cells)
        found[name] = _mean(jobs, fsum(cell["jobs"] * cell["mean_s"] for cell in cells))
    return found
