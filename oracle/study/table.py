"""The rows of `study.csv`, and the tables of a study for the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import fsum
from statistics import median
from typing import Any

import click

from oracle.study.study import ORACLE
from replay.experiment.measures import brief
from replay.run.run import BASELINE
from sia.console.tables import show_table
from sia.wording import MINUTE, NONE, decimal, duration

RUN = ("preset", "seed", "jobs", "pools", "gpus", "status", "bound_wait_min", "gap_pct")

MEASURES = (
    "wait_min", "speedup_mean", "speedup_geomean", "speedup_p5", "speedup_p50", "speedup_p95",
    "slowed_pct", "slowdown_total_min", "slowdown_max_min",
)  # fmt: skip

HEADER = (*RUN, "policy", *MEASURES)

LEGEND = """\
mean, geo (geometric mean), slowed by (total slowdown), waiting: medians over
the repetitions; at most (slowdown of the worst job): maximum over the
repetitions; of possible (avoided share of the avoidable waiting): a ratio of
sums, above 100 % only for policies that slow jobs"""

StudyRun = Mapping[str, Any]
"""The contents of a run.json."""


def rows_of(run: StudyRun) -> list[dict[str, Any]]:
    """Return a workload's rows of study.csv, one per policy."""
    known = {key: run[key] for key in RUN}
    return [
        {**known, "policy": policy, **{key: measures[key] for key in MEASURES}}
        for policy, measures in run["policies"].items()
    ]


def captured(runs: Sequence[StudyRun], policy: str) -> tuple[float, float] | None:
    """Return the avoidable waiting that a policy avoids, in percent of two estimates.

    The avoidable waiting lies between what the oracle's bound allows (first value) and what its
    schedule avoids (second value), summed over the workloads. None if no waiting is avoidable.
    """
    alone = _total(runs, BASELINE)
    avoided = alone - _total(runs, policy)
    found = alone - _total(runs, ORACLE)
    most = alone - fsum(run["bound_wait_min"] for run in runs)
    if found <= 0:
        return None
    return 100 * avoided / most, 100 * avoided / found


def _total(runs: Sequence[StudyRun], policy: str) -> float:
    return fsum(run["policies"][policy]["wait_min"] for run in runs)


def captured_words(runs: Sequence[StudyRun], policy: str) -> str:
    """Format `captured` as a range, like `91–94 %`."""
    between = captured(runs, policy)
    if between is None:
        return NONE
    low, high = (decimal(value, 1) for value in sorted(between))
    return f"{low} %" if low == high else f"{low}–{high} %"


def by_preset(runs: Sequence[StudyRun]) -> dict[str, list[StudyRun]]:
    """Return the repetitions by workload."""
    found: dict[str, list[StudyRun]] = {}
    for run in runs:
        found.setdefault(run["preset"], []).append(run)
    return found


def show(runs: Sequence[StudyRun]) -> None:
    """Print a row per policy and workload, then a row per repetition with the oracle's proof."""
    groups = by_preset(runs)
    header = ["policy", "mean", "geo", "at most", "slowed by", "waiting", "of possible"]
    rows = []
    for preset, some in groups.items():
        rows.append([f"{preset}:", *[""] * (len(header) - 1)])
        rows += [[f"  {policy}", *cells_of(some, policy)] for policy in some[0]["policies"]]
    show_table("Speed-up per job against FCFS in each pool alone", header, rows)
    click.echo(LEGEND)
    header = ["workload", "seed", "jobs", "baseline", "oracle", "bound", "gap", "stopped by"]
    rows = [proof(run) for some in groups.values() for run in some]
    show_table("Total waiting: proofs of the oracle", header, rows, ["stopped by"])


def cells_of(runs: Sequence[StudyRun], policy: str) -> list[str]:
    """Return a policy's measures over repetitions: medians, and the maximum of the slowdown."""
    entries = [run["policies"][policy] for run in runs]

    def middle(key: str) -> float:
        return float(median(entry[key] for entry in entries))

    return [
        decimal(middle("speedup_mean")),
        decimal(middle("speedup_geomean")),
        brief(max(entry["slowdown_max_min"] for entry in entries)),
        brief(middle("slowdown_total_min")),
        brief(middle("wait_min")),
        captured_words(runs, policy),
    ]


def proof(run: StudyRun) -> list[str]:
    """Return the row of a workload: waiting of baseline and oracle, bound, gap and status."""
    waits = (run["policies"][name]["wait_min"] for name in (BASELINE, ORACLE))
    return [
        run["preset"],
        str(run["seed"]),
        f"{run['jobs']:,}",
        *(duration(MINUTE * value) for value in (*waits, run["bound_wait_min"])),
        f"{decimal(run['gap_pct'])} %" if run["gap_pct"] else "0",
        run["status"],
    ]
