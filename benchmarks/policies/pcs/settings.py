"""Why some of PCS's claims do not hold in `figures.py`: the paper's own settings, as far as known.

`python -m benchmarks.policies.pcs.settings [PART …]` runs the parts (all by default) and stores
each at once in `results/policies/pcs_why.json`. Figs. 4 to 6 of the paper are of a testbed of 16
GPUs with shorter jobs, where each change of width costs time (`testbed`); its Philly clusters are
whole logs with their bursts (a part for each cluster); and its workload 3 has more work than the
GPUs can do (`overload`).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from benchmarks.common import RESULTS, TRACES, keep
from benchmarks.policies.pcs.figures import (
    PHILLY,
    RIVALS,
    SEEDS,
    SIMULATIONS,
    cluster,
    measured,
    played,
    points_of,
    searched,
)
from replay.logs.importers.pcs import read as read_pcs
from replay.logs.importers.workload import Distribution, JobMix, read_workload
from replay.search.workload import Sample, WorkloadSource
from sia.core.playout import Arrival

TESTBED, TRIALS, LONGEST = 16, 20.0, 7200.0
"""GPUs of the testbed, most trials of a job, and most GPU-seconds of a job (§5.1)."""
COSTS = (0.0, 5.0, 10.0, 30.0)
"""Seconds that a change of width costs; jobs of the testbed take some 13 minutes on average."""
JOBS = 150
OVERLOAD, OVERLOAD_JOBS, OVERLOAD_SIMULATIONS, LONG_JOBS = 1.2, 500, 120, 3000
LOGS = {"2869ce": None, "0e4a51": None, "ee9e8c": 1000}
"""Clusters whose logs are replayed with their own arrivals, and how many jobs at most."""
PIECE = {"2869ce": 300, "0e4a51": 500, "ee9e8c": 1000}
"""Jobs of a piece of such a log: a log is one sample, its pieces are several."""
QUICK, MANY = ("elastic-fifo", "elastic-srsf"), 999
"""Rivals that are replayed on logs of more jobs than that: the others take too long."""
OBJECTIVES = ("avg:jct", "avg:pred_err")


def cut() -> WorkloadSource:
    """Workload 1 as on the testbed: at most 20 trials of one GPU and two GPU-hours."""
    mix = read_workload(TRACES / "pcs_workloads.csv", "workload-1")
    service, trials = (
        Distribution(
            tuple(max(1.0, value * most / own.values[-1]) for value in own.values), own.cdf
        )
        for own, most in ((mix.service, LONGEST), (mix.trials, TRIALS))
    )
    one = Distribution((1.0, 1.0), (0.0, 1.0))
    return WorkloadSource(JobMix("testbed", service, trials, one), TESTBED, 0.8)


def testbed() -> dict[str, Any]:
    """Figs. 4, 5 and 6a on 16 GPUs, with several costs of a change of width."""
    jobs, found = cut(), {}
    samples = [jobs.sample("test", seed, JOBS, 1) for seed in range(SEEDS)]
    for cost in COSTS:
        front = searched(jobs, OBJECTIVES, arrivals=JOBS, cost=cost)
        labels = points_of(front, OBJECTIVES) | {name: name for name in RIVALS}
        found[f"{cost:g}"] = {
            name: {"policy": label}
            | _short(measured([played(each, label, gpus=TESTBED, cost=cost) for each in samples]))
            for name, label in labels.items()
        }
    return found


def log(name: str) -> dict[str, Any]:
    """Figs. 3 and 7 on a cluster's log itself, under the points that `figures.py` found."""
    arrivals, labels = _arrivals(name)[: LOGS[name]], _points(name)
    labels |= {rival: rival for rival in (RIVALS if len(arrivals) <= MANY else QUICK)}
    found: dict[str, Any] = {"jobs": len(arrivals)}
    for key, label in labels.items():
        found[key] = _short(measured([played(Sample(name, arrivals), label)]))
        print(name, key, found[key], flush=True)
    return found


def longer() -> dict[str, Any]:
    """Figs. 3 and 7 on 3,000 of the 5,452 jobs of ee9e8c; all of them, or rivals, take too long."""
    arrivals, points = _arrivals("ee9e8c")[:LONG_JOBS], _points("ee9e8c")
    sample = Sample("ee9e8c", arrivals)
    found: dict[str, Any] = {"jobs": len(arrivals)}
    for key, label in (points | {"elastic-fifo": "elastic-fifo"}).items():
        found[key] = _short(measured([played(sample, label)]))
    return found


def pieces() -> dict[str, Any]:
    """The same logs cut into pieces with their own arrivals, for intervals over pieces."""
    found: dict[str, Any] = {}
    for name, jobs in PIECE.items():
        arrivals = _arrivals(name)
        starts = range(0, min(len(arrivals), SEEDS * jobs) - jobs + 1, jobs)
        samples = [Sample(name, arrivals[start : start + jobs]) for start in starts]
        rows = found[name] = {"jobs": jobs, "pieces": len(samples)}
        for key, label in (_points(name) | {each: each for each in QUICK}).items():
            rows[key] = _short(measured([played(each, label) for each in samples]))
            print(name, key, rows[key], flush=True)
    return found


def tail() -> dict[str, Any]:
    """Points of ee9e8c if the search minimises the tail of errors, with twice the simulations."""
    objectives = ("avg:jct", "p99:pred_err")
    front = searched(cluster("ee9e8c"), objectives, 2 * SIMULATIONS, arrivals=PHILLY)
    rows = [
        {
            "policy": train.point.exact,
            "jct_h": [round(side.mean("avg:jct") / 3600, 1) for side in (train, test)],
            "p99_pred_err": [round(side.mean("p99:pred_err"), 1) for side in (train, test)],
        }
        for train, test in front.front
    ]
    return {"train, test": sorted(rows, key=lambda row: row["jct_h"])}


def overload() -> dict[str, Any]:
    """Fig. 8 at a load of 1.2 with 500 jobs: queues grow until the last job has come."""
    mix = read_workload(TRACES / "pcs_workloads.csv", "workload-3")
    jobs, objectives = WorkloadSource(mix, 64, OVERLOAD), ("avg:jct", "p99:pred_err")
    front = searched(jobs, objectives, OVERLOAD_SIMULATIONS, arrivals=OVERLOAD_JOBS)
    labels = points_of(front, objectives) | {name: name for name in RIVALS}
    samples = [jobs.sample("test", seed, OVERLOAD_JOBS, 1) for seed in range(2)]
    return {
        name: {"policy": label} | _short(measured([played(each, label) for each in samples]))
        for name, label in labels.items()
    }


def long() -> dict[str, Any]:
    """Fig. 8 at the same load with as many jobs as the paper's authors take."""
    mix = read_workload(TRACES / "pcs_workloads.csv", "workload-3")
    jobs = WorkloadSource(mix, 64, OVERLOAD)
    samples = [jobs.sample("test", seed, LONG_JOBS, 1) for seed in range(SEEDS)]
    stored = json.loads((RESULTS / "policies/pcs_why.json").read_text())["overload"]
    labels = {name: stored[name]["policy"] for name in ("wfq, fast", "wfq, balanced")}
    labels["elastic-srsf"] = "elastic-srsf"
    return {
        name: {"policy": label} | _short(measured([played(each, label) for each in samples]))
        for name, label in labels.items()
    }


def _arrivals(name: str) -> list[Arrival]:
    """Return the jobs of a cluster's log."""
    trace, _ = read_pcs(TRACES / "philly_scaling.csv.gz", TRACES / "dnn_speedups.csv")
    return [each for each in trace.arrivals if each.job.pool == name]


def _points(name: str) -> dict[str, str]:
    """Return the points that `figures.py` found for a cluster."""
    own = json.loads((RESULTS / "policies/pcs.json").read_text())["clusters"][name]["policies"]
    return {key: each["policy"] for key, each in own.items() if key.startswith("wfq")}


def _short(found: dict[str, Any]) -> dict[str, Any]:
    """Leave out the points of curves."""
    return {name: value for name, value in found.items() if not name.startswith("cdf")}


PARTS: dict[str, Callable[[], dict[str, Any]]] = {
    "testbed": testbed, "tail": tail, "overload": overload, "long": long, "longer": longer,
    "pieces": pieces,
    **{name: partial(log, name) for name in LOGS},
}  # fmt: skip


def main(parts: Sequence[str]) -> None:
    """Run the parts."""
    path = RESULTS / "policies/pcs_why.json"
    stored = json.loads(path.read_text()) if path.exists() else {}
    for part in parts:
        stored[part] = PARTS[part]()
        keep("policies/pcs_why", stored)


if __name__ == "__main__":
    main(sys.argv[1:] or list(PARTS))
