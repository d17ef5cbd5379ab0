"""What `sia` gains and costs where no job may be stopped, or a few, on pieces of a log.

    python -m benchmarks.lending.never philly.csv.gz philly_pools.csv DRAW PIECES POLICY[,POLICY…]
        [WINDOWS [PERCENT]]

PIECES are numbers such as 0+4+7; for DRAW see `draws` in `benchmarks/lending/pieces.py`. Forecasts
know the four weeks before. WINDOWS is 3 for those of the paper (default) or 15. PERCENT of the jobs
(default 0) may be stopped and lose 5 minutes. The unit of what is captured is the gain of `sia`
with perfect forecasts in the three windows; where these gain nothing, nothing counts as captured.
Each piece is added to `lending/never.json`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from math import fsum, log
from pathlib import Path
from time import process_time
from typing import Any, NamedTuple

from benchmarks.common import RESULTS, keep
from benchmarks.lending.pieces import Cut, draws
from replay.logs.preemptible import PreemptibleShare, mark
from replay.logs.read import read_pools, read_trace
from replay.logs.trace import playable
from replay.run.run import Settings, replay_all
from replay.run.summary import summarize
from sia.limits import WINDOWS
from sia.model import Options
from sia.wording import DAY, parse_seconds

NAME = "lending/never"

STOP = 300.0
"""Seconds of work that a stop costs jobs that may be stopped."""

FIFTEEN = "5m,10m,15m,30m,1h,2h,3h,4h,6h,8h,12h,1d,2d,3d,6d"
"""The windows of `docs/results/forecasts.md`."""

WINDOWS_BY_NUMBER = {3: WINDOWS, 15: tuple(parse_seconds(each) for each in FIFTEEN.split(","))}


class Case(NamedTuple):
    """What to replay: policies, the number of windows, and the percentage that may be stopped."""

    policies: tuple[str, ...]
    windows: int
    percent: int

    def name(self, draw: str) -> str:
        """Return the name of a draw in the results; the usual values are left out."""
        stopped = f", {self.percent} % may be stopped" if self.percent else ""
        windows = f", {self.windows} windows" if self.windows != len(WINDOWS) else ""
        return draw + stopped + windows


def main() -> None:
    trace, table = read_trace(Path(sys.argv[1])), read_pools(Path(sys.argv[2]))
    draw, pieces = sys.argv[3], [int(number) for number in sys.argv[4].split("+")]
    more = [int(number) for number in sys.argv[6:]]
    case = Case(tuple(sys.argv[5].split(",")), *more, *(len(WINDOWS), 0)[len(more) :])
    path = RESULTS / f"{NAME}.json"
    found: dict[str, Any] = json.loads(path.read_text())["draws"] if path.exists() else {}
    for piece, cut in zip(pieces, draws(trace, table, draw, pieces), strict=True):
        for label, row in measure(cut, case).items():
            found.setdefault(case.name(draw), {}).setdefault(label, {})[str(piece)] = row
            print(draw, piece, label, row, flush=True)
        keep(NAME, {"draws": found, "sums": sums(found)}, quiet=True)


def sums(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sums over all pieces of each draw and policy."""
    return {
        f"{draw}, {label}": row_of(rows) for draw in found for label, rows in found[draw].items()
    }


def measure(cut: Cut, case: Case) -> dict[str, dict[str, Any]]:
    """Return the measures of all policies on a piece."""
    settings = Settings(("sia",), warmup=2 * DAY)
    jobs = playable(cut.log, cut.table)
    perfect = replay_all(jobs, cut.table, settings)
    unit = log(summarize(cut.table, settings, perfect)["policies"]["sia"]["speedup_geomean"])
    found = {}
    options = Options(windows=WINDOWS_BY_NUMBER[case.windows])
    if case.percent:
        share = PreemptibleShare(case.percent, STOP)
        jobs = playable(mark(jobs, share, 0), cut.table)
        settings = settings._replace(preemptible=share)
    for label in case.policies:
        began = process_time()
        settings = settings._replace(policies=(label,), options=options)
        results = replay_all(jobs, cut.table, settings, past=cut.past)
        measures = summarize(cut.table, settings, results)["policies"][label]
        found[label] = {
            "unit": round(unit, 5),
            "captured": round(log(measures["speedup_geomean"]) / unit, 3) if unit else 0.0,
            "measured": measures["measured"],
            "slowed": measures["slowed"],
            "minutes": round(measures["slowdown_total_min"], 1),
            "stops": measures["interruptions"],
            "cpu_s": round(process_time() - began, 1),
        }
    return found


def row_of(runs: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    def total(key: str) -> float:
        return fsum(run.get(key, 0) for run in runs.values())  # older rows have no stops

    gained = fsum(run["captured"] * run["unit"] for run in runs.values())
    worst = max(run["slowed"] / run["measured"] for run in runs.values())
    return {
        "pieces": "+".join(runs),
        "measured": int(total("measured")),
        "captured": round(gained / total("unit"), 3),
        "slowed": int(total("slowed")),
        "slowed_pct": round(100 * total("slowed") / total("measured"), 4),
        "slowed_pct_worst": round(100 * worst, 3),
        "minutes": round(total("minutes"), 1),
        "stops": int(total("stops")),
        "cpu_s": round(total("cpu_s")),
    }


if __name__ == "__main__":
    main()
