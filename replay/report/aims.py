"""Tables of what some policies aim at: deadlines that are met, and ends that were predicted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from sia.wording import decimal, duration, percent


class AimTable(NamedTuple):
    """A table with a row for each policy; the first cell of a row is the policy."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    meaning: str


def aim_tables(policies: Mapping[str, Any]) -> list[AimTable]:
    """Return the tables for which the measures of these policies have values."""
    tables = (_deadlines(policies), _predictions(policies))
    return [table for table in tables if table.rows]


def _deadlines(policies: Mapping[str, Any]) -> AimTable:
    """Return a row for each policy if jobs of the log have deadlines."""
    return AimTable(
        "Deadlines",
        ["policy", "deadlines", "% missed", "wDMR", "strict", "soft", "best effort", "avg JCT"],
        [
            [
                name,
                f"{m['slo_jobs']:,}",
                percent(m["slo_missed_pct"]),
                *(decimal(m[key], 3) for key in ("wdmr", "wdmr_strict", "wdmr_soft")),
                f"{m['best_effort_jobs']:,}",
                duration(m["best_effort_avg_jct_s"]),
            ]
            for name, m in policies.items()
            if m.get("slo_jobs")
        ],
        "A deadline is missed if the job ends after its first step, or never. wDMR is the weighted "
        "deadline miss rate: 0 if every job earns the whole reward, 1 if every job earns what a "
        "late one earns; strict and soft are the same over deadlines with one step and with "
        "several. The last two columns are the number of jobs without a deadline and their average "
        "completion time.",
    )


def _predictions(policies: Mapping[str, Any]) -> AimTable:
    """Return a row for each policy whose ends were predicted."""
    errors, unfair = "pred_err_pct", "unfairness_pct"
    return AimTable(
        "Predicted ends and unfairness, in percent",
        [
            "policy", "predicted", "mean JCT", "error mean", "p50", "p99", "max",
            "unfairness mean", "p99", "max",
        ],
        [
            [
                name,
                f"{m['predicted']:,}",
                duration(m["mean_jct_s"]),
                *(decimal(m[f"{key}_{errors}"]) for key in ("avg", "p50", "p99", "max")),
                *(decimal(m[f"{key}_{unfair}"]) for key in ("avg", "p99", "max")),
            ]
            for name, m in policies.items()
            if m.get("predicted")
        ],
        "At its submission each job is told when it will end if no more jobs arrive. The error is "
        "the difference to its completion time, in percent of the predicted one. Unfairness is the "
        "time by which a job ends later than if all jobs of its pool had equal parts of the GPUs "
        "at every moment, in percent of its completion time then.",
    )  # fmt: skip
