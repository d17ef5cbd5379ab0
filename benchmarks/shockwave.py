"""Shockwave and its rivals on its four logs: makespan, completion times and finish-time fairness.

Takes the numbers of jobs of the logs to run, and the names of the policies, each separated by
commas: `python benchmarks/shockwave.py 120 gavel,shockwave:k=6:lambda=100`.
"""

from __future__ import annotations

import sys
from typing import Any

from common import TRACES, keep

from replay.fairness.measures import RunSegment, fairness
from replay.logs.read import read_trace
from replay.logs.trace import PoolTable
from replay.run.run import Settings, replay_one
from sia.model import Pool

GPUS = {"120": 32, "220": 64, "460": 128, "900": 256}
RIVALS = "gavel,gandiva-fair,ossp,mst,ftf,allox,filter,srtf"
KEPT = (
    "makespan", "avg_jct", "utilisation", "starts", "worst_ftf_jobs", "unfair_ftf_jobs",
    "unfair_ftf_jobs_1.05", "worst_ftf_life", "unfair_ftf_life", "worst_ftf_share",
)  # fmt: skip


def main() -> None:
    """Run each policy on each log, and store the measures."""
    logs, policies, *name = [*sys.argv[1:], *("120,220,460,900", RIVALS)[len(sys.argv) - 1 :]]
    sys.path.pop(0)  # `oracle.py` of this folder would hide the package with the solvers
    results: dict[str, Any] = {}
    for jobs in logs.split(","):
        trace = read_trace(TRACES / f"shockwave_{jobs}.csv.gz")
        table = PoolTable([Pool("all", GPUS[jobs])])
        for label in policies.split(","):
            schedule = replay_one(trace, table, label, Settings([label]), None)
            segments: dict[str, list[RunSegment]] = {}
            for job_id, start, end, width, *_ in sorted(schedule.segments or ()):
                segments.setdefault(job_id, []).append(RunSegment(start, end, width))
            found = fairness(trace, table, segments)
            measures = {key: found[key] for key in KEPT} | {"seconds": schedule.seconds}
            results.setdefault(jobs, {})[label] = measures
            print(jobs, label, {key: round(value, 3) for key, value in measures.items()})
    keep(name[0] if name else "shockwave", results)


if __name__ == "__main__":
    main()
