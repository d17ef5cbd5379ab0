"""Shared code of the benchmarks: inputs, timing, and storage of results."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Callable
from math import sqrt
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any

from cells.layout.spec import CellType
from replay.logs.read import read_pools, read_trace
from replay.logs.trace import PoolTable, Trace, playable

ROOT = Path(__file__).resolve().parent.parent
TRACES = Path(os.environ.get("SIA_TRACES", ROOT.parent / "shared" / "traces"))
RESULTS = Path(__file__).resolve().parent / "results"

NODE = (
    CellType("gpu"),
    CellType("pair", "gpu", 2),
    CellType("quad", "pair", 2),
    CellType("node", "quad", 2, node=True),
)
"""Types of cells up to a node of eight GPUs."""

CASES = {
    "fcfs": ("fcfs", "none", "perfect"),
    "ssf": ("ssf", "none", "perfect"),
    "gssf": ("gssf", "none", "perfect"),
    "mmfs": ("mmfs", "none", "perfect"),
    "sia, perfect": ("sia", "perfect", "perfect"),
    "sia, sliding-max + history": ("sia", "sliding-max", "history"),
}
"""Policy, forecast and durations of each line of the results."""


STUDENT = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365, 10: 2.262}
"""Quantiles of Student's t for 95 % by number of seeds."""


def philly() -> tuple[Trace, PoolTable]:
    """The whole Philly log and its pools."""
    if not TRACES.is_dir():
        sys.exit(f"{TRACES}: no such folder; set SIA_TRACES to the folder with philly.csv.gz")
    table = read_pools(TRACES / "philly_pools.csv")
    return playable(read_trace(TRACES / "philly.csv.gz"), table), table


def spread(values: list[float]) -> dict[str, float]:
    """Return the minimum, median and maximum of several runs."""
    return {
        "min": round(min(values), 4),
        "median": round(median(values), 4),
        "max": round(max(values), 4),
        "runs": len(values),
    }


def interval(values: list[float]) -> list[float]:
    """Return the mean, and the half width of its 95 % interval."""
    if len(values) < 2:
        return [round(fmean(values), 3), 0.0]
    half = STUDENT[len(values)] * stdev(values) / sqrt(len(values))
    return [round(fmean(values), 3), round(half, 3)]


def in_turn(runs: int, *calls: Callable[[], float]) -> list[list[float]]:
    """Call all functions in turn for a number of rounds; return the results of each."""
    rounds = [[call() for call in calls] for _ in range(runs)]
    return [list(column) for column in zip(*rounds, strict=True)]


def keep(name: str, results: dict[str, Any], *, quiet: bool = False) -> None:
    """Store the results in `results` with a description of the machine; print them unless quiet."""
    machine = f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}"
    python = f"Python {platform.python_version()}"
    text = json.dumps({"machine": machine, "python": python, **results}, indent=1)
    path = RESULTS / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")
    if not quiet:
        print(f"{name}: {text}")
