"""A simulated day under jvu, with kills of the daemon in mid-solve; then the same log in replay.

`python -m benchmarks.policies.jvu_live [--day SECONDS] [--jobs NUMBER] [--policy LABEL]`

A daemon (`sia serve`, journal, HTTP) schedules a simulated day, which takes `--day` seconds. Half
of the jobs have a deadline. The daemon is ended by SIGKILL when it has written a request to the
solver into its journal, until that was twice in the middle of the solve, and started again. Then
the journal is exported and replayed.
While the daemon is down its simulated day goes on, so a restart costs minutes of it.
"""

from __future__ import annotations

import argparse
import csv
import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from random import Random
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.common import keep
from benchmarks.policies.live_policies import DAY, Daemon, jobs_of, sia
from daemon.journal.journal import Journal
from daemon.model.inputs import Answered

GPUS = 32
CYCLE = 300.0
"""Seconds of the simulated day."""

KILLS = 2


def is_solving(folder: Path) -> bool:
    """Return whether the journal ends with an open request to the solver."""
    journal = Journal(folder / "state" / "sia.db")
    asked = answered = 0
    try:
        for step in journal.records(0):
            found = [d for d in json.loads(step.decisions) if d["type"] == "SolveProgram"]
            asked = max([asked, *(each["request"] for each in found)])
            done = [each.request for each in step.inputs if isinstance(each, Answered)]
            answered = max([answered, *done])
    finally:
        journal.close()
    return asked > answered


def asks(log: Path, before: bytes, seconds: float) -> bool:
    """Wait until the journal has a further request to the solver; return whether it has.

    The daemon holds its database for itself, so the frames of the write-ahead log are compared with
    those `before`; SQLite overwrites it from its beginning now and then.
    """
    until, size = time.monotonic() + seconds, 4096 + 24
    while time.monotonic() < until:
        now = log.read_bytes()
        new = (now[at : at + size] for at in range(32, len(now), size)
               if now[at : at + size] != before[at : at + size])  # fmt: skip
        if any(b"SolveProgram" in frame for frame in new):
            return True
        time.sleep(0.01)
    return False


def restarted(daemon: Daemon) -> bool:
    """Kill the daemon and start it again; return whether it was in the middle of a solve."""
    daemon.process.send_signal(signal.SIGKILL)
    daemon.process.wait(60)
    solving = is_solving(daemon.folder)
    command = [sys.executable, "-m", "sia", "serve", "--config", str(daemon.config)]
    daemon.process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=daemon.log, text=True, cwd=daemon.folder
    )
    assert daemon.process.stdout is not None
    first = daemon.process.stdout.readline()
    daemon.url = first.split(";")[0].removeprefix("serving on ").strip()
    return solving


def lived(daemon: Daemon, jobs: list[dict[str, Any]], speed: float, kills: int) -> dict[str, Any]:
    """Submit each job at its time, kill the daemon now and then; wait until all have ended."""
    began, told, tries, hits = time.monotonic(), [], 0, 0
    offset = time.time()
    for number, job in enumerate(jobs):
        time.sleep(max(0.0, began + job["at"] / speed - time.monotonic()))
        body = {k: job[k] for k in ("id", "pool", "gpus")}
        body |= {"run_time": job["work"], "duration": job["work"]}
        if "slack" in job:
            now = daemon.ask("/v1/status")["time"]
            body["deadline"] = now + job["work"] * (1.0 + job["slack"])
        log = daemon.folder / "state" / "sia.db-wal"
        before, frames = time.monotonic(), log.read_bytes()
        found = daemon.ask("/v1/jobs", body)
        told.append(1000.0 * (time.monotonic() - before))
        late = hits < kills and tries < 10 and number >= len(jobs) // 4
        if late and asks(log, frames, 2.0 * CYCLE / speed):
            tries += 1
            hits += restarted(daemon)
        job["in_time"] = (found.get("planned") or {}).get("in_time")
    over = {"finished", "failed", "cancelled", "lost"}
    while any(job["phase"] not in over for job in daemon.ask("/v1/jobs?limit=1000")["jobs"]):
        time.sleep(0.5)
    foretold = [job["in_time"] for job in jobs if "slack" in job]
    return {
        "seconds": round(time.time() - offset, 1),
        "answers to submissions, ms": [round(sorted(told)[len(told) // 2], 1), round(max(told), 1)],
        "kills of the daemon": tries, "of which in mid-solve": hits,
        "deadlines foretold to be met": sum(each is True for each in foretold),
        "foretold to be missed": sum(each is False for each in foretold),
    }  # fmt: skip


def measures(trace: Path, ends: Path) -> dict[str, float]:
    """Return misses, best-effort goodput and latency of a schedule."""
    with ends.open() as file:
        end = {row["job_id"]: float(row["end"]) for row in csv.DictReader(file)}
    missed, latency, goodput = [], [], 0.0
    with trace.open() as file:
        rows = list(csv.DictReader(file))
    last = max(float(row["submit"]) for row in rows)
    for row in rows:
        if row.get("deadline"):
            missed.append(end[row["job_id"]] > float(row["deadline"]))
            continue
        latency.append(end[row["job_id"]] - float(row["submit"]))
        if end[row["job_id"]] <= last:
            goodput += float(row["duration"]) * int(row["width"]) / 3600.0
    return {
        "slo_jobs": len(missed), "slo_missed_pct": round(100.0 * fmean(missed), 2),
        "best_effort_goodput_gpu_h": round(goodput, 1),
        "best_effort_avg_jct_s": round(fmean(latency), 1),
    }  # fmt: skip


def main() -> None:
    """Live a day, and replay it."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--day", type=float, default=200.0)
    options.add_argument("--jobs", type=int, default=150)
    options.add_argument("--policy", default=f"jvu:puo:cycle={CYCLE:g}:ahead=36000:starts=12")
    asked = options.parse_args()
    speed, rng = DAY / asked.day, Random(1)
    jobs = jobs_of({"a": GPUS}, asked.jobs, DAY, 1)
    for job in jobs:
        if rng.random() < 0.5:
            job["slack"] = rng.choice((0.5, 1.0, 2.0))
    with TemporaryDirectory() as temporary:
        folder = Path(temporary) / "day"
        backend = f'kind = "simulated"\nspeed = {speed}'
        daemon = Daemon(folder, asked.policy, backend, {"a": GPUS})
        try:
            seen = lived(daemon, jobs, speed, KILLS)
        finally:
            daemon.end()
        sia("journal", "export", "--config", daemon.config, "--out", folder / "out")
        trace, pools = folder / "out" / "trace.csv", folder / "out" / "pools.csv"
        sia("replay", "--trace", trace, "--pools", pools, "--policy", asked.policy, "--no-report",
            "--out", folder / "again")  # fmt: skip
        keep("policies/jvu_live", {
            "day, s": asked.day, "policy": asked.policy, "jobs": asked.jobs, **seen,
            "live": measures(trace, folder / "out" / "real" / "jobs.csv"),
            "replayed": measures(trace, folder / "again" / asked.policy / "jobs.csv"),
        })  # fmt: skip


if __name__ == "__main__":
    main()
