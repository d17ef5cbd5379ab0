"""wDMR of Chronus and its rivals on many pieces of a log: python -m benchmarks.deadlines LOG.

A piece has 6 % of the jobs of four days of the two weeks of the paper (12 to 25 October 2017),
those above 300 s and of at most 48 GPUs, drawn by a seed, with run times cut at two days. Draws
whose load on 48 GPUs is not within 0.97 to 1.07 are skipped, so that it is about 1.02. Deadlines
are 1.2 to 2 run times after the submission; estimates are true. Prints a line for each piece, mix
and policy as JSON, and means with intervals at the end.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from itertools import count
from multiprocessing import Pool as Processes
from pathlib import Path
from random import Random
from statistics import mean, stdev
from typing import Any, NamedTuple

from msgspec.structs import replace

from replay.deadlines.rewards import GUARANTEED, UNGUARANTEED, deadline_measures
from replay.deadlines.workloads import PHILLY_WEEKS, SHORT, Mix, with_deadlines
from replay.logs.read import read_trace
from replay.logs.trace import PoolTable, Trace
from replay.run.run import Settings, replay_one
from sia.core.playout import Arrival
from sia.model import Pool

DAY = 86400.0
GPUS, DAYS, SHARE, LONGEST = 48, 4, 0.06, 2 * DAY
LOADS = 0.97, 1.07
MIXES = {"30/60/10": Mix(30, 60, 10), "70/0/30": Mix(70, 0, 30)}
POLICIES = (
    "edf", "yarn-cs:slo=90", "yarn-cs:slo=70", "chronus:profile=0", "chronus:profile=0:fill",
    "chronus:lease=900:be=300:profile=0:fill", "chronus:lease=600:be=60:profile=0:fill",
    "chronus:lease=300:be=60:profile=0:fill",
)  # fmt: skip


class Piece(NamedTuple):
    """A part of the log, and who schedules it."""

    day: int
    seed: int
    load: float
    mix: str
    policy: str
    trace: Trace


def pieces(log: Trace, number: int) -> Iterator[tuple[int, int, float, Trace]]:
    """Yield pieces whose load is about 1.02: first day, seed, load, jobs."""
    found = 0
    for seed in count():
        for day in range(11):
            begin = PHILLY_WEEKS[0] + day * DAY
            able = [
                arrival
                for arrival in log.arrivals
                if begin <= arrival.job.submit < begin + DAYS * DAY
                and arrival.duration > SHORT
                and arrival.job.width <= GPUS
            ]
            random = Random(f"{day} {seed}")
            drawn = sorted(random.sample(range(len(able)), round(SHARE * len(able))))
            jobs = [
                Arrival(
                    replace(able[i].job, pool="p", submit=able[i].job.submit - begin),
                    min(able[i].duration, LONGEST),
                )
                for i in drawn
            ]
            load = sum(a.job.width * a.duration for a in jobs) / (GPUS * DAYS * DAY)
            if LOADS[0] <= load <= LOADS[1]:
                yield day, seed, load, Trace(jobs)
                found += 1
                if found == number:
                    return


def measured(piece: Piece) -> dict[str, Any]:
    """Replay a piece, and return what came of its deadlines."""
    mix = MIXES[piece.mix]
    trace = with_deadlines(piece.trace, mix, (1.2, 2.0), 100.0, piece.seed)
    table = PoolTable([Pool("p", GPUS)])
    found = replay_one(trace, table, piece.policy, Settings([piece.policy]), None)
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
    return {
        "day": piece.day, "seed": piece.seed, "load": round(piece.load, 3), "mix": piece.mix,
        "policy": piece.policy, "jobs": len(trace.arrivals), "slo_jobs": measures["slo_jobs"],
        "wdmr": round(measures["wdmr"], 5), "best_effort_avg_jct_s": round(
            measures["best_effort_avg_jct_s"] or 0.0, 1),
        "guaranteed": labels.count(GUARANTEED), "refused_in_time": kept,
        "seconds": round(found.seconds, 2),
    }  # fmt: skip


def main() -> None:
    """Measure all pieces under all policies."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("log", type=Path)
    parser.add_argument("--pieces", type=int, default=10)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--policy", default=",".join(POLICIES))
    parser.add_argument("--mix", default=",".join(MIXES))
    given = parser.parse_args()
    tasks = [
        Piece(day, seed, load, mix, policy, trace)
        for day, seed, load, trace in pieces(read_trace(given.log), given.pieces)
        for mix in given.mix.split(",")
        for policy in given.policy.split(",")
    ]
    rows: dict[tuple[str, str], list[dict[str, Any]]] = {}
    with Processes(given.processes) as processes:
        for row in processes.imap(measured, tasks):
            print(json.dumps(row), flush=True)
            rows.setdefault((row["mix"], row["policy"]), []).append(row)
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
