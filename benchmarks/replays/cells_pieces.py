"""Fig. 16: what each policy gains in cells, and whom it makes later, on small pieces of Philly.

`python -m benchmarks.replays.cells_pieces [--pieces 5] [--processes 2] [--draw] [--again LABELS]`

The pieces are the first ones of `sia experiment --queues 4,8` (two weeks, seed 0) that have 1,000
to 8,000 jobs: larger ones take most of the time, and smaller ones have hardly a queue. Nodes have
eight GPUs. All jobs may be stopped and start over, and the first two days are not measured. Rows
are stored in `results/replays/cells_pieces.json` after each piece, and a piece that is stored is
not replayed again; `--draw` only sums up and draws, and `--again sia-recall,sia-reclaim` replays
these policies again on the stored pieces, in cells. The picture shows geometric means over pieces
with 95 % intervals (Student's t of the logarithms), and means of the percentages of jobs that end
later than first come, first served. `of_hived` is the same of the ratio to `hived`, piece by piece.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import islice, zip_longest
from math import exp, log
from multiprocessing import Pool as Processes
from time import process_time
from typing import Any, NamedTuple

from benchmarks.common import NODE, RESULTS, ROOT, TRACES, interval, keep
from cells.layout.spec import Spec
from replay.cluster.cells_file import places_of, whole_spec
from replay.experiment.design import Piece, PieceDesign, plan_pieces
from replay.logs.preemptible import PreemptibleShare, mark
from replay.logs.read import read_pools, read_trace
from replay.logs.trace import Trace, playable
from replay.run.run import Settings, replay_all
from replay.run.starts import starts_of
from replay.run.summary import summarize
from sia.wording import DAY, WEEK

STORE, PICTURE = "replays/cells_pieces", ROOT / "docs" / "figures" / "cells-pieces.svg"
POOLS, SMALLEST, LARGEST, DRAWN, NODE_GPUS = (4, 8), 1_000, 8_000, 40, 8
RESTART = PreemptibleShare(100, "restart")

POLICIES = (
    "fcfs",
    "ssf",
    "gssf",
    "mmfs",
    "hived",
    "sia",
    "sia@peaks+survival",
    "sia@peaks+survival:0.95",
    "sia@peaks:0.8+survival:0.96",
    "sia@random+random",
    "sia-recall",
    "sia-recall@peaks+survival",
    "sia-reclaim",
    "sia-reclaim@peaks+survival",
    "sia-reclaim@random+random",
)
WITHOUT = ("fcfs", "hived", "sia", "sia@peaks+survival")
"""Policies that are replayed without cells, too: does locality reduce what they gain?"""

KEYS = (
    *("measured", "speedup_mean", "speedup_geomean", "avg_jct_s", "slowed", "slowed_pct"),
    *("slowdown_total_min", "slowdown_max_min", "stops_for_100_jobs", "gpu_time_wasted_pct"),
)


class Log(NamedTuple):
    """The whole log, and when its jobs started: what forecasts may learn from."""

    trace: Trace
    starts: dict[str, float]


@cache
def philly() -> Log:
    """Read the log once in each process."""
    trace, table = read_trace(TRACES / "philly.csv.gz"), read_pools(TRACES / "philly_pools.csv")
    runnable = playable(trace, table)
    pairs = zip(runnable.arrivals, starts_of(runnable, table), strict=True)
    return Log(trace, {arrival.job.id: start for arrival, start in pairs if start is not None})


def pieces(pools: int, count: int) -> list[Piece]:
    """Return the first pieces with so many pools that are neither too small nor too large."""
    trace, table = philly().trace, read_pools(TRACES / "philly_pools.csv")
    design = PieceDesign([pools], DRAWN, 2 * WEEK, (0.6, 1.1), step=NODE_GPUS)
    drawn = plan_pieces(trace, table, design)
    fitting = (p for p in drawn if SMALLEST <= len(p.cut(trace).arrivals) <= LARGEST)
    return list(islice(fitting, count))


def replayed(piece: Piece, policies: Sequence[str], *, cells: bool) -> dict[str, Any]:
    """Return the measures of these policies on a piece."""
    table = piece.table
    spec = whole_spec(Spec(NODE, (), ()), table) if cells else None
    settings = Settings(policies, warmup=2 * DAY, preemptible=RESTART, cells=spec)
    marked = mark(piece.cut(philly().trace), RESTART, 0)
    jobs = playable(marked, table, places_of(spec, table) if spec is not None else None)
    results = replay_all(jobs, table, settings, past=piece.past(*philly()))
    found = summarize(table, settings, results)["policies"]
    return {label: {key: found[label][key] for key in KEYS} for label in policies}


def measured(task: tuple[int, Piece]) -> dict[str, Any]:
    """Replay a piece in cells and without."""
    pools, piece = task
    philly()
    begun = process_time()
    return {
        "pools": pools,
        "piece": piece.run,
        "gpus": sum(pool.quota for pool in piece.table.pools),
        "cells": replayed(piece, POLICIES, cells=True),
        "without": replayed(piece, WITHOUT, cells=False),
        "cpu_s": round(process_time() - begun, 1),
    }


def again(task: tuple[int, Piece, Sequence[str]]) -> dict[str, Any]:
    """Return the measures of these policies on a piece, in cells."""
    return replayed(task[1], task[2], cells=True)


def as_factor(logarithms: Sequence[float]) -> list[float]:
    """Return the geometric mean with the ends of its 95 % interval."""
    mean, half = interval([*logarithms])
    return [round(exp(mean + sign * half), 2) for sign in (0, -1, 1)]


def rows_of(stored: Sequence[dict[str, Any]], pools: int, room: str) -> dict[str, Any]:
    """Return the measures of each policy over the pieces with so many pools."""
    each = [row[room] for row in stored if row["pools"] == pools]
    found: dict[str, Any] = {}
    for label in each[0]:
        runs = [row[label] for row in each]
        jobs, slowed = (sum(run[key] for run in runs) for key in ("measured", "slowed"))
        gains = [log(run["speedup_geomean"]) for run in runs]
        paired = zip(gains, (log(row["hived"]["speedup_geomean"]) for row in each), strict=True)
        found[label] = {
            "pieces": len(runs),
            "jobs": jobs,
            "speedup_geomean": as_factor(gains),
            "of_hived": as_factor([gain - hived for gain, hived in paired]),
            "speedup_mean": interval([run["speedup_mean"] for run in runs]),
            "slowed_pct": interval([run["slowed_pct"] for run in runs]),
            "slowed_pct_of_all_jobs": round(100 * slowed / jobs, 3),
            "slowed_pct_most": round(max(run["slowed_pct"] for run in runs), 2),
            "pieces_without": sum(not run["slowed"] for run in runs),
            "slowdown_total_h": round(sum(run["slowdown_total_min"] for run in runs) / 60, 1),
            "slowdown_max_h": round(max(run["slowdown_max_min"] for run in runs) / 60, 1),
            "stops_for_100_jobs": interval([run["stops_for_100_jobs"] for run in runs]),
            "gpu_time_wasted_pct": interval([run["gpu_time_wasted_pct"] for run in runs]),
        }
    return found


def sums(stored: Sequence[dict[str, Any]]) -> Iterator[tuple[str, Any]]:
    """Yield the measures of all policies, for each number of pools."""
    for pools in POOLS:
        if any(row["pools"] == pools for row in stored):
            for room in ("cells", "without"):
                yield f"{pools} pools, {room}", rows_of(stored, pools, room)


def draw(stored: Sequence[dict[str, Any]]) -> None:
    """Draw speed-ups and delays of all policies, a row of panels for each number of pools."""
    from matplotlib import rc_context  # noqa: PLC0415  a slow import
    from matplotlib.figure import Figure  # noqa: PLC0415

    from replay.plotting.canvas import STYLE, SVG_METADATA  # noqa: PLC0415

    found = dict(sums(stored))
    with rc_context({**STYLE, "svg.hashsalt": "sia"}):
        figure = Figure(figsize=(10, 7.6), layout="constrained")
        grid = figure.subplots(len(POOLS), 2, sharey=True, sharex="col")
        for (left, right), pools in zip(grid, POOLS, strict=True):
            draw_panel(left, right, pools, stored, found[f"{pools} pools, cells"])
        grid[-1][0].set_xlabel("geometric mean speed-up over FCFS in cells")
        grid[-1][1].set_xlabel("jobs later than under FCFS in cells, %")
        grid[0][0].invert_yaxis()
        figure.savefig(PICTURE, format="svg", metadata=SVG_METADATA)


def draw_panel(
    left: Any, right: Any, pools: int, stored: Sequence[dict[str, Any]], rows: dict[str, Any]
) -> None:
    """Draw each piece as a dot, and the means with their intervals."""
    from replay.plotting.canvas import GREY, PALETTE  # noqa: PLC0415

    labels = [label for label in rows if label != "fcfs"]
    colours = [PALETTE[0] if label.startswith("sia") else PALETTE[1] for label in labels]
    for y, (label, colour) in enumerate(zip(labels, colours, strict=True)):
        runs = [row["cells"][label] for row in stored if row["pools"] == pools]
        mean, low, high = rows[label]["speedup_geomean"]
        slowed, half = rows[label]["slowed_pct"]
        for axes, key, middle, ends in (
            (left, "speedup_geomean", mean, (low, high)),
            (right, "slowed_pct", slowed, (max(0.0, slowed - half), slowed + half)),
        ):
            dots = [run[key] for run in runs]
            axes.plot(dots, [y] * len(dots), "o", color=GREY, markersize=3, zorder=3)
            axes.plot(ends, [y, y], color=colour, linewidth=1.4)
            axes.plot([middle], [y], "D", color=colour, markersize=4.5)
    left.set_yticks(range(len(labels)), labels)
    left.set_xscale("log")
    marks = (0.5, 1, 2, 5, 10, 20, 50)
    left.set_xticks(marks, [f"{mark:g}" for mark in marks])
    left.set_xlim(0.5, 80)  # intervals of few pieces are wider
    left.minorticks_off()
    right.set_xscale("symlog", linthresh=0.1)
    marks = (0, 0.1, 1, 10, 100)
    right.set_xticks(marks, [f"{mark:g}" for mark in marks])
    right.set_xlim(left=-0.01)
    count = rows["fcfs"]["pieces"]
    left.set_title(f"{pools} pools, {count} pieces", loc="left", fontsize=9)


def main() -> None:
    """Replay the pieces that are not stored, store each, and draw all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pieces", type=int, default=5, choices=(2, 3, 4, 5, 6, 7, 8, 10))
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--draw", action="store_true")
    parser.add_argument("--again", metavar="LABELS", help="policies, separated by commas")
    given = parser.parse_args()
    path = RESULTS / f"{STORE}.json"
    stored: list[dict[str, Any]] = json.loads(path.read_text())["rows"] if path.exists() else []
    if given.again:
        drawn = {(pools, piece.run): piece for pools in POOLS for piece in pieces(pools, DRAWN)}
        redo = [(r["pools"], drawn[r["pools"], r["piece"]], given.again.split(",")) for r in stored]
        with Processes(given.processes) as processes:
            for row, found in zip(stored, processes.imap(again, redo), strict=True):
                row["cells"] |= found
                keep(STORE, {**dict(sums(stored)), "rows": stored}, quiet=True)
                print(row["pools"], row["piece"], found, flush=True)
    elif not given.draw:
        there = {(row["pools"], row["piece"]) for row in stored}
        drawn = ([(pools, piece) for piece in pieces(pools, given.pieces)] for pools in POOLS)
        tasks = [task for each in zip_longest(*drawn) for task in each if task is not None]
        tasks = [task for task in tasks if (task[0], task[1].run) not in there]
        with Processes(given.processes) as processes:
            for row in processes.imap(measured, tasks):
                stored = sorted([*stored, row], key=lambda each: (each["pools"], each["piece"]))
                keep(STORE, {**dict(sums(stored)), "rows": stored}, quiet=True)
                print(
                    json.dumps({key: row[key] for key in ("pools", "piece", "cpu_s")}), flush=True
                )
    keep(STORE, {**dict(sums(stored)), "rows": stored}, quiet=True)
    draw(stored)


if __name__ == "__main__":
    main()
