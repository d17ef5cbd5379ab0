"""Captured gain and delayed jobs of `sia-recall`, from folders of `sia experiment`.

    python -m benchmarks.lending.recall_pieces 10:exp10 30:exp30 100:exp100

Each argument is the percentage of preemptible jobs and the folder. One of the folders must have
`sia`, whose gain with perfect forecasts is the unit.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from math import fsum, log
from pathlib import Path
from typing import Any

from benchmarks.common import keep

Runs = dict[str, list[dict[str, Any]]]
"""Measures of all runs, by policy."""


def runs_in(folder: Path) -> Runs:
    """Read the measures of an experiment."""
    found: Runs = defaultdict(list)
    for path in sorted(folder.glob("runs/*/run.json")):
        for policy, measures in json.loads(path.read_bytes())["policies"].items():
            found[policy].append(measures)
    return found


def gain(runs: list[dict[str, Any]]) -> float:
    """Return the mean over runs of the logarithm of the geometric mean speed-up."""
    return fsum(log(run["speedup_geomean"]) for run in runs) / len(runs)


def row(runs: list[dict[str, Any]], unit: float) -> dict[str, Any]:
    """Return the measures of a policy over all runs."""
    slowed = [run["slowed_pct"] for run in runs]
    return {
        "runs": len(runs),
        "jobs": sum(run["measured"] for run in runs),
        "captured": round(gain(runs) / unit, 4),
        "slowed_pct_mean": round(fsum(slowed) / len(runs), 5),
        "slowed_pct_most": round(max(slowed), 5),
        "slowed": sum(run["slowed"] for run in runs),
        "slowdown_min_mean": round(fsum(run["slowdown_total_min"] for run in runs) / len(runs), 1),
        "runs_without": sum(not run["slowed"] for run in runs),
        "stops": sum(run["interruptions"] for run in runs),
        "gpu_hours_thrown_away": round(fsum(run["gpu_hours_thrown_away"] for run in runs), 1),
    }


def main() -> None:
    read = {}
    for argument in sys.argv[1:]:
        percent, _, folder = argument.partition(":")
        read[percent] = runs_in(Path(folder))
    unit = next(gain(found["sia"]) for found in read.values() if "sia" in found)
    rows: dict[str, Any] = {
        f"{percent} % preemptible": {
            policy: row(runs, unit) for policy, runs in found.items() if policy != "fcfs"
        }
        for percent, found in sorted(read.items(), key=lambda pair: float(pair[0]))
    }
    keep("lending/recall_pieces", rows)


if __name__ == "__main__":
    main()
