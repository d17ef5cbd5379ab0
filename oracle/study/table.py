"""The rows of `study.csv`, and what a terminal shows of a study."""

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
mean, geo (metric mean), slowed by (all jobs together), waiting: the median
repetition; at most (the worst job's slowdown): the largest of all repetitions;
of possible (of the waiting that could be avoided, what is): a ratio of sums,
above 100 % for those alone that slow somebody"""

StudyRun = Mapping[str, Any]
"""The contents of a run.json."""


def rows_of(run: StudyRun) -> list[dict[str, Any]]:
    """The rows of study.csv that a workload makes: one a policy."""
    known = {key: run[key] for key in RUN}
    return [
        {**known, "policy": policy, **{key: measures[key] for key in MEASURES}}
        for policy, measures in run["policies"].items()
    ]


def captured(runs: Sequence[StudyRun], policy: str) -> tuple[float, float] | None:
    """Percent of the avoidable waiting that a policy avoids: of all there can be, and of the best.

    What can be avoided lies between what the oracle's schedule avoids and what its bound leaves;
    over several workloads it is the sum. None where nothing can be avoided.
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
    """Like `91–94 %`: the truth lies between."""
    between = captured(runs, policy)
    if between is None:
        return NONE
    low, high = (decimal(value, 1) for value in sorted(between))
    return f"{low} %" if low == high else f"{low}–{high} %"


def by_preset(runs: Sequence[StudyRun]) -> dict[str, list[StudyRun]]:
    """The repetitions of each workload."""
    found: dict[str, list[StudyRun]] = {}
    for run in runs:
        found.setdefault(run["preset"], []).append(run)
    return found


def show(runs: Sequence[StudyRun]) -> None:
    """A row a policy for each workload, then a row a repetition of what the oracle proved."""
    groups = by_preset(runs)
    header = ["policy", "mean", "geo", "at most", "slowed by", "waiting", "of possible"]
    rows = []
    for preset, some in groups.items():
        rows.append([f"{preset}:", *[""] * (len(header) - 1)])
        rows += [[f"  {policy}", *cells_of(some, policy)] for policy in some[0]["policies"]]
    show_table("Speed-up per job against FCFS in each pool alone", header, rows)
    click.echo(LEGEND)
    header = ["workload", "seed", "jobs", "alone", "oracle", "bound", "gap", "stopped by"]
    rows = [proof(run) for some in groups.values() for run in some]
    show_table("Waiting of all jobs: what the oracle proved", header, rows, ["stopped by"])


def cells_of(runs: Sequence[StudyRun], policy: str) -> list[str]:
    """A policy's figures over the repetitions of a workload; the worst slowdown is that of all."""
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
    """What is known of the least waiting of one workload."""
    waits = (run["policies"][name]["wait_min"] for name in (BASELINE, ORACLE))
    return [
        run["preset"],
        str(run["seed"]),
        f"{run['jobs']:,}",
        *(duration(MINUTE * value) for value in (*waits, run["bound_wait_min"])),
        f"{decimal(run['gap_pct'])} %" if run["gap_pct"] else "0",
        run["status"],
    ]
