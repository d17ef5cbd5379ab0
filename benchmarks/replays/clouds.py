"""What lending gains and costs each pool of two made-up clouds, as a lender and by its guests.

    python -m benchmarks.replays.clouds

`CloudML-like` is `sia trace synth --preset cloud` with eight pools and two weeks. `PAI-like` is the
same generator with what Weng et al. (MLaaS in the Wild, NSDI 2022) report of Alibaba's PAI: tasks
of 23 minutes in the median and 4.5 hours at the 90th percentile, and mostly one GPU a task. Every
job may be stopped and starts over. Forecasts learn from nothing; the first two days are not
measured. The results are in `replays/clouds.json`.
"""

from __future__ import annotations

from collections import Counter
from math import log
from typing import Any

from benchmarks.common import keep
from replay.logs.preemptible import PreemptibleShare, mark
from replay.logs.trace import PoolTable, Trace, playable
from replay.run.run import Settings, replay_all
from replay.run.schedule import Schedule
from replay.run.summary import summarize
from replay.synthetic.cloud import make_cloud
from replay.synthetic.cloud_parameters import Cloud
from sia.wording import DAY, MINUTE

PAI_SPREAD = 1.92
"""Sigma of the logarithm of run times of which p90 is 4.5 hours and the median 23 minutes."""

CLOUDS = {
    "CloudML-like": Cloud(pools=8, days=14.0),
    "PAI-like": Cloud(
        pools=8, days=14.0, median=(15 * MINUTE, 35 * MINUTE),
        spread=(PAI_SPREAD - 0.2, PAI_SPREAD + 0.2), widest=1, mixed=0.1,
    ),
}  # fmt: skip

POLICIES = (
    "sia",
    "sia@peaks+survival",
    "sia-reclaim@peaks+survival",
    "sia-reclaim@random+random",
    "kueue-strict",
    "kueue-best-effort",
    "srtf",
)
RESTART = PreemptibleShare(100, "restart")


def stops_by_pool(trace: Trace, schedule: Schedule) -> tuple[Counter[str], Counter[str]]:
    """Return how often jobs of each pool were stopped, and the GPU-hours that this cost them."""
    pools = {arrival.job.id: arrival.job.pool for arrival in trace.arrivals}
    stops: Counter[str] = Counter()
    lost: Counter[str] = Counter()
    attempts = Counter(segment.job_id for segment in schedule.segments or ())
    for job_id, count in attempts.items():
        stops[pools[job_id]] += count - 1
    for segment in schedule.segments or ():
        lost[pools[segment.job_id]] += segment.lost / 3600
    return stops, lost


def measure(trace: Trace, table: PoolTable) -> dict[str, Any]:
    """Return the measures of all policies, in total and by pool."""
    jobs = playable(mark(trace, RESTART, 0), table)
    settings = Settings(POLICIES, warmup=2 * DAY, preemptible=RESTART)
    results = replay_all(jobs, table, settings)
    found = summarize(table, settings, results)["policies"]
    unit = log(found["sia"]["speedup_geomean"])
    rows: dict[str, Any] = {}
    for result in results:
        label = result.schedule.policy
        all_of, pools = found[label], found[label]["pools"]
        stops, lost = stops_by_pool(jobs, result.schedule)
        rows[label] = {
            "measured": all_of["measured"],
            "later": all_of["slowed"],
            "latest_h": round(all_of["slowdown_max_min"] / 60, 2),
            "captured": round(log(all_of["speedup_geomean"]) / unit, 3),
            "stops_for_100_jobs": round(100 * sum(stops.values()) / len(jobs.arrivals), 2),
            "gpu_time_wasted_pct": round(all_of["gpu_time_wasted_pct"], 3),
            "pools": {
                name: {
                    "quota": own["quota"],
                    "jobs": own["jobs"],
                    "lent_gpu_h": round(own["gpu_hours_lent"]),
                    "borrowed_gpu_h": round(own["gpu_hours_borrowed"]),
                    "speedup_geomean": round(own["speedup_geomean"], 2),
                    "later": own["slowed"],
                    "stops": stops[name],
                    "lost_gpu_h": round(lost[name], 1),
                }
                for name, own in pools.items()
            },
        }
    return rows


def main() -> None:
    found: dict[str, Any] = {}
    for name, cloud in CLOUDS.items():
        found[name] = measure(*make_cloud(cloud, 0))
        keep("replays/clouds", found)


if __name__ == "__main__":
    main()
