"""Shockwave's tables and figures again: makespan, completion times and finish-time fairness.

`python -m benchmarks.policies.shockwave [PART …] [--logs 120,220] [--policies LABEL,…] [--seeds 5]`

Parts: `logs` replays the four logs of the artifact; `predictions` (Fig. 5) compares the predicted
run times of the jobs of the log of 120. The others draw 60 jobs of the log of 900 for each seed:
`mixes` (Fig. 10), `errors` (Fig. 13), `contention` (Fig. 16), `philly` (Fig. 17), and `sweep`,
which varies k, lambda and the window on half as many. Each row is stored as soon as it is measured,
in `results/policies/shockwave.json` by part; rows that are there already are measured again.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from math import fsum
from random import Random
from statistics import fmean
from typing import Any

from benchmarks.common import RESULTS, TRACES, interval, keep
from replay.fairness.measures import RunSegment, fairness
from replay.logs.read import read_trace
from replay.logs.trace import PoolTable, Trace
from replay.run.run import Settings, replay_one
from sia.core.playout import Arrival
from sia.model import Job, Pool, Regime
from sia.policies.shockwave.foresight import RULES, foreseen

GPUS = {"120": 32, "220": 64, "460": 128, "900": 256}
RIVALS = "gavel,gandiva-fair,ossp,mst,ftf,allox,filter,filter:f=1,srtf"
MIDDLE = "shockwave:k=25:lambda=30"
"""What most parts measure: the best setting that was known with windows of 20 rounds."""

EVEN = "shockwave:k=30:lambda=60:rounds=40"
"""What `preset=even` stands for."""
KEPT = (
    "makespan", "avg_jct", "utilisation", "starts", "worst_ftf_jobs", "unfair_ftf_jobs",
    "unfair_ftf_jobs_1.05", "worst_ftf_life", "unfair_ftf_life", "worst_ftf_share",
)  # fmt: skip

SWEEP = [
    f"shockwave:k={k}:lambda={weight}:rounds={rounds}"
    for k, weight, rounds in (
        (5, 0, 20),
        *product((1, 5, 20, 40), (0.001, 1, 10, 30), (20,)),
        *product((5, 20), (10,), (5, 10, 40)),
    )
]
"""With 0.001, the paper's lambda of its section 6.1."""

JOBS, SMALL = 60, 16
"""Jobs and GPUs of a drawn workload: a replay of it takes seconds."""

EVERY = 42.0
"""Mean seconds between submissions, so that the jobs overlap as in the logs."""

MIXES = {"all static": 0.0, "half dynamic": 0.5, "all dynamic": 1.0}
"""Shares of jobs that change their speed."""

Drawn = Callable[[int], tuple[Trace, PoolTable]]
"""Draws a workload with a seed."""

Row = tuple[str, str, dict[str, Any]]
"""The case, the policy, and what was measured."""


def measured(trace: Trace, table: PoolTable, label: str) -> dict[str, float]:
    """Replay a log under a policy, and return the measures."""
    schedule = replay_one(trace, table, label, Settings([label]), None)
    segments: dict[str, list[RunSegment]] = {}
    for job_id, start, end, width, *_ in sorted(schedule.segments or ()):
        segments.setdefault(job_id, []).append(RunSegment(start, end, width))
    found = fairness(trace, table, segments)
    return {key: found[key] for key in KEPT} | {"seconds": schedule.seconds}


def of_log(jobs: str, labels: list[str]) -> Iterator[Row]:
    """Replay one of the artifact's logs under each policy."""
    trace = read_trace(TRACES / f"shockwave_{jobs}.csv.gz")
    table = PoolTable([Pool("all", GPUS[jobs])])
    for label in labels:
        yield jobs, label, measured(trace, table, label)


def of_drawn(case: str, labels: list[str], seeds: int, draw: Drawn) -> Iterator[Row]:
    """Replay drawn workloads under each policy: means and half widths of 95 % intervals."""
    logs = [draw(seed) for seed in range(seeds)]
    for label in labels:
        runs = [measured(*log, label) for log in logs]
        yield case, label, {key: interval([run[key] for run in runs]) for key in runs[0]}


def drawn(
    seed: int, dynamic: float = 0.5, gpus: int = SMALL, jobs: int = JOBS
) -> tuple[Trace, PoolTable]:
    """Draw jobs of the log of 900 that change, and keep a share of them as they are.

    The others become static: one regime of as many epochs that takes as long. Fewer jobs come at
    longer intervals, so that all come in the same time.
    """
    random = Random(seed)
    log = read_trace(TRACES / "shockwave_900.csv.gz").arrivals
    changing = [a for a in log if a.job.mode != "static"]
    arrivals, now = [], 0.0
    for number, (job, takes) in enumerate(random.sample(changing, jobs)):
        mode, regimes = job.mode, job.regimes
        if random.random() >= dynamic:
            epochs = fsum(regime.epochs for regime in regimes)
            mode, regimes = "static", (Regime(regimes[0].config, epochs, takes / epochs),)
        moved = Job(
            str(number), "all", now, job.width, mode=mode, model=job.model, regimes=regimes,
            preemptible=job.preemptible,
        )  # fmt: skip
        arrivals.append(Arrival(moved, takes))
        now += random.expovariate(jobs / JOBS / EVERY)
    return Trace(arrivals), PoolTable([Pool("all", gpus)])


def as_philly(seed: int) -> tuple[Trace, PoolTable]:
    """Draw jobs, and give them the gaps between submissions of as many jobs in a row of Philly.

    The gaps are scaled to the same mean.
    """
    trace, table = drawn(seed)
    times = [a.job.submit for a in read_trace(TRACES / "philly.csv.gz").arrivals]
    times = times[(seed + 1) * 10_000 :][: len(trace.arrivals)]
    scale = trace.arrivals[-1].job.submit / (times[-1] - times[0])
    moved = [
        Arrival(a.job.submitted_at((time - times[0]) * scale), a.duration)
        for a, time in zip(trace.arrivals, times, strict=True)
    ]
    return Trace(moved), table


def predictions() -> Iterator[Row]:
    """Compare predicted with true run times, at tenths of the run, on the log of 120 jobs."""
    arrivals = read_trace(TRACES / "shockwave_120.csv.gz").arrivals
    changing = [a for a in arrivals if a.job.mode not in ("", "static")]
    for rule in RULES:
        row = {}
        for tenth in range(10):
            errors = [
                abs(foreseen(rule, job.mode, job.regimes, tenth / 10 * takes).total / takes - 1)
                for job, takes in changing
            ]
            row[f"error_pct_at_{10 * tenth}_pct"] = round(100 * fmean(errors), 2)
        yield f"{len(changing)} jobs that change", rule, row


FAIR = [MIDDLE, "gavel", "ftf", "ossp", "filter:f=0.2", "filter:f=1"]
FORESIGHT = [f"{MIDDLE}:predict={rule}" for rule in ("last", "perfect")]
NOISY = [f"{MIDDLE}:noise={noise}" for noise in (0, 30, 60, 100)]

DRAWN: dict[str, list[tuple[str, list[str], Drawn]]] = {
    "mixes": [
        (case, [*FAIR, *FORESIGHT, EVEN], partial(drawn, dynamic=share))
        for case, share in MIXES.items()
    ],
    "errors": [("all dynamic", NOISY, partial(drawn, dynamic=1.0))],
    "contention": [
        (f"{JOBS / gpus:.1f} jobs for each GPU", FAIR, partial(drawn, gpus=gpus))
        for gpus in (14, 20, 28, 40)
    ],
    "philly": [("Philly's gaps", FAIR, as_philly)],
    "sweep": [
        ("half dynamic, half as many", SWEEP, partial(drawn, gpus=SMALL // 2, jobs=JOBS // 2))
    ],
}
"""The parts that draw workloads: their cases with the policies and how to draw."""


def rows(part: str, asked: argparse.Namespace) -> Iterator[Row]:
    """Measure a part."""
    if part == "logs":
        for jobs in asked.logs.split(","):
            yield from of_log(jobs, asked.policies.split(","))
    elif part == "predictions":
        yield from predictions()
    for case, labels, draw in DRAWN.get(part, ()):
        yield from of_drawn(case, labels, asked.seeds, draw)


PARTS = ("logs", "predictions", *DRAWN)


def main() -> None:
    """Measure the parts that are asked for, or all of them; store each row at once."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", nargs="*", help=f"of {', '.join(PARTS)}")
    parser.add_argument("--logs", default="120,220,460,900")
    parser.add_argument("--policies", default=RIVALS)
    parser.add_argument("--seeds", type=int, default=5)
    asked = parser.parse_args()
    for part in asked.part or PARTS:
        if part not in PARTS:
            parser.error(f"{part}: no such part")
        for case, label, measures in rows(part, asked):
            path = RESULTS / "policies/shockwave.json"
            stored = json.loads(path.read_text()) if path.exists() else {}
            parts = stored.get("parts", {})
            parts.setdefault(part, {}).setdefault(case, {})[label] = measures
            keep("policies/shockwave", {"parts": parts}, quiet=True)
            print(part, case, label, measures, flush=True)


if __name__ == "__main__":
    main()
