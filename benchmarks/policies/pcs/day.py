"""Fig. 6b of PCS: a day of workload 1 by daemons, one for each point of a front, beside its replay.

`python -m benchmarks.policies.pcs.day [--speed SIMULATED_SECONDS_A_SECOND] [--hours HOURS] [--seed
N]`

The points are those that part `workload-1` of `figures.py` has stored, and FIFO. Jobs are a 24th
as long as in the workload, so that most end within the day, and so are the limits. Each daemon
(`sia serve` in a process of its own, with journal and HTTP) gets the same jobs at their times on
the simulated backend, with their run times; all run at once. Then the same log is replayed. The end
that a job was told is that of the replay, so that the error of a live job counts what the daemon
did otherwise.
"""

from __future__ import annotations

import argparse
import csv
import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.common import RESULTS, keep
from benchmarks.policies.live_policies import Daemon, sia
from benchmarks.policies.pcs.figures import GPUS, SHORTER, workload
from replay.logs.trace import PoolTable, Trace
from replay.run.metrics import quantile
from replay.run.output import write_pools, write_trace
from replay.run.predictions import error_pct
from replay.search.space import queues_label
from sia.core.playout import Arrival
from sia.model import Pool
from sia.policies import make

OVER = {"finished", "failed", "cancelled", "lost"}


def labels() -> dict[str, str]:
    """Return the label of each point with limits for the shorter jobs."""
    stored = json.loads((RESULTS / "policies/pcs.json").read_text())["workload-1"]["policies"]
    found = {"FIFO": "wfq:weights=1:zeta=0"}
    for name, each in stored.items():
        if name.startswith("wfq"):
            own = make(each["policy"]).params
            limits = [limit / SHORTER for limit in own.sizes]
            found[name.removeprefix("wfq, ")] = queues_label(
                limits, own.weights, own.zeta, own.delta
            )
    return found


def day(hours: float, seed: int) -> list[Arrival]:
    """Return the jobs of a day, or of so many hours."""
    drawn = workload("workload-1").sample("test", seed, 1000, 1).arrivals
    shorter = (
        Arrival(job.submitted_at(round(job.submit / SHORTER, 3)), round(duration / SHORTER, 3))
        for job, duration in drawn
    )
    return [each for each in shorter if each.job.submit < hours * 3600]


def lived(daemon: Daemon, arrivals: list[Arrival], speed: float) -> float:
    """Submit each job at its time; wait for all ends; return the seconds that it took."""
    began = time.monotonic()
    for job, seconds in arrivals:
        time.sleep(max(0.0, began + job.submit / speed - time.monotonic()))
        least, most = job.min_width or 1, job.max_width or job.width
        body: dict[str, Any] = {"id": job.id, "pool": job.pool, "gpus": job.width}
        body |= {"run_time": seconds, "duration": seconds, "demand": job.demand}
        daemon.ask("/v1/jobs", body | {"min_width": least, "max_width": most})
    while any(job["phase"] not in OVER for job in daemon.ask("/v1/jobs?limit=1000")["jobs"]):
        time.sleep(1)
    return time.monotonic() - began


def replayed(folder: Path, log: Path, pools: Path, label: str) -> dict[str, tuple[float, float]]:
    """Return when each job was told to end, and did, as seconds after its submission."""
    sia("replay", "--trace", log, "--pools", pools, "--policy", label, "--no-report",
        "--out", folder)  # fmt: skip
    with (folder / label / "predictions.csv").open(newline="") as file:
        return {
            row["job_id"]: (
                float(row["pred_end"]) - float(row["submit"]),
                float(row["end"]) - float(row["submit"]),
            )
            for row in csv.DictReader(file)
        }


def live_jcts(folder: Path, config: Path) -> dict[str, float]:
    """Return the completion time of each job in the journal."""
    sia("journal", "export", "--config", config, "--out", folder)
    with (folder / "real" / "jobs.csv").open(newline="") as file:
        return {
            row["job_id"]: float(row["end"]) - float(row["submit"]) for row in csv.DictReader(file)
        }


def compared(told: dict[str, tuple[float, float]], live: dict[str, float]) -> dict[str, Any]:
    """Compare what a replay says with what a daemon did."""
    found: dict[str, Any] = {"jobs": len(live)}
    off = sorted(abs(live[job] / replayed_jct - 1) for job, (_, replayed_jct) in told.items())
    found["jct apart, median and p90 (%)"] = [
        round(100 * (quantile(off, q) or 0.0), 2) for q in (0.5, 0.9)
    ]
    for name, jcts in (("replay", {j: jct for j, (_, jct) in told.items()}), ("live", live)):
        errors = sorted(error_pct(0.0, told[job][0], jct) or 0.0 for job, jct in jcts.items())
        found[name] = {
            "mean_jct_s": round(fmean(jcts.values()), 1),
            "avg_pred_err_pct": round(fmean(errors), 2),
            "p99_pred_err_pct": round(quantile(errors, 0.99) or 0.0, 2),
        }
    return found


def main() -> None:
    """Live the day, and replay it."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--speed", type=float, default=150.0)
    options.add_argument("--hours", type=float, default=24.0)
    options.add_argument("--seed", type=int, default=0)
    asked = options.parse_args()
    arrivals, chosen = day(asked.hours, asked.seed), labels()
    pool = arrivals[0].job.pool
    with TemporaryDirectory() as temporary:
        root = Path(temporary)
        log, pools = root / "trace.csv", root / "pools.csv"
        write_trace(log, Trace(arrivals))
        write_pools(pools, PoolTable([Pool(pool, GPUS)]))
        backend = f'kind = "simulated"\nspeed = {asked.speed}'
        daemons = {
            name: Daemon(root / name, label, backend, {pool: GPUS})
            for name, label in chosen.items()
        }
        try:
            with ThreadPoolExecutor(len(daemons)) as together:
                took = [*together.map(
                    lambda each: lived(each, arrivals, asked.speed), daemons.values()
                )]  # fmt: skip
        finally:
            for each in daemons.values():
                each.end()
        results: dict[str, Any] = {
            "speed": asked.speed, "hours": asked.hours, "seconds": round(max(took), 1),
        }  # fmt: skip
        for name, label in chosen.items():
            told = replayed(root / f"replay {name}", log, pools, label)
            live = live_jcts(root / f"export {name}", daemons[name].config)
            results[name] = {"policy": label, **compared(told, live)}
        keep("policies/pcs_day", results)


if __name__ == "__main__":
    main()
