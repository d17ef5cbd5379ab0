"""Jobs per second of each policy on the whole Philly log, and of a bare loop in the same run."""

from __future__ import annotations

import heapq
import resource
import subprocess
import sys
import time
from typing import Any

from benchmarks.common import CASES, ROOT, TRACES, in_turn, keep, philly, spread
from replay.logs.read import read_trace
from replay.logs.trace import Trace
from replay.run.run import BASELINE, Settings, replay_one

RUNS = 5


def bare_loop(trace: Trace, quotas: dict[str, int]) -> float:
    """Seconds that FCFS takes as a plain heap loop, without events, state or checks."""
    began = time.perf_counter()
    free, clock = dict(quotas), dict.fromkeys(quotas, 0.0)
    running: dict[str, list[tuple[float, int]]] = {name: [] for name in quotas}
    starts = []
    for job, duration in trace.arrivals:
        pool, heap = job.pool, running[job.pool]
        now = max(clock[pool], job.submit)
        while heap and (heap[0][0] <= now or free[pool] < job.width):
            end, width = heapq.heappop(heap)
            now = max(now, end)
            free[pool] += width
        starts.append(now)
        clock[pool] = now
        free[pool] -= job.width
        heapq.heappush(heap, (now + duration, job.width))
    return time.perf_counter() - began


def main() -> None:
    trace, table = philly()
    jobs = len(trace.arrivals)
    quotas = {pool.name: pool.quota for pool in table.pools}
    baseline = replay_one(trace, table, BASELINE, Settings([]), None)

    def timed(policy: str, forecast: str, durations: str) -> float:
        settings = Settings([policy], forecast, durations)
        return replay_one(trace, table, policy, settings, baseline).seconds

    results: dict[str, Any] = {"input": f"Philly, {jobs} jobs, {len(quotas)} pools"}
    for name, case in {**CASES, "sia-vc": ("sia-vc", "perfect", "perfect")}.items():
        runs = 1 if name == "sia-vc" else RUNS
        own, bare = in_turn(runs, lambda c=case: timed(*c), lambda: bare_loop(trace, quotas))  # type: ignore[misc]
        results[name] = {
            "jobs_per_s": spread([jobs / seconds for seconds in own]),
            "times_the_bare_loop": spread([a / b for a, b in zip(own, bare, strict=True)]),
        }
    keep("replays/speed", results)


def start() -> None:
    """Seconds to read the log, and that the whole process of `sia --help` takes."""

    def help_() -> float:
        began = time.perf_counter()
        subprocess.run([sys.executable, "-m", "sia", "--help"], check=True, capture_output=True)
        return time.perf_counter() - began

    def read() -> float:
        began = time.perf_counter()
        read_trace(TRACES / "philly.csv.gz")
        return time.perf_counter() - began

    own, log = in_turn(RUNS, help_, read)
    keep("replays/start", {"sia --help, s": spread(own), "reading 109,423 rows, s": spread(log)})


def memory() -> None:
    """Peak memory of a whole run of the command with five policies and the report."""
    folder = ROOT / "out" / "memory"
    command = [sys.executable, "-m", "sia", "replay", "--policy", "fcfs,ssf,gssf,mmfs,sia"]
    command += [
        "--trace",
        str(TRACES / "philly.csv.gz"),
        "--pools",
        str(TRACES / "philly_pools.csv"),
    ]
    subprocess.run([*command, "--out", str(folder)], check=True, capture_output=True)
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    keep(
        "replays/memory",
        {"peak_mb": round(peak), "command": "sia replay, five policies, with report"},
    )


if __name__ == "__main__":
    start()
    main()
    memory()
