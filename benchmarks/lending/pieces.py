"""What `sia-reclaim` gains and costs on pieces of a log.

    python -m benchmarks.lending.pieces philly.csv.gz philly_pools.csv [pieces [cases]]

Draws the pieces of `sia experiment --queues 8 --runs 20` and replays each, or the first few, under
several policies, forecasts, and costs of a stop. The unit of what is captured is the gain of `sia`
with perfect forecasts in three windows. The results of all 20 pieces are in `pieces.json`, those
of the first N in `pieces_N.json`. With `cases`, a part of their names such as `5 minutes`, only
these cases are replayed, and the others stay as they are stored.

After all 20 pieces, draws `docs/figures/lending.svg`: what each case captures, with a bootstrap
interval over the pieces, against the jobs that are late, the stops and the wasted GPU time.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import repeat
from math import fsum, log
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.common import RESULTS, ROOT, keep
from replay.experiment.design import PieceDesign, plan_pieces
from replay.logs.past import PastJobs
from replay.logs.preemptible import PreemptibleShare, mark
from replay.logs.read import read_pools, read_trace
from replay.logs.trace import PoolTable, Trace, playable
from replay.run.run import Settings, replay_all
from replay.run.starts import starts_of
from replay.run.summary import summarize
from sia.limits import SLOWED
from sia.model import StopCost
from sia.wording import DAY, WEEK

PIECES = 20

PICTURE = ROOT / "docs" / "figures" / "lending.svg"

RESAMPLES = 10_000
"""Resamples of the bootstrap; more do not change the digits of the interval that are kept."""

Case = tuple[str, float, StopCost, str]
"""Name, percentage of the jobs that may be stopped, what a stop costs, policy."""

CASES: Sequence[Case] = (
    ("all restart, forecasts from history", 100, "restart", "sia-reclaim@peaks+survival"),
    ("all restart, random forecasts", 100, "restart", "sia-reclaim@random+random"),
    ("all lose 5 minutes, forecasts from history", 100, 300.0, "sia-reclaim@peaks+survival"),
    ("30 % lose 5 minutes, forecasts from history", 30, 300.0, "sia-reclaim@peaks+survival"),
    ("none is stopped, forecasts from history", 100, "restart", "sia@peaks+survival"),
    ("none is stopped, joint forecast", 100, "restart", "sia@joint+survival"),
    ("all restart, Kueue StrictFIFO", 100, "restart", "kueue-strict"),
    ("all restart, Kueue BestEffortFIFO", 100, "restart", "kueue-best-effort"),
    ("all restart, SRTF without quotas, run times known", 100, "restart", "srtf"),
)  # fmt: skip


COSTS = {
    "later_pct": "jobs later than alone, %",
    "stops_for_100_jobs": "stops for 100 jobs",
    "gpu_time_wasted_pct": "GPU time wasted, %",
}
"""Measures of a case and the titles of their panels."""

TICKS = (0, 0.1, 1, 10)


class Cut(NamedTuple):
    """A piece of the log, its pools, and the four weeks before it."""

    log: Trace
    table: PoolTable
    past: PastJobs | None


def main() -> None:
    trace, table = read_trace(Path(sys.argv[1])), read_pools(Path(sys.argv[2]))
    runs = int(sys.argv[3]) if len(sys.argv) > 3 else PIECES
    part = sys.argv[4] if len(sys.argv) > 4 else ""
    cases = [case for case in CASES if part in case[0]]
    name = "lending/pieces" if runs == PIECES else f"lending/pieces_{runs}"
    path = RESULTS / f"{name}.json"
    stored = json.loads(path.read_text()) if part and path.exists() else {}
    runnable = playable(trace, table)
    pairs = zip(runnable.arrivals, starts_of(runnable, table), strict=True)
    starts = {arrival.job.id: start for arrival, start in pairs if start is not None}
    design = PieceDesign([8], PIECES, 2 * WEEK, (0.6, 1.1))
    planned = plan_pieces(trace, table, design)[:runs]
    cuts = [Cut(piece.cut(trace), piece.table, piece.past(trace, starts)) for piece in planned]
    found: dict[str, list[dict[str, Any]]] = {case[0]: [] for case in cases}
    with ProcessPoolExecutor(2) as processes:
        for number, measured in enumerate(processes.map(measure, cuts, repeat(cases))):
            for case, measures in measured.items():
                found[case].append(measures)
                print(number, case, measures, flush=True)
            stored |= {case: row_of(rows) for case, rows in found.items()}
            keep(name, stored)
    if runs == PIECES:
        draw(stored)


def measure(cut: Cut, cases: Sequence[Case] = CASES) -> dict[str, dict[str, Any]]:
    """Return the measures of these cases on a piece."""
    found: dict[str, dict[str, Any]] = {}
    unit = 0.0
    for name, percent, cost, label in cases:
        settings = Settings((label,), warmup=2 * DAY, preemptible=PreemptibleShare(percent, cost))
        jobs = playable(mark(cut.log, settings.preemptible, 0), cut.table)
        if not unit:
            perfect = replay_all(jobs, cut.table, settings._replace(policies=("sia",)))
            unit = log(
                summarize(cut.table, settings, perfect)["policies"]["sia"]["speedup_geomean"]
            )
        (result,) = replay_all(jobs, cut.table, settings, past=cut.past)
        measures = summarize(cut.table, settings, [result])["policies"][label]
        attempts = Counter(segment.job_id for segment in result.schedule.segments or ())
        found[name] = {
            "unit": unit,
            "gain": log(measures["speedup_geomean"]),
            "measured": measures["measured"],
            "late": measures["slowed"],
            "latest_s": round(60 * measures["slowdown_max_min"], 3),
            "jobs": len(jobs.arrivals),
            "stops": measures["interruptions"],
            "most": max(attempts.values(), default=1) - 1,
            "wasted": measures["gpu_hours_thrown_away"],
            "used": _gpu_hours(jobs),
        }
    return found


def _gpu_hours(trace: Trace) -> float:
    return fsum(seconds * job.width for job, seconds in trace.arrivals) / 3600


def row_of(runs: list[dict[str, Any]]) -> dict[str, Any]:
    def total(key: str) -> float:
        return fsum(run[key] for run in runs)

    captured = sorted(run["gain"] / run["unit"] for run in runs)
    return {
        "runs": len(runs),
        "measured": int(total("measured")),
        "captured": round(total("gain") / total("unit"), 3),
        "captured_95": interval_of(runs),
        "captured_least": round(captured[0], 3),
        "captured_median": round(captured[len(captured) // 2], 3),
        "captured_most": round(captured[-1], 3),
        f"later_by_more_than_{SLOWED}_s": int(total("late")),
        "later_pct": round(100 * total("late") / total("measured"), 5),
        "runs_without": sum(not run["late"] for run in runs),
        "latest_s": max(run["latest_s"] for run in runs),
        "stops_for_100_jobs": round(100 * total("stops") / total("jobs"), 2),
        "most_stops_of_a_job": max(run["most"] for run in runs),
        "gpu_time_wasted_pct": round(100 * total("wasted") / total("used"), 3),
        "by_piece": [
            {
                "captured": round(run["gain"] / run["unit"], 3),
                "later_pct": round(100 * run["late"] / run["measured"], 4),
                "stops_for_100_jobs": round(100 * run["stops"] / run["jobs"], 2),
                "gpu_time_wasted_pct": round(100 * run["wasted"] / run["used"], 3),
            }
            for run in runs
        ],
    }


def interval_of(runs: list[dict[str, Any]]) -> list[float]:
    """Return the 95 % interval of what is captured, by a bootstrap over the pieces."""
    drawn = np.random.default_rng(0).integers(len(runs), size=(RESAMPLES, len(runs)))
    gains, units = (np.array([run[key] for run in runs])[drawn] for key in ("gain", "unit"))
    captured = gains.sum(axis=1) / units.sum(axis=1)
    return [round(float(each), 3) for each in np.percentile(captured, [2.5, 97.5])]


def draw(stored: dict[str, Any]) -> None:
    """Draw what each case captures against what it costs; small points are pieces."""
    from matplotlib import rc_context  # noqa: PLC0415  a slow import
    from matplotlib.figure import Figure  # noqa: PLC0415

    from replay.plotting.canvas import PALETTE, STYLE, SVG_METADATA  # noqa: PLC0415

    cases = [(case[0], stored[case[0]]) for case in CASES if "by_piece" in stored.get(case[0], {})]
    with rc_context({**STYLE, "svg.hashsalt": "sia"}):
        figure = Figure(figsize=(10, 4.6), layout="constrained")
        panels = figure.subplots(1, 3, sharey=True)
        for axes, (key, title) in zip(panels, COSTS.items(), strict=True):
            for color, (name, row) in zip(PALETTE, cases, strict=False):
                points = row["by_piece"]
                axes.plot(
                    [point[key] for point in points], [point["captured"] for point in points],
                    ".", color=color, markersize=3, alpha=0.5,
                )  # fmt: skip
                below, above = (abs(row["captured"] - each) for each in row["captured_95"])
                axes.errorbar(
                    row[key], row["captured"], [[below], [above]], fmt="o", color=color,
                    capsize=3, label=name,
                )  # fmt: skip
            axes.set_xscale("symlog", linthresh=0.1)
            axes.set_xlim(-0.02, 60)
            axes.set_xticks(TICKS, [f"{tick:g}" for tick in TICKS])
            axes.minorticks_off()
            axes.set_title(title, loc="left", fontsize=9)
        panels[0].set_ylabel("captured")
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
        figure.savefig(PICTURE, format="svg", metadata=SVG_METADATA)


if __name__ == "__main__":
    main()
