"""What `sia-reclaim` gains and costs on pieces of a log.

    python -m benchmarks.lending.pieces philly.csv.gz philly_pools.csv
        [--pieces N] [--cases PART] [--draw DRAW]

Draws the pieces of `sia experiment --queues 8 --runs 20` and replays each, or the first few, under
several policies, forecasts, and costs of a stop. The unit of what is captured is the gain of `sia`
with perfect forecasts in three windows. The results of all 20 pieces are in `pieces.json`, those
of the first N in `pieces_N.json`. With `--cases`, parts of their names such as `5 minutes+Kueue`,
only these cases are replayed, and the others stay as they are stored. With another DRAW (see
`draws`) the results are in `draws.json`. Intervals are of a bootstrap over the pieces.
`python -m benchmarks.pictures` draws them.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import repeat
from math import fsum, log
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.common import RESULTS, keep
from replay.experiment.design import Piece, PieceDesign, plan_pieces
from replay.logs.past import PastJobs
from replay.logs.preemptible import PreemptibleShare, mark
from replay.logs.read import read_pools, read_trace
from replay.logs.trace import PoolTable, Trace, playable
from replay.run.run import Settings, replay_all
from replay.run.schedule import Result
from replay.run.starts import starts_of
from replay.run.summary import jct_pairs, summarize
from sia.limits import SLOWED
from sia.model import StopCost
from sia.wording import DAY, WEEK

if TYPE_CHECKING:
    from predictors.learning.model import Model

PIECES = 20
POOLS = 8
LENGTH = 2 * WEEK
LOADS = (0.6, 1.1)
SINCE = 4 * WEEK
"""Pieces begin at this second of the log or later, so that forecasts know four weeks before. Those
of `whole` begin anywhere."""

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


MEASURES = {
    "captured": ("gain", "unit", 1, 3),
    "later_pct": ("late", "measured", 100, 5),
    "stops_for_100_jobs": ("stops", "jobs", 100, 2),
    "gpu_time_wasted_pct": ("wasted", "used", 100, 3),
}
"""Measures of a case: the sum of the first over that of the second, a factor, and digits."""

Sums = Mapping[str, NDArray[np.float64]]
"""For each piece, or each part of a log, what `MEASURES` is made of."""


class Cut(NamedTuple):
    """A piece of the log, its pools, and the four weeks before it."""

    log: Trace
    table: PoolTable
    past: PastJobs | None


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("trace", type=Path)
    parser.add_argument("pools", type=Path)
    parser.add_argument("--pieces", type=int, default=PIECES)
    parser.add_argument("--cases", default="")
    parser.add_argument("--draw", default="whole")
    given = parser.parse_args()
    trace, table = read_trace(given.trace), read_pools(given.pools)
    cases = [case for case in CASES if any(part in case[0] for part in given.cases.split("+"))]
    cuts = draws(trace, table, given.draw, range(given.pieces))
    found: dict[str, list[dict[str, Any]]] = {case[0]: [] for case in cases}
    with ProcessPoolExecutor(2) as processes:
        for number, measured in enumerate(processes.map(measure, cuts, repeat(cases))):
            for case, measures in measured.items():
                found[case].append(measures)
                print(number, case, measures, flush=True)
    store(given.draw, given.pieces, {case: row_of(rows) for case, rows in found.items()})


def store(draw: str, pieces: int, rows: dict[str, Any]) -> None:
    """Add rows to those that are stored."""
    whole = "lending/pieces" if pieces == PIECES else f"lending/pieces_{pieces}"
    name = whole if draw == "whole" else "lending/draws"
    path = RESULTS / f"{name}.json"
    stored = json.loads(path.read_text()) if path.exists() else {}
    keep(name, stored | (rows if draw == "whole" else {draw: stored.get(draw, {}) | rows}))


def draws(trace: Trace, table: PoolTable, draw: str, pieces: Iterable[int]) -> list[Cut]:
    """Return pieces of a draw by their numbers.

    `whole` draws the pieces of `sia experiment --queues 8`, `together` those with `--from 28d`, and
    `whole/1` and `together/1` those of another seed. In `apart` each pool has a start of its own,
    so that pools which were busy at different times are busy at once; `apart/1` has the next ones.
    """
    runnable = playable(trace, table)
    pairs = zip(runnable.arrivals, starts_of(runnable, table), strict=True)
    starts = {arrival.job.id: start for arrival, start in pairs if start is not None}
    kind, _, seed = draw.partition("/")
    if kind == "apart":
        numbers = (number + PIECES * int(seed or 0) for number in pieces)
        return [_joined(trace, starts, apart(trace, table, number)) for number in numbers]
    since = None if kind == "whole" else SINCE
    design = PieceDesign([POOLS], PIECES, LENGTH, LOADS, int(seed or 0), since)
    planned = plan_pieces(trace, table, design)
    return [_joined(trace, starts, [planned[number]]) for number in pieces]


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


def _joined(trace: Trace, starts: Mapping[str, float], pieces: list[Piece]) -> Cut:
    """Put pieces beside each other; second 0 is the begin of each."""
    logs = [piece.cut(trace) for piece in pieces]
    pasts = [past for piece in pieces if (past := piece.past(trace, starts)) is not None]
    table = PoolTable([pool for piece in pieces for pool in piece.table.pools])
    arrivals = sorted((a for log in logs for a in log.arrivals), key=lambda a: a.job.submit)
    jobs = sorted(
        (each for past in pasts for each in past.jobs), key=lambda each: each[0].job.submit
    )
    past = PastJobs(min(past.begin for past in pasts), jobs)
    return Cut(Trace(arrivals, trace.columns), table, past)


def measure(
    cut: Cut, cases: Sequence[Case] = CASES, part: float | None = None, model: Model | None = None
) -> dict[str, dict[str, Any]]:
    """Return the measures of these cases on a piece.

    With `part`, also those of each part of the log of so many seconds. The forecast `learned` is of
    `model`.
    """
    found: dict[str, dict[str, Any]] = {}
    perfect: Result | None = None
    unit = 0.0
    for name, percent, cost, label in cases:
        share = PreemptibleShare(percent, cost)
        settings = Settings((label,), warmup=2 * DAY, preemptible=share, model=model)
        jobs = playable(mark(cut.log, share, 0), cut.table)
        if perfect is None:
            (perfect,) = replay_all(jobs, cut.table, settings._replace(policies=("sia",)))
            summary = summarize(cut.table, settings, [perfect])["policies"]["sia"]
            unit = log(summary["speedup_geomean"])
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
        if part is not None:
            found[name]["parts"] = parts_of(result, perfect, settings, part)
    return found


def _gpu_hours(trace: Trace) -> float:
    return fsum(seconds * job.width for job, seconds in trace.arrivals) / 3600


def parts_of(
    result: Result, perfect: Result, settings: Settings, length: float, pool: str | None = None
) -> Sums:
    """Return sums over the jobs that were submitted in each part of the log, `length` seconds long.

    In a closed loop each policy has submissions of its own: the unit of a part is scaled to as many
    jobs as are measured. With `pool` only its jobs count.
    """
    own, ideal = (_by_job(each, settings, pool) for each in (result, perfect))
    last = max(own["submit"].max(), ideal["submit"].max())
    count = int(last // length) + 1

    def sums(jobs: Sums, key: str) -> NDArray[np.float64]:
        places = (jobs["submit"] // length).astype(np.int64)
        return np.bincount(places, weights=jobs[key], minlength=count)

    scale = own["measured"].sum() / ideal["measured"].sum()
    found = {key: sums(own, key) for key in own if key != "submit"}
    return found | {"unit": scale * sums(ideal, "gain")}


def _by_job(result: Result, settings: Settings, pool: str | None) -> Sums:
    lost: defaultdict[str, float] = defaultdict(float)
    for segment in result.schedule.segments or ():
        lost[segment.job_id] += segment.lost / 3600
    rows = []
    for (job, seconds), pair in zip(
        result.trace.arrivals, jct_pairs(result, settings), strict=True
    ):
        if pool is not None and job.pool != pool:
            continue
        took, alone = pair if pair is not None and pair[0] > 0 else (0.0, 0.0)
        rows.append((
            job.submit, 1, seconds * job.width / 3600, result.schedule.stops[job.id], lost[job.id],
            took > 0, took - alone > SLOWED, log(alone / took) if took else 0.0,
        ))  # fmt: skip
    keys = ("submit", "jobs", "used", "stops", "wasted", "measured", "late", "gain")
    return dict(zip(keys, np.array(rows, dtype=np.float64).T, strict=True))


def row_of(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the measures of a case over all pieces, with intervals over the pieces.

    A piece in which perfect forecasts gain nothing counts in the sums; by itself it has no share.
    """
    captured = sorted(run["gain"] / run["unit"] for run in runs if run["unit"])
    late = [run["late"] for run in runs]
    return {
        "runs": len(runs),
        "measured": sum(run["measured"] for run in runs),
        **measures_of(sums_of(runs)),
        "captured_least": round(captured[0], 3),
        "captured_median": round(captured[len(captured) // 2], 3),
        "captured_most": round(captured[-1], 3),
        f"later_by_more_than_{SLOWED}_s": sum(late),
        "runs_without": late.count(0),
        "latest_s": max(run["latest_s"] for run in runs),
        "most_stops_of_a_job": max(run["most"] for run in runs),
        "by_piece": [_shares(sums_of([run])) for run in runs if run["unit"]],
    }


def row_of_log(run: Mapping[str, Any]) -> dict[str, Any]:
    """Return the measures of a case on one log, with intervals over its parts."""
    return {
        "measured": run["measured"],
        "later": run["late"],
        "latest_s": run["latest_s"],
        "most_stops_of_a_job": run["most"],
        **measures_of(run["parts"]),
        "parts": len(run["parts"]["jobs"]),
    }


def sums_of(runs: Sequence[Mapping[str, Any]]) -> Sums:
    keys = {key for each in MEASURES.values() for key in each[:2]}
    return {key: np.array([run[key] for run in runs], dtype=np.float64) for key in keys}


def measures_of(sums: Sums) -> dict[str, Any]:
    """Return all measures, each with its 95 % interval by a bootstrap over pieces or parts."""
    found: dict[str, Any] = _shares(sums)
    for name, (part, whole, factor, digits) in MEASURES.items():
        ends = factor * interval_of(sums[part], sums[whole])
        found[f"{name}_95"] = [round(float(end), digits) for end in ends]
    return found


def interval_of(part: NDArray[np.float64], whole: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the 95 % interval of the sum of `part` over that of `whole`, by a bootstrap."""
    drawn = np.random.default_rng(0).integers(len(part), size=(RESAMPLES, len(part)))
    return np.percentile(part[drawn].sum(axis=1) / whole[drawn].sum(axis=1), [2.5, 97.5])


def _shares(sums: Sums) -> dict[str, float]:
    return {
        name: round(float(factor * sums[part].sum() / sums[whole].sum()), digits)
        for name, (part, whole, factor, digits) in MEASURES.items()
    }


if __name__ == "__main__":
    main()
