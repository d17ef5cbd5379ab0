"""Which window a job fits, by life tables and by boosted trees, at the same care.

    python -m benchmarks.lending.run_time_windows LOG[,LOG…] [JOBS]

Each predictor is asked for several quantiles; jobs of the last quarter of the log's time are
measured. LOG is `philly`, `helios_venus`, `helios_venus_users`, `kth_sp2` or `google2011`; with
JOBS only so many jobs of its end are used. Results are added to `run_time_windows.json`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from time import process_time
from typing import Any

from benchmarks.common import RESULTS, TRACES, keep
from predictors.run_times.boosted.predictor import BoostedRunTimes
from predictors.run_times.survival import SurvivalRunTimes
from replay.forecast.run_times import evaluate_run_times, last_quarter, starts_of
from replay.logs.importers import google, swf
from replay.logs.read import read_pools, read_trace
from replay.logs.trace import Trace, playable
from sia.forecasts import RunTimes
from sia.limits import WINDOWS

NAME = "run_time_windows"

ASKED: dict[str, tuple[Callable[[float], RunTimes], tuple[float, ...]]] = {
    "survival": (lambda q: SurvivalRunTimes(WINDOWS, q), (0.8, 0.88, 0.94, 0.97)),
    "boosted": (lambda q: BoostedRunTimes(WINDOWS, q), (0.96, 0.98)),
}


def read(name: str) -> tuple[Trace, list[float | None]]:
    """Return a log and when its jobs start."""
    if name == "google2011":
        trace = google.read(TRACES / "google2011_jobs.csv.gz", None)[0]
    elif name == "kth_sp2":
        trace = swf.read(TRACES / "kth_sp2.swf.gz", None)[0]
    else:
        trace = read_trace(TRACES / f"{name}.csv.gz")
    table = read_pools(TRACES / "philly_pools.csv") if name == "philly" else None
    if table is not None:
        trace = playable(trace, table)
    return trace, list(starts_of(trace, table))


def measure(trace: Trace, starts: list[float | None], predictor: RunTimes) -> dict[str, Any]:
    """Return percent of jobs that outlast their window, that end in it, and that are given none."""
    began = process_time()
    found = evaluate_run_times(
        trace, {"": predictor}, since=last_quarter(trace), windows=WINDOWS, starts=starts
    )[""]
    cells, bins = found.confusion, range(len(WINDOWS) + 1)
    over = sum(cells[true][said] for true in bins for said in bins if true > said)
    return {
        "n": found.n,
        "over_pct": round(100 * over / found.n, 2),
        "right_pct": round(100 * sum(cells[i][i] for i in bins) / found.n, 2),
        "none_pct": round(100 * sum(row[-1] for row in cells) / found.n, 2),
        "ms_a_job": round(1000 * (process_time() - began) / len(trace.arrivals), 3),
    }


def main() -> None:
    most = int(sys.argv[2]) if len(sys.argv) > 2 else None
    path = RESULTS / f"{NAME}.json"
    logs: dict[str, Any] = json.loads(path.read_text())["logs"] if path.exists() else {}
    for name in sys.argv[1].split(","):
        trace, starts = read(name)
        if most is not None:
            trace, starts = replace(trace, arrivals=trace.arrivals[-most:]), starts[-most:]
        rows = logs[name if most is None else f"{name}, last {most} jobs"] = {}
        for who, (make, quantiles) in ASKED.items():
            for quantile in quantiles:
                rows[f"{who}:{quantile}"] = measure(trace, starts, make(quantile))
                print(name, who, quantile, rows[f"{who}:{quantile}"], flush=True)
        keep(NAME, {"logs": logs})


if __name__ == "__main__":
    main()
