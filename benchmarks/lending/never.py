"""What `sia` gains and costs where no job may be stopped, on pieces of a log drawn in two ways.

    python -m benchmarks.lending.never philly.csv.gz philly_pools.csv DRAW PIECES POLICY[,POLICY…]

PIECES are numbers such as 0+4+7. `together` draws the pieces of `sia experiment --queues 8`; in
`apart` each pool has a start of its own, so that pools which were busy at different times are busy
at once. Forecasts know the four weeks before. The unit of what is captured is the gain of `sia`
with perfect forecasts; windows are the three of the paper. Each piece is added to
`lending_never.json`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from math import fsum, log
from pathlib import Path
from random import Random
from time import process_time
from typing import Any, NamedTuple

from benchmarks.common import RESULTS, keep
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
MOST = 20
"""Pieces that can be drawn together."""

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
    draw, pieces = sys.argv[3], [int(number) for number in sys.argv[4].split("+")]
    policies = tuple(sys.argv[5].split(","))
    runnable = playable(trace, table)
    pairs = zip(runnable.arrivals, starts_of(runnable, table), strict=True)
    starts = {arrival.job.id: start for arrival, start in pairs if start is not None}
    design = PieceDesign([POOLS], MOST, LENGTH, LOADS, 0, SINCE)
    planned = plan_pieces(trace, table, design) if draw == "together" else []
    path = RESULTS / f"{NAME}.json"
    draws: dict[str, Any] = json.loads(path.read_text())["draws"] if path.exists() else {}
    for piece in pieces:
        chosen = [planned[piece]] if planned else apart(trace, table, piece)
        for label, row in measure(joined(trace, starts, chosen, policies)).items():
            draws.setdefault(draw, {}).setdefault(label, {})[str(piece)] = row
            print(draw, piece, label, row, flush=True)
    keep(NAME, {"draws": draws, "sums": sums(draws)})


def sums(draws: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sums over all pieces of each draw and policy."""
    return {
        f"{draw}, {label}": row_of(rows) for draw in draws for label, rows in draws[draw].items()
    }


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
            "captured": round(log(measures["speedup_geomean"]) / unit, 3),
            "measured": measures["measured"],
            "slowed": measures["slowed"],
            "minutes": round(measures["slowdown_total_min"], 1),
            "cpu_s": round(process_time() - began, 1),
        }
    return found


def row_of(runs: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    def total(key: str) -> float:
        return fsum(run[key] for run in runs.values())

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
        "cpu_s": round(total("cpu_s")),
    }


if __name__ == "__main__":
    main()
