"""The log of 120 jobs under Shockwave by a daemon that is killed in mid-solve, then in replay.

`python -m benchmarks.policies.shockwave_live [--speed SIMULATED_SECONDS_A_SECOND] [--policy LABEL]`

A daemon (`sia serve`, journal, HTTP) gets the log's jobs, regimes included, at their times on the
simulated backend. It is ended by SIGKILL after submissions until that was in the middle of a solve,
and started again. Then the log itself and the exported journal are replayed, and all three
schedules measured, each stored as soon as it is measured. While the daemon is down its simulated
day goes on. With `--live-only` there are no replays.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.common import TRACES, keep
from benchmarks.policies.jvu_live import restarted
from benchmarks.policies.live_policies import Daemon, sia
from replay.fairness.measures import RunSegment, fairness
from replay.logs.read import read_pools, read_trace
from replay.logs.trace import Trace

LOG, GPUS = TRACES / "shockwave_120.csv.gz", 32
KEPT = ("makespan", "avg_jct", "worst_ftf_jobs", "unfair_ftf_jobs_1.05", "starts", "utilisation")
MOST_KILLS = 10
THE_LOG = "the log, replayed"


def lived(daemon: Daemon, trace: Trace, speed: float) -> dict[str, Any]:
    """Submit each job at its time, kill the daemon until it was solving; wait for all ends."""
    began, kills, hit = time.monotonic(), 0, False
    for number, (job, seconds) in enumerate(trace.arrivals):
        time.sleep(max(0.0, began + job.submit / speed - time.monotonic()))
        body = {"id": job.id, "pool": job.pool, "gpus": job.width, "run_time": seconds}
        body |= {"duration": seconds, "preemptible": job.preemptible, "mode": job.mode}
        body["regimes"] = [list(regime) for regime in job.regimes]
        daemon.ask("/v1/jobs", body)
        if number >= len(trace.arrivals) // 4 and kills < MOST_KILLS and not hit:
            kills += 1
            hit = restarted(daemon)
    over = {"finished", "failed", "cancelled", "lost"}
    while any(job["phase"] not in over for job in daemon.ask("/v1/jobs?limit=1000")["jobs"]):
        time.sleep(0.5)
    return {"kills": kills, "in mid-solve": hit, "seconds": round(time.monotonic() - began, 1)}


def measured(trace: Path, pools: Path, segments: Path) -> dict[str, float]:
    """Return the measures of a schedule."""
    found = fairness(read_trace(trace), read_pools(pools), runs(segments))
    return {key: round(found[key], 3) for key in KEPT}


def runs(path: Path) -> dict[str, list[RunSegment]]:
    """Return the runs of each job in `segments.csv`."""
    found: dict[str, list[RunSegment]] = {}
    for line in path.read_text().splitlines()[1:]:
        job, start, end, width = line.split(",")[:4]
        found.setdefault(job, []).append(RunSegment(float(start), float(end), int(width)))
    return found


def main() -> None:
    """Live the log, and replay it."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--speed", type=float, default=150.0)
    options.add_argument("--policy", default="shockwave:preset=even")
    options.add_argument("--live-only", action="store_true")
    asked = options.parse_args()
    trace, label = read_trace(LOG), asked.policy
    name = f"policies/shockwave_live_{asked.speed:g}"
    with TemporaryDirectory() as temporary:
        folder = Path(temporary) / "day"
        backend = f'kind = "simulated"\nspeed = {asked.speed}'
        daemon = Daemon(folder, label, backend, {"all": GPUS})
        try:
            seen = lived(daemon, trace, asked.speed)
        finally:
            daemon.end()
        sia("journal", "export", "--config", daemon.config, "--out", folder / "out")
        exported, pools = folder / "out" / "trace.csv", folder / "out" / "pools.csv"
        results: dict[str, Any] = {"speed": asked.speed, "policy": label, **seen}
        results["live"] = measured(exported, pools, folder / "out" / "real" / "segments.csv")
        keep(name, results)
        again = () if asked.live_only else (("replayed as exported", exported), (THE_LOG, LOG))
        for case, log in again:
            out = folder / case.replace(" ", "_")
            sia("replay", "--trace", log, "--pools", pools, "--policy", label, "--no-report",
                "--out", out)  # fmt: skip
            results[case] = measured(log, pools, out / label / "segments.csv")
            keep(name, results)


if __name__ == "__main__":
    main()
