"""wDMR of Chronus and its rivals on many pieces of Philly's log.

A piece has 6 % of the jobs of four days of the two weeks of the paper (12 to 25 October 2017), of
at most 48 GPUs, with run times cut at two days, on 48 GPUs. These commands make it:

    sia trace slice --trace philly.csv.gz --pools philly_pools.csv --from SECOND --length 4d \
        --longest 2d --widest 48 --merge 48 --out piece
    sia trace deadlines --trace piece/trace.csv --mix 30/60/10 --density 6 --seed SEED --out due.csv

Draws whose load on 48 GPUs over the four days is not within 1.00 to 1.04 are passed over. Deadlines
are 1.2 to 2 run times after the submission; estimates are true. `--above 300` leaves out the jobs
of up to 300 s, as the workloads of the paper do; their load is next to nothing. `--little-work`
gives the solver a fiftieth of its usual work for each program; with the usual one, replays with
trials take too long. Prints a line for each piece, mix and policy as JSON, and means with intervals
at the end: python -m benchmarks.policies.deadlines. `--keep` adds the lines to the stored results
(benchmarks/results/policies/chronus_pieces.json).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from itertools import count, islice
from multiprocessing import Pool as Processes
from statistics import mean, stdev
from typing import Any, NamedTuple
from unittest.mock import patch

from benchmarks.common import RESULTS, TRACES, keep
from benchmarks.policies.chronus_figures import LIMIT
from replay.deadlines.rewards import GUARANTEED, UNGUARANTEED, deadline_measures
from replay.deadlines.workloads import PHILLY_WEEKS, Mix, with_deadlines
from replay.logs.read import read_pools, read_trace
from replay.logs.slice import merged, shortened, slice_trace
from replay.logs.trace import PoolTable, Trace
from replay.run.run import Settings, replay_one
from sia.model import Options, Pool
from sia.policies.chronus import promises

DAY = 86400.0
GPUS, DAYS, SHARE, LONGEST = 48, 4, 6.0, 2 * DAY
LOADS = 1.00, 1.04
MIXES = {"30/60/10": Mix(30, 60, 10), "70/0/30": Mix(70, 0, 30)}
POLICIES = (
    "edf", "yarn-cs:slo=90", "yarn-cs:slo=70", "chronus:profile=0", "chronus:profile=0:fill",
    "chronus:lease=900:be=300:profile=0:fill", "chronus:lease=600:be=60:profile=0:fill",
    "chronus:lease=300:be=60:profile=0:fill", "chronus:lease=60:be=60:profile=0:fill",
)  # fmt: skip


class Piece(NamedTuple):
    """A part of the log, and who schedules it."""

    day: int
    seed: int
    load: float
    mix: str
    policy: str
    trace: Trace
    above: float = 0.0
    resume_cost: float = 0.0
    little_work: bool = False
    """Whether the solver gets a fiftieth of its usual work for each program."""


def pieces(log: Trace, table: PoolTable, mix: Mix) -> Iterator[tuple[int, int, float, Trace]]:
    """Yield pieces whose load is about 1.02: first day, seed, load, jobs with deadlines.

    The jobs of a piece are the same for each mix.
    """
    names = [pool.name for pool in table.pools]
    days = []
    for day in range(11):
        begin = PHILLY_WEEKS[0] + day * DAY
        whole, _ = slice_trace(log, table, begin=begin, end=begin + DAYS * DAY, pools=names)
        days.append(merged(shortened(whole, LONGEST, GPUS), GPUS)[0])
    for seed in count():
        for day, whole in enumerate(days):
            piece = with_deadlines(whole, mix, (1.2, 2.0), SHARE, seed)
            load = sum(a.job.width * a.duration for a in piece.arrivals) / (GPUS * DAYS * DAY)
            if LOADS[0] <= load <= LOADS[1]:
                yield day, seed, load, piece


def longer(trace: Trace, seconds: float) -> Trace:
    """Return the jobs that run longer than so many seconds."""
    return replace(trace, arrivals=[a for a in trace.arrivals if a.duration > seconds])


def measured(piece: Piece) -> dict[str, Any]:
    """Replay a piece, and return what came of its deadlines."""
    trace, table = piece.trace, PoolTable([Pool("all", GPUS)])
    settings = Settings([piece.policy], options=Options(resume_cost=piece.resume_cost))
    little = partial(patch.object, promises, new=LIMIT) if piece.little_work else nullcontext
    with little("LIMIT"), little("SOON"):
        found = replay_one(trace, table, piece.policy, settings, None)
    measures = deadline_measures(trace, found.ends)
    labels = [found.promises[a.job.id].label for a in trace.arrivals if a.job.id in found.promises]
    kept = sum(
        1
        for (job, _), end in zip(trace.arrivals, found.ends, strict=True)
        if end is not None
        and found.promises.get(job.id) is not None
        and found.promises[job.id].label == UNGUARANTEED
        and job.step_met(end) is not None
    )
    jct = measures["best_effort_avg_jct_s"] or 0.0
    return {
        "day": piece.day, "seed": piece.seed, "load": round(piece.load, 3), "mix": piece.mix,
        "above": piece.above, "resume_cost": piece.resume_cost, "policy": piece.policy,
        **({"little_work": True} if piece.little_work else {}),
        "jobs": len(trace.arrivals), "slo_jobs": measures["slo_jobs"],
        "wdmr": round(measures["wdmr"], 5), "best_effort_avg_jct_s": round(jct, 1),
        "guaranteed": labels.count(GUARANTEED), "refused_in_time": kept,
        "seconds": round(found.seconds, 2),
    }  # fmt: skip


def add_to_results(rows: list[dict[str, Any]]) -> None:
    """Add rows to the stored ones; they replace rows of the same piece, options and policy."""
    name = "policies/chronus_pieces"
    path = RESULTS / f"{name}.json"
    known = json.loads(path.read_text())["rows"] if path.exists() else []
    keys = "day", "seed", "mix", "above", "resume_cost", "policy", "little_work"
    found = {tuple(row.get(key, False) for key in keys): row for row in [*known, *rows]}
    keep(name, {"rows": [found[key] for key in sorted(found)]}, quiet=True)


def main() -> None:
    """Measure all pieces under all policies."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pieces", type=int, default=10)
    parser.add_argument("--skip", type=int, default=0, help="pieces to pass over first")
    parser.add_argument("--above", type=float, default=0.0, help="only longer jobs, in seconds")
    parser.add_argument("--resume-cost", type=float, default=0.0, help="seconds")
    parser.add_argument("--little-work", action="store_true", help="a fiftieth of work a program")
    parser.add_argument("--keep", action="store_true", help="add the rows to the stored results")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--policy", default=",".join(POLICIES))
    parser.add_argument("--mix", default=",".join(MIXES))
    given = parser.parse_args()
    log, table = read_trace(TRACES / "philly.csv.gz"), read_pools(TRACES / "philly_pools.csv")
    mixes = given.mix.split(",")
    drawn = zip(*(pieces(log, table, MIXES[mix]) for mix in mixes), strict=True)
    tasks = [
        Piece(
            *(day, seed, load, mix, policy),
            *(longer(trace, given.above), given.above, given.resume_cost, given.little_work),
        )
        for of_mix in islice(drawn, given.skip, given.skip + given.pieces)
        for mix, (day, seed, load, trace) in zip(mixes, of_mix, strict=True)
        for policy in given.policy.split(",")
    ]
    rows: dict[tuple[str, str], list[dict[str, Any]]] = {}
    with Processes(given.processes) as processes:
        for row in processes.imap(measured, tasks):
            print(json.dumps(row), flush=True)
            rows.setdefault((row["mix"], row["policy"]), []).append(row)
            if given.keep:
                add_to_results([row])
    for (mix, policy), found in sorted(rows.items()):
        values = [100 * row["wdmr"] for row in found]
        half = 1.96 * stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0
        promised = 100 * mean(row["guaranteed"] / row["slo_jobs"] for row in found)
        seconds = mean(row["seconds"] for row in found)
        jct = mean(row["best_effort_avg_jct_s"] for row in found)
        print(
            f"{mix:9} {policy:45} wDMR {mean(values):5.2f} % ± {half:4.2f}"
            f"  promised {promised:5.1f} %  best effort {jct:8.0f} s  replay {seconds:6.1f} s"
        )


if __name__ == "__main__":
    main()
