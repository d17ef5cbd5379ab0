"""What `sia` gains and costs where no job may be stopped, on pieces of a log drawn in two ways.

    python benchmarks/lending_never.py philly.csv.gz philly_pools.csv DRAW PIECES POLICY[,POLICY…]

`together` draws the pieces of `sia experiment --queues 8`; in `apart` each pool has a start of its
own, so that pools which were busy at different times are busy at once. Forecasts know the four
weeks before. The unit of what is captured is the gain of `sia` with perfect forecasts; windows are
the three of the paper. Results are added to `lending_never.json`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from math import fsum, log
from pathlib import Path
from random import Random
from time import process_time
from typing import Any, NamedTuple

from common import RESULTS, keep

from replay.experiment.design import Piece, PieceDesign, plan_pieces
from replay.logs.past import PastJobs
from replay.logs.read import read_pools, read_trace
from replay.logs.trace import PoolTable, Trace, playable
from replay.run.run import Settings, replay_all
from replay.run.starts import starts_of
from replay.run.summary import summarize
from sia.wording import DAY, WEEK

NAME = "lending_never"
POOLS = 8
LENGTH = 2 * WEEK
LOADS = (0.6, 1.1)
SINCE = 4 * WEEK
"""Pieces begin at this second of the log or later, so that forecasts know four weeks before."""


class Cut(NamedTuple):
    """A piece of the log, its pools, the four weeks before it, and what is to be replayed."""

    log: Trace
    table: PoolTable
    past: PastJobs
    policies: tuple[str, ...]


def main() -> None:
    trace, table = read_trace(Path(sys.argv[1])), read_pools(Path(sys.argv[2]))
    draw, pieces, policies = sys.argv[3], int(sys.argv[4]), tuple(sys.argv[5].split(","))
    runnable = playable(trace, table)
    pairs = zip(runnable.arrivals, starts_of(runnable, table), strict=True)
    starts = {arrival.job.id: start for arrival, start in pairs if start is not None}
    if draw == "together":
        planned = plan_pieces(trace, table, PieceDesign([POOLS], pieces, LENGTH, LOADS, 0, SINCE))
        cuts = [joined(trace, starts, [piece], policies) for piece in planned]
    else:
        cuts = [joined(trace, starts, apart(trace, table, i), policies) for i in range(pieces)]
    found: dict[str, list[dict[str, Any]]] = {label: [] for label in policies}
    with ProcessPoolExecutor(2) as processes:
        for number, measured in enumerate(processes.map(measure, cuts)):
            for label, measures in measured.items():
                found[label].append(measures)
                print(draw, number, label, measures, flush=True)
    path = RESULTS / f"{NAME}.json"
    before = json.loads(path.read_text()).get("draws", {}) if path.exists() else {}
    rows = {label: row_of(runs) for label, runs in found.items()}
    key = f"{draw}, {pieces} pieces"
    keep(NAME, {"draws": {**before, key: {**before.get(key, {}), **rows}}})


def apart(trace: Trace, table: PoolTable, number: int) -> list[Piece]:
    """Draw pools, each with a start of its own: pieces of one pool."""
    names = Random(f"apart/{number}").sample(sorted(pool.name for pool in table.pools), POOLS)
    found = []
    for name in sorted(names):
        own = PoolTable([pool for pool in table.pools if pool.name == name])
        only = Trace([a for a in trace.arrivals if a.job.pool == name], trace.columns)
        seed = Random(f"{name}/{number}").randrange(2**31)
        found += plan_pieces(only, own, PieceDesign([1], 1, LENGTH, LOADS, seed, SINCE))
    return found


def joined(
    trace: Trace, starts: Mapping[str, float], pieces: list[Piece], policies: tuple[str, ...]
) -> Cut:
    """Put pieces beside each other; second 0 is the begin of each."""
    logs = [piece.cut(trace) for piece in pieces]
    pasts = [past for piece in pieces if (past := piece.past(trace, starts)) is not None]
    table = PoolTable([pool for piece in pieces for pool in piece.table.pools])
    arrivals = sorted((a for log in logs for a in log.arrivals), key=lambda a: a.job.submit)
    jobs = sorted(
        (each for past in pasts for each in past.jobs), key=lambda each: each[0].job.submit
    )
    past = PastJobs(min(past.begin for past in pasts), jobs)
    return Cut(playable(Trace(arrivals, trace.columns), table), table, past, policies)


def measure(cut: Cut) -> dict[str, dict[str, Any]]:
    """Return the measures of all policies on a piece."""
    settings = Settings(("sia",), warmup=2 * DAY)
    perfect = replay_all(cut.log, cut.table, settings)
    unit = log(summarize(cut.table, settings, perfect)["policies"]["sia"]["speedup_geomean"])
    found = {}
    for label in cut.policies:
        began = process_time()
        settings = settings._replace(policies=(label,))
        results = replay_all(cut.log, cut.table, settings, past=cut.past)
        measures = summarize(cut.table, settings, results)["policies"][label]
        found[label] = {
            "unit": round(unit, 5),
            "gain": round(log(measures["speedup_geomean"]), 5),
            "measured": measures["measured"],
            "slowed": measures["slowed"],
            "minutes": round(measures["slowdown_total_min"], 1),
            "cpu_s": round(process_time() - began, 1),
        }
    return found


def row_of(runs: list[dict[str, Any]]) -> dict[str, Any]:
    def total(key: str) -> float:
        return fsum(run[key] for run in runs)

    captured = sorted(run["gain"] / run["unit"] for run in runs)
    worst = max(run["slowed"] / run["measured"] for run in runs)
    return {
        "measured": int(total("measured")),
        "captured": round(total("gain") / total("unit"), 3),
        "captured_least": round(captured[0], 3),
        "captured_most": round(captured[-1], 3),
        "slowed": int(total("slowed")),
        "slowed_pct": round(100 * total("slowed") / total("measured"), 4),
        "slowed_pct_worst": round(100 * worst, 3),
        "minutes": round(total("minutes"), 1),
        "pieces_without": sum(not run["slowed"] for run in runs),
        "cpu_s": round(total("cpu_s")),
    }


if __name__ == "__main__":
    main()
