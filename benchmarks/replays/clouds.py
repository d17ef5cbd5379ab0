"""What lending gains and costs in made-up clouds, pool by pool, and in an open and a closed loop.

    python -m benchmarks.replays.clouds

`CloudML-like` is `sia trace synth --preset cloud` with eight pools and two weeks. `PAI-like` is the
same generator with what Weng et al. (MLaaS in the Wild, NSDI 2022) report of Alibaba's PAI: tasks
of 23 minutes in the median and 4.5 hours at the 90th percentile, and mostly one GPU a task. The
cloud of 20 pools and four weeks is replayed in an open and in a closed loop. Every job may be
stopped and starts over. Forecasts learn from nothing; the first two days are not measured.
Intervals are of a bootstrap over days of submission. The results are in `replays/clouds.json`;
`python -m benchmarks.pictures` draws them.
"""

from __future__ import annotations

from math import exp
from typing import Any

import numpy as np

from benchmarks.common import keep
from benchmarks.lending.pieces import Sums, interval_of, measures_of, parts_of
from replay.logs.preemptible import PreemptibleShare, mark
from replay.logs.trace import PoolTable, Trace, playable
from replay.run.run import Settings, replay_all
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

LOOPS = {"open loop": False, "closed loop": True}

POLICIES = (
    "sia",
    "sia@peaks+survival",
    "sia@joint+survival",
    "sia-reclaim@peaks+survival",
    "sia-reclaim@random+random",
    "kueue-strict",
    "kueue-best-effort",
    "srtf",
)
RESTART = PreemptibleShare(100, "restart")


def measure(
    trace: Trace, table: PoolTable, *, by_pool: bool = False, closed: bool = False
) -> dict[str, Any]:
    """Return the measures of all policies, in total and, if asked for, by pool."""
    jobs = playable(mark(trace, RESTART, 0), table)
    settings = Settings(POLICIES, warmup=2 * DAY, preemptible=RESTART, closed_loop=closed)
    perfect, *others = replay_all(jobs, table, settings)
    rows: dict[str, Any] = {}
    for result in (perfect, *others):
        label = result.schedule.policy
        all_of = summarize(table, settings, [result])["policies"][label]
        rows[label] = {
            "measured": all_of["measured"],
            "later": all_of["slowed"],
            "latest_h": round(all_of["slowdown_max_min"] / 60, 2),
            "speedup_geomean": round(all_of["speedup_geomean"], 3),
            **measures_of(parts_of(result, perfect, settings, DAY)),
            "most_stops_of_a_job": all_of["most_stops_of_a_job"],
        }
        if by_pool:
            rows[label]["pools"] = {
                name: {
                    "quota": own["quota"],
                    "jobs": own["jobs"],
                    "lent_gpu_h": round(own["gpu_hours_lent"]),
                    "borrowed_gpu_h": round(own["gpu_hours_borrowed"]),
                    "later": own["slowed"],
                    **of_pool(parts_of(result, perfect, settings, DAY, name)),
                }
                for name, own in all_of["pools"].items()
            }
    return rows


def of_pool(sums: Sums) -> dict[str, Any]:
    """Return how much sooner the jobs of a pool end, with its interval, and what stops cost it."""
    some = sums["measured"] > 0  # days without jobs change nothing
    gain, measured = sums["gain"][some], sums["measured"][some]
    low, high = np.exp(interval_of(gain, measured))
    return {
        "speedup_geomean": round(exp(gain.sum() / measured.sum()), 2),
        "speedup_geomean_95": [round(float(low), 2), round(float(high), 2)],
        "stops": int(sums["stops"].sum()),
        "lost_gpu_h": round(float(sums["wasted"].sum()), 1),
    }


def main() -> None:
    found: dict[str, Any] = {}
    for name, cloud in CLOUDS.items():
        found[name] = measure(*make_cloud(cloud, 0), by_pool=True)
        keep("replays/clouds", found, quiet=True)
    for name, closed in LOOPS.items():
        found[name] = measure(*make_cloud(Cloud(), 1), closed=closed)
        keep("replays/clouds", found, quiet=True)


if __name__ == "__main__":
    main()
