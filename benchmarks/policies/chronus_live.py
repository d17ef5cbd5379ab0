"""Fig. 10 of Chronus: the same jobs by a daemon, with trials, and in a replay.

G[n]/T[m] is a cluster of n GPUs to which m jobs an hour are submitted.

`python -m benchmarks.policies.chronus_live [--speed 150] [--hours 6]`

Jobs are drawn from Venus's log: at most 8 GPUs, 5 minutes to 3 hours, deadlines 30/60/10. A daemon
(`sia serve`, journal, HTTP, simulated backend) gets them at their times. Nobody states how long a
job runs: it states its iterations and reports them in its trial. Going on costs 30 s. Then the
journal is exported and replayed with true estimates. All daemons run at the same time.
"""

from __future__ import annotations

import argparse
import csv
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

from msgspec.structs import replace

from benchmarks.common import TRACES, keep
from benchmarks.policies.live_policies import Daemon, sia
from replay.deadlines.rewards import deadline_measures
from replay.deadlines.workloads import Mix, with_deadlines
from replay.logs.read import read_trace
from replay.logs.trace import Trace
from sia.core.playout import Arrival

SETTINGS = ((16, 6), (32, 6), (32, 12))
"""GPUs, and jobs submitted in an hour."""
POLICY, HOUR, WIDEST, COST = "chronus:floor=8", 3600.0, 8, 30.0
ITERATION = 0.5
"""Seconds of an iteration."""


def drawn(per_hour: int, hours: float, seed: int) -> Trace:
    """Draw the jobs: their submissions count from the first second."""
    log, rng = read_trace(TRACES / "helios_venus.csv.gz"), Random(seed)
    fit = [a for a in log.arrivals if a.job.width <= WIDEST and 300 <= a.duration <= 3 * HOUR]
    times = sorted(rng.uniform(0, hours * HOUR) for _ in range(round(per_hour * hours)))
    jobs = []
    for number, at in enumerate(times):
        job, seconds = rng.choice(fit)
        job = replace(job, id=f"job-{number}", submit=at, pool="all", user="")
        jobs.append(Arrival(job, seconds))
    return with_deadlines(Trace(jobs), Mix(30, 60, 10), (1.2, 2.0), 100.0, seed)


def lived(daemon: Daemon, trace: Trace, speed: float) -> None:
    """Submit each job at its time, and wait until all have ended."""
    began = time.monotonic()
    for job, seconds in trace.arrivals:
        time.sleep(max(0.0, began + job.submit / speed - time.monotonic()))
        body = {"id": job.id, "pool": "all", "gpus": job.width, "duration": seconds}
        body |= {"iterations": max(1, round(seconds / ITERATION)), "preemptible": COST}
        if job.deadline is not None:
            now = daemon.ask("/v1/status")["time"]
            body |= {"deadline": now + job.deadline - job.submit, "soft": [*job.soft]}
        daemon.ask("/v1/jobs", body)
    over = {"finished", "failed", "cancelled", "lost"}
    while any(job["phase"] not in over for job in daemon.ask("/v1/jobs?limit=1000")["jobs"]):
        time.sleep(0.5)


def measures(trace: Trace, path: Path) -> dict[str, Any]:
    """Return wDMR and JCT of a schedule."""
    with path.open() as file:
        ends = {row["job_id"]: float(row["end"]) for row in csv.DictReader(file)}
    found = deadline_measures(trace, [ends[a.job.id] for a in trace.arrivals])
    jct = sum(ends[a.job.id] - a.job.submit for a in trace.arrivals) / len(trace.arrivals)
    return {"wdmr": round(found["wdmr"], 4), "avg_jct_s": round(jct)}


def compared(home: Path, gpus: int, per_hour: int, hours: float, speed: float) -> dict[str, Any]:
    """Live one setting, and replay it."""
    folder = home / f"G{gpus}T{per_hour}"
    backend = f'kind = "simulated"\nspeed = {speed}'
    daemon = Daemon(folder, POLICY, backend, {"all": gpus})
    try:
        lived(daemon, drawn(per_hour, hours, gpus + per_hour), speed)
    finally:
        daemon.end()
    out = folder / "out"
    sia("journal", "export", "--config", daemon.config, "--out", out)
    sia("replay", "--trace", out / "trace.csv", "--pools", out / "pools.csv", "--policy", POLICY,
        "--no-report", "--out", folder / "again")  # fmt: skip
    trace = read_trace(out / "trace.csv")
    return {
        "jobs": len(trace.arrivals),
        "live": measures(trace, out / "real" / "jobs.csv"),
        "replayed": measures(trace, folder / "again" / POLICY / "jobs.csv"),
    }


def main() -> None:
    """Live all settings at the same time, and store what came of them."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--speed", type=float, default=150.0)
    options.add_argument("--hours", type=float, default=6.0)
    asked = options.parse_args()
    with TemporaryDirectory() as temporary, ThreadPoolExecutor(len(SETTINGS)) as threads:
        home = Path(temporary)
        calls = {
            f"G[{gpus}]/T[{per_hour}]": threads.submit(
                compared, home, gpus, per_hour, asked.hours, asked.speed
            )
            for gpus, per_hour in SETTINGS
        }
        found = {name: call.result() for name, call in calls.items()}
    keep("policies/chronus_live", {"speed": asked.speed, "hours": asked.hours, **found})


if __name__ == "__main__":
    main()
