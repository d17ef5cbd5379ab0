"""Policies that stop and resize jobs, by real daemons; then a replay of what was submitted to them.

`python -m benchmarks.policies.live_policies [--day SECONDS] [--real SECONDS] [--every SECONDS]
[--only POLICY] [--keep NAME] [--folder FOLDER]`

For each policy a daemon (`sia serve` in a process of its own, with journal and HTTP) schedules a
simulated day on the simulated backend, which takes `--day` seconds, and another one `--real`
seconds of real processes on the local backend (policies after the first: a fifth of that). All
daemons of a part run at the same time. Then `sia journal export` writes what happened, `sia replay`
schedules the same log, and the two schedules are compared, in milliseconds of the machine's time.

Under LAS no job loses all of its work by a stop: it stops jobs again and again, and such jobs need
many times their run time.
"""

from __future__ import annotations

import argparse
import csv
import json
import signal
import statistics
import subprocess
import sys
import time
import urllib.request
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.common import keep

POLICIES = ("srtf", "las", "emmfs", "sia-recall:recall=0.2")
REAL_POLICIES = ("srtf", "las:thresholds=60+300", "emmfs", "sia-recall:recall=0.2")
"""With queues of LAS for jobs of seconds."""

DAY = 86_400.0
JOBS = 300
STEP = 0.2
"""Seconds that a step of a real job takes at its own width."""

POOLS = {"a": 16, "b": 8, "c": 8}
SMALL = {"a": 4, "b": 2, "c": 2}

CONFIG = """
[daemon]
state = "state"
listen = "127.0.0.1:0"
policy = "{policy}"
forecast = "none"
estimates = false
retention = "30d"
grace = "20s"
[backend]
{backend}
[limits]
rate = 1000
burst = 1000
"""

PROGRAM = """
import os, pathlib, signal, sys, time

steps, seconds, wide, ledger = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
restarts = sys.argv[5] == "restart"
width, attempt = int(os.environ["SIA_WIDTH"]), os.environ["SIA_ATTEMPT"]
saved = pathlib.Path(os.environ["SIA_CHECKPOINT_DIR"], "step")
told = False

def stop(*_):
    global told
    told = True

def note(*words):
    with open(ledger, "a") as file:
        file.write(" ".join(map(str, (time.time(), attempt, *words))) + chr(10))

signal.signal(signal.SIGUSR1, stop)
step = int(saved.read_text()) if saved.exists() and not restarts else 0
note("begin", step, width)
end = time.monotonic()
while step < steps and not told:
    end += seconds * wide / width
    while not told and (left := end - time.monotonic()) > 0:
        time.sleep(left)
    if time.monotonic() >= end:
        step += 1
        note("step", step)
if step < steps:
    new = saved.with_suffix(".new")
    new.write_text(str(step))
    new.rename(saved)
    note("saved", step)
    sys.exit(75)
note("end", step)
"""
"""Saves its last whole step when it is told to, and goes on from there."""


class Daemon:
    """`sia serve` with a configuration, and its HTTP interface."""

    def __init__(self, folder: Path, policy: str, backend: str, pools: dict[str, int]) -> None:
        """Start it in a folder, and wait until it serves."""
        folder.mkdir(parents=True)
        self.config = folder / "sia.toml"
        owned = "".join(f'[[pool]]\nname = "{p}"\nquota = {q}\n' for p, q in pools.items())
        self.config.write_text(CONFIG.format(policy=policy, backend=backend) + owned)
        self.folder, self.log = folder, (folder / "log").open("w")
        command = [sys.executable, "-m", "sia", "serve", "--config", str(self.config)]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=self.log, text=True, cwd=folder
        )
        assert self.process.stdout is not None
        first = self.process.stdout.readline()
        assert first.startswith("serving on "), first
        self.url = first.split(";")[0].removeprefix("serving on ").strip()
        self.token = (folder / "state" / "token").read_text().strip()

    def ask(self, path: str, body: Any = None) -> Any:
        """Return its answer: of GET, or of POST with a body."""
        request = urllib.request.Request(
            self.url + path,
            None if body is None else json.dumps(body).encode(),
            {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)

    def end(self) -> None:
        """Stop it, and wait."""
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)
        self.log.close()


def jobs_of(pools: dict[str, int], number: int, until: float, seed: int) -> list[dict[str, Any]]:
    """Submissions until a time: some elastic, some that lose work or must not be stopped.

    They need about 85 % of the GPUs, and arrive in bursts.
    """
    rng = Random(seed)
    gpus = sum(pools.values())
    found = []
    for i in range(number):
        pool = rng.choices([*pools], [*pools.values()])[0]
        width = min(pools[pool], rng.choice((1, 1, 1, 2, 2, 4, 8)))
        found.append(
            {
                "at": rng.betavariate(2, 2) * until if rng.random() < 0.5 else rng.random() * until,
                "id": f"job-{i}", "pool": pool, "gpus": width, "work": rng.lognormvariate(0, 1.2),
                "preemptible": rng.choice((None, None, 2e-3, 2e-3, 2e-3, "restart", "never")),
                "min_width": rng.choice((0, 1)) and 1,
                "max_width": rng.choice((width, min(pools[pool], 2 * width))),
            }
        )  # fmt: skip
    scale = 0.85 * gpus * until / sum(job["work"] * job["gpus"] for job in found)
    for job in found:
        job["work"] = max(until / 2000, min(until / 4, job["work"] * scale))
        if isinstance(job["preemptible"], float):
            job["preemptible"] *= until
        if not job["min_width"]:
            job["max_width"] = 0
    return sorted(found, key=lambda job: job["at"])


def submitted(
    daemon: Daemon, jobs: list[dict[str, Any]], speed: float, ledgers: Path | None
) -> None:
    """Submit each job at its time, and wait until all have ended."""
    began = time.monotonic()
    for job in jobs:
        time.sleep(max(0.0, began + job["at"] / speed - time.monotonic()))
        body = {k: job[k] for k in ("id", "pool", "gpus")} | {
            k: job[k] for k in ("min_width", "max_width", "preemptible") if job[k]
        }
        body |= {"run_time": job["work"], "checkpoint": "USR1"}
        if ledgers is None:
            body["duration"] = job["work"]
        else:
            steps = [str(round(job["work"] / STEP)), str(STEP), str(job["gpus"])]
            script = [sys.executable, "-I", "-S", "-c", PROGRAM]
            body["command"] = [*script, *steps, str(ledgers / job["id"]), str(job["preemptible"])]
        daemon.ask("/v1/jobs", body)
    over = {"finished", "failed", "cancelled", "lost"}
    while any(job["phase"] not in over for job in daemon.ask("/v1/jobs?limit=1000")["jobs"]):
        time.sleep(1.0)


def sia(*words: object) -> None:
    command = [sys.executable, "-m", "sia", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


Runs = dict[str, list[tuple[float, float, int]]]


def runs_of(folder: Path) -> Runs:
    """Start, end and width of each run of each job."""
    found: Runs = defaultdict(list)
    path = folder / "segments.csv"
    with (path if path.exists() else folder / "jobs.csv").open() as file:
        for row in csv.DictReader(file):
            start, end = float(row["start"]), float(row["end"])
            if end > start:
                found[row["job_id"]].append((start, end, int(row["width"])))
    return {job: sorted(runs) for job, runs in found.items()}


def compared(live: Runs, again: Runs, speed: float) -> dict[str, Any]:
    """How far the two schedules are apart, in milliseconds of the machine."""
    same = {
        job for job, runs in live.items()
        if [run[2] for run in runs] == [run[2] for run in again.get(job, [])]
    }  # fmt: skip
    apart = defaultdict(list)
    for job in live:
        mine, other = live[job], again[job]
        apart["first starts"].append(abs(mine[0][0] - other[0][0]))
        apart["ends"].append(abs(mine[-1][1] - other[-1][1]))
        if job in same:
            for one, two in zip(mine[:-1], other[:-1], strict=True):
                apart["stops"].append(abs(one[1] - two[1]))
    return {
        "jobs": len(live),
        "jobs stopped or resized": sum(len(runs) > 1 for runs in live.values()),
        "stops and new widths, live": sum(len(runs) - 1 for runs in live.values()),
        "the same, replayed": sum(len(runs) - 1 for runs in again.values()),
        "jobs with the same runs and widths": len(same),
        "milliseconds apart": {
            name: {
                "median": round(1000 * statistics.median(values) / speed, 1),
                "p90": round(1000 * sorted(values)[len(values) * 9 // 10] / speed, 1),
                "worst": round(1000 * max(values) / speed, 1),
            }
            for name, values in apart.items()
        },
    }


def audited(ledgers: Path, jobs: list[dict[str, Any]]) -> dict[str, Any]:
    """Check what the real jobs wrote: nothing ran twice, and nothing that was saved was lost."""
    stops = again = lost = restarted = 0
    for job in jobs:
        rows = [line.split() for line in (ledgers / job["id"]).read_text().splitlines()]
        step, saved, attempt, last = 0, 0, 0, 0.0
        for when, number, what, *words in rows:
            assert float(when) >= last, f"{job['id']}: two attempts at the same time"
            last = float(when)
            if what == "begin":
                assert int(number) > attempt, f"{job['id']}: attempt {number} began twice"
                attempt = int(number)
                restarts = job["preemptible"] == "restart"
                begin = 0 if restarts else saved
                assert int(words[0]) == begin, f"{job['id']}: began elsewhere than it had saved"
                restarted += step if restarts else 0
                lost += 0 if restarts else step - saved
                step = begin
            else:
                assert int(number) == attempt, f"{job['id']}: an attempt outlived its successor"
            if what == "step":
                assert int(words[0]) == step + 1, f"{job['id']}: a step was left out"
                step += 1
            elif what == "saved":
                saved, stops = int(words[0]), stops + 1
                assert saved == step
        assert rows[-1][2] == "end", f"{job['id']} did not finish"
        assert step == round(job["work"] / STEP)
        again += attempt > 1
        assert again_allowed(job, attempt), f"{job['id']} was stopped"
    return {
        "saves": stops,
        "jobs that went on": again,
        "steps lost": lost,
        "steps lost by jobs that restart": restarted,
    }


def again_allowed(job: dict[str, Any], attempt: int) -> bool:
    return attempt == 1 or job["preemptible"] != "never"


def lived(home: Path, policy: str, backend: str, jobs: list[dict[str, Any]], speed: float,
          pools: dict[str, int], *, real: bool) -> dict[str, Any]:  # fmt: skip
    folder = home / policy.replace(":", "_")
    ledgers = folder / "ledgers" if real else None
    if policy.startswith("las"):
        cost = 2e-3 * max(job["at"] for job in jobs)
        jobs = [j | {"preemptible": cost} if j["preemptible"] == "restart" else j for j in jobs]
    daemon = Daemon(folder, policy, backend, pools)
    try:
        if ledgers is not None:
            ledgers.mkdir()
        submitted(daemon, jobs, speed, ledgers)
    finally:
        daemon.end()
    sia("journal", "export", "--config", daemon.config, "--out", folder / "out")
    trace, owned = folder / "out" / "trace.csv", folder / "out" / "pools.csv"
    label = f"{policy}@none+perfect" if policy.startswith("sia") else policy
    sia("replay", "--trace", trace, "--pools", owned, "--policy", label, "--no-report",
        "--out", folder / "again")  # fmt: skip
    live = runs_of(folder / "out" / "real")
    assert len(live) == len(jobs), "a job has not ended"
    found = compared(live, runs_of(folder / "again" / label), speed)
    return found if ledgers is None else found | audited(ledgers, jobs)


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--day", type=float, default=432.0)
    options.add_argument("--real", type=float, default=600.0)
    options.add_argument("--every", type=float, default=5.0, help="seconds between two real jobs")
    options.add_argument("--only", choices=("srtf", "las", "emmfs", "sia-recall"))
    options.add_argument("--keep", default="policies/live_policies")
    options.add_argument("--folder", type=Path)
    asked = options.parse_args()
    wanted = asked.only or ""
    policies = [policy for policy in POLICIES if policy.startswith(wanted)]
    results: dict[str, Any] = {"day, s": asked.day, "real, s": asked.real}
    with TemporaryDirectory() as temporary, ThreadPoolExecutor(len(policies)) as threads:
        home = asked.folder or Path(temporary)
        if asked.day:
            speed = DAY / asked.day
            backend, log = f'kind = "simulated"\nspeed = {speed}', jobs_of(POOLS, JOBS, DAY, 1)
            calls = {
                policy: threads.submit(
                    lived, home / "day", policy, backend, log, speed, POOLS, real=False
                )
                for policy in policies
            }
            results["a simulated day"] = {name: call.result() for name, call in calls.items()}
            print(json.dumps(results, indent=1), flush=True)
        if asked.real:
            backend = f'kind = "local"\ngpus = {sum(SMALL.values())}\nkill_after = 5'
            calls = {}
            for i, policy in enumerate(p for p in REAL_POLICIES if p.startswith(wanted)):
                seconds = asked.real if i == 0 else asked.real / 5
                log = jobs_of(SMALL, round(seconds / asked.every), seconds, 2)
                calls[policy] = threads.submit(
                    lived, home / "real", policy, backend, log, 1.0, SMALL, real=True
                )
            results["real processes"] = {name: call.result() for name, call in calls.items()}
    keep(asked.keep, results)


if __name__ == "__main__":
    main()
