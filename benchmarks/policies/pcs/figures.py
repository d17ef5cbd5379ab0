"""PCS's figures 3 to 8, 9c and 10 again, in sizes that a small machine can do.

`python -m benchmarks.policies.pcs.figures [PART …]` runs the parts (all by default: `clusters`,
`workload-1`, `workload-3`, `heuristics`, `errors`, `load`, `noon`), stores each at once in
`results/policies/pcs.json` and draws `docs/figures/pcs.svg` from what is there. Each part draws
samples for the search and others for the test. Points of `wfq` are searched with the light playout,
then replayed beside the rivals.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from matplotlib.figure import Figure
from msgspec import to_builtins
from msgspec.structs import replace

from benchmarks.common import RESULTS, ROOT, TRACES, keep
from predictors.perfect import PerfectRunTimes
from replay.experiment.folder import RUNS
from replay.logs.importers.pcs import read as read_pcs
from replay.logs.importers.workload import read_workload
from replay.logs.trace import PoolTable, Trace
from replay.run.fluid import fluid_ends
from replay.run.metrics import quantile
from replay.run.predictions import ForetellingCore, error_pct, unfairness_pct
from replay.run.run import Settings, replay_one
from replay.search.algorithms import front_of
from replay.search.front import presets
from replay.search.objectives import evaluate, parse_objective, prepare, quarter_limits
from replay.search.playout import columns, simulate
from replay.search.search import Found, SearchPlan, search
from replay.search.space import SPACES, Point
from replay.search.workload import JobSource, LogSource, Sample, WorkloadSource
from sia.core.core import Core
from sia.core.playout import Arrival, no_solver, play
from sia.events import JobFinished, PolicyTuned
from sia.model import Options, Pool
from sia.policies import make
from sia.policies.wfq.policy import Wfq, WfqParams
from sia.wording import DAY

GPUS, SEEDS, ARRIVALS = 64, 5, 250
PHILLY = 500
"""Arrivals of a sample of Philly, whose long jobs leave GPUs idle in a short one."""
SIMULATIONS, SAMPLES = 240, 2
RIVALS = ("elastic-fifo", "elastic-srsf", "afs", "themis-lease")
CLUSTERS = ("0e4a51", "2869ce", "b436b2", "ee9e8c", "6214e9", "6c71a0")
LOAD = 0.8
PICTURE = ROOT / "docs" / "figures" / "pcs.svg"
SHORTER = 24.0
"""By how much the jobs of the day of `noon` are shorter than those of workload 1."""
QUANTILES = [i / 50 for i in range(51)]
STUDENT = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776}
"""97.5 % quantile of Student's distribution for the mean of so many samples."""
FIFO = "elastic-fifo"
ONE_QUEUE = "wfq:weights=1:zeta=0"
"""The same decisions as elastic-fifo, and the light playout knows it."""


def searched(
    jobs: JobSource, objectives: Sequence[str], simulations: int = SIMULATIONS,
    space: str = "heuristics", arrivals: int = ARRIVALS, seed: int = 0, cost: float = 0.0,
) -> Found:  # fmt: skip
    """Search on samples of a workload; the test samples are others."""
    limits = quarter_limits(jobs.sizes)

    def samples(side: Any) -> list[Any]:
        return [
            prepare(jobs.sample(side, i, arrivals, seed), jobs.gpus, limits) for i in range(SAMPLES)
        ]

    plan = SearchPlan(
        SPACES[space](jobs.sizes, jobs.gpus, capped=jobs.capped), "spea2",
        [parse_objective(each) for each in objectives], seed, samples("train"), samples("test"),
        cost,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / RUNS).mkdir()
        return search(plan, Path(folder), simulations // SAMPLES, 1, lambda *_: None)


def points_of(found: Found, objectives: Sequence[str]) -> dict[str, str]:
    """Return the labels of PCS-JCT, PCS-bal and PCS-pred: the fastest point and so on.

    PCS-pred is the point of the least error that is no worse than half of FIFO's completion time,
    as FIFO itself has no error.
    """
    kept = [parse_objective(each) for each in objectives]
    named = presets(found, kept)
    first = [train.mean(objectives[0]) for train, _ in found.front]
    errors = [train.mean(objectives[1]) for train, _ in found.front]
    slow = min(first) + 0.5 * (found.fifo[0].mean(objectives[0]) - min(first))
    sure = min((i for i, jct in enumerate(first) if jct <= slow), key=lambda i: errors[i])
    chosen = {"wfq, fast": named["fast"], "wfq, balanced": named["balanced"], "wfq, sure": sure}
    return {name: found.front[i][0].point.exact for name, i in chosen.items()}


def played(
    sample: Sample, label: str, durations: str = "perfect", gpus: int = GPUS, cost: float = 0.0
) -> dict[str, list[float]]:
    """Replay a sample under a policy: JCTs, errors and unfairness of its jobs.

    Each resize costs a job `cost` seconds.
    """
    arrivals = [Arrival(job, duration) for job, duration in sample.arrivals]
    trace, table = Trace(arrivals), PoolTable([Pool(arrivals[0].job.pool, gpus)])
    ends, predictions = _ends(trace, table, label, durations, cost)
    fair = fluid_ends(trace, table)
    rows = [
        (job.submit, told, end, even)
        for (job, _), told, end, even in zip(arrivals, predictions, ends, fair, strict=True)
        if end is not None and told is not None and even is not None
    ]
    assert len(rows) == len(arrivals), label
    return {
        "jct": [end - submit for submit, _, end, _ in rows],
        "pred_err": [error_pct(submit, told, end) or 0.0 for submit, told, end, _ in rows],
        "unfairness": [unfairness_pct(submit, even, end) for submit, _, end, even in rows],
    }


def _ends(
    trace: Trace, table: PoolTable, label: str, durations: str, cost: float
) -> tuple[Sequence[float | None], Sequence[float | None]]:
    """Return ends and predicted ends: of wfq by the light playout, which a test compares."""
    if label == FIFO:
        label = ONE_QUEUE
    if label.startswith("wfq") and durations == "perfect":
        own = make(label).params
        point = Point(label, own.sizes, own.weights or (1.0,), own.zeta, own.delta)
        return simulate(columns(trace.arrivals, table.pools[0].quota), point, cost)
    settings = Settings([label], durations=durations, options=Options(resume_cost=cost))
    schedule = replay_one(trace, table, label, settings, None)
    assert schedule.predictions is not None
    return schedule.ends, schedule.predictions


def measured(runs: Sequence[Mapping[str, Sequence[float]]]) -> dict[str, Any]:
    """Return the mean of each measure over samples, and half of its 95 % interval (Student)."""
    found: dict[str, Any] = {}
    for metric in ("jct", "pred_err", "unfairness"):
        for name, part in (("avg", None), ("p90", 0.9), ("p99", 0.99), ("max", 1.0)):
            values = []
            for run in runs:
                ordered = sorted(run[metric])
                value = fmean(ordered) if part is None else quantile(ordered, part)
                values.append(value or 0.0)
            found[f"{name}:{metric}"] = _interval(values)
    every = sorted(value for run in runs for value in run["pred_err"])
    found["cdf:pred_err"] = [round(quantile(every, q) or 0.0, 2) for q in QUANTILES]
    every = sorted(value for run in runs for value in run["unfairness"])
    found["cdf:unfairness"] = [round(quantile(every, q) or 0.0, 2) for q in QUANTILES]
    return found


def _interval(values: Sequence[float]) -> list[float]:
    """Return a mean, and half of its 95 % interval (Student)."""
    count = len(values)
    half = STUDENT[count] * stdev(values) / count**0.5 if count > 1 else 0.0
    return [round(fmean(values), 2), round(half, 2)]


def compared(
    jobs: JobSource, objectives: Sequence[str], arrivals: int = ARRIVALS
) -> dict[str, Any]:
    """Search, then replay the points beside the rivals on the test samples."""
    found = searched(jobs, objectives, arrivals=arrivals)
    labels = points_of(found, objectives) | {name: name for name in RIVALS}
    samples = [jobs.sample("test", seed, arrivals, 1) for seed in range(SEEDS)]
    results = {
        name: {"policy": label, **measured([played(each, label) for each in samples])}
        for name, label in labels.items()
    }
    front = [[train.mean(each) for each in objectives] for train, _ in found.front]
    return {
        "objectives": list(objectives), "load": round(jobs.load, 3), "front": front,
        "policies": results,
    }  # fmt: skip


def cluster(name: str) -> LogSource:
    """The jobs of a virtual cluster on 64 GPUs, at the load of its log if that is more."""
    trace, _ = read_pcs(TRACES / "philly_scaling.csv.gz", TRACES / "dnn_speedups.csv")
    jobs = LogSource([each for each in trace.arrivals if each.job.pool == name], GPUS, 0)
    jobs.at_load(min(1.0, max(LOAD, jobs.load)))
    return jobs


def workload(name: str, load: float = LOAD) -> WorkloadSource:
    """A workload of the paper on 64 GPUs."""
    return WorkloadSource(read_workload(TRACES / "pcs_workloads.csv", name), GPUS, load)


def four_an_hour() -> WorkloadSource:
    """Workload 3 at 4 jobs an hour."""
    mean = read_workload(TRACES / "pcs_workloads.csv", "workload-3").service.mean
    return workload("workload-3", 4 / 3600 * mean / GPUS)


def clusters() -> dict[str, Any]:
    """Figs. 3 and 7: the six virtual clusters."""
    found = {}
    for name in CLUSTERS:
        found[name] = compared(cluster(name), ("avg:jct", "avg:pred_err"), PHILLY)
        (RESULTS / "policies/pcs_clusters.part").write_text(json.dumps(found))
    (RESULTS / "policies/pcs_clusters.part").unlink()
    return found


def heuristics() -> dict[str, Any]:
    """Fig. 9c: points on the joint front, and test over train, at equal numbers of simulations.

    Means over five seeds of the samples and of the search.
    """
    jobs, objectives, found = cluster(CLUSTERS[0]), ("avg:jct", "avg:pred_err"), {}
    for number in (100, 200, 400):
        rows: dict[str, list[float]] = {}
        for seed in range(SEEDS):
            both = {space: searched(jobs, objectives, number, space, seed=seed) for space in SPACES}
            points = [
                (space, tuple(test.mean(each) for each in objectives))
                for space, result in both.items()
                for _, test in result.front
            ]
            best = front_of([values for _, values in points])
            for space, result in both.items():
                count = sum(points[i][0] == space for i in best)
                rows.setdefault(f"{space}: on the joint front", []).append(count)
                for each in objectives:
                    pairs = [(test.mean(each), train.mean(each)) for train, test in result.front]
                    ratios = [test / train for test, train in pairs if train]
                    ratio = fmean(ratios) if ratios else 1.0
                    rows.setdefault(f"{space}: {each}, test / train", []).append(ratio)
        found[str(number)] = {name: _interval(values) for name, values in rows.items()}
    return found


def errors() -> dict[str, Any]:
    """Figs. 10a and 10b: wrong sizes, told and used; AFS knows the right ones."""
    jobs, objectives = cluster(CLUSTERS[0]), ("avg:jct", "avg:pred_err")
    labels = points_of(searched(jobs, objectives), objectives)
    samples = [jobs.sample("test", seed, ARRIVALS, 1) for seed in range(SEEDS)]
    wfq, found = labels["wfq, fast"], {}
    for off in (0, 20, 40, 60, 80):
        durations = f"within:{off}" if off else "perfect"
        found[str(off)] = {
            name: measured([played(each, label, durations) for each in samples])
            for name, label in {"wfq, fast": wfq, "elastic-fifo": "elastic-fifo"}.items()
        }
    exact = measured([played(each, "afs") for each in samples])
    return {"policy": wfq, "off": found, "afs": exact}


def load() -> dict[str, Any]:
    """Fig. 10c: a front that was found at 60 % load, at 80 %; five seeds of samples and search."""
    runs = [_at_another_load(seed) for seed in range(SEEDS)]
    within = [run["within_10_pct"] for run in runs]
    return {"within_10_pct": _interval(within), "seeds": runs}


def _at_another_load(seed: int) -> dict[str, Any]:
    objectives = ("avg:jct", "avg:pred_err")
    found = searched(workload("workload-1", 0.6), objectives, seed=seed)
    busy = workload("workload-1", 0.8)
    own = searched(busy, objectives, seed=seed)
    limits = quarter_limits(busy.sizes)
    samples = [
        prepare(busy.sample("test", i, ARRIVALS, seed), GPUS, limits) for i in range(SAMPLES)
    ]
    used = []
    for train, _ in found.front:
        runs = [evaluate(train.point, each) for each in samples]
        used.append([fmean(run[each] for run in runs) for each in objectives])
    best = [[test.mean(each) for each in objectives] for _, test in own.front]
    scale = [max(point[i] for point in best) or 1.0 for i in range(2)]
    away = [
        min(max(abs(a[i] - b[i]) / (b[i] if i == 0 else scale[i]) for i in range(2)) for b in best)
        for a in used
    ]
    near = sum(each <= 0.1 for each in away) / len(away)
    return {"found_at_0.6": used, "found_at_0.8": best, "within_10_pct": round(near, 3)}


def noon() -> dict[str, Any]:
    """A day of workload 1 that begins under FIFO; at noon the balanced point is set.

    Jobs are a 24th as long, so that most of them end within the day. Under FIFO alone, and under
    the point alone, the same day for comparison.
    """
    jobs, objectives = workload("workload-1"), ("avg:jct", "avg:pred_err")
    label = points_of(searched(jobs, objectives), objectives)["wfq, balanced"]
    point = make(label).params
    short = tuple(limit / SHORTER for limit in point.sizes)
    after = replace(point, sizes=short)
    before = make("wfq:weights=1:zeta=0").params
    days = {"set at noon": (before, after), "FIFO": (before, None), "the point": (after, None)}
    rows: dict[str, dict[str, list[tuple[float, float]]]] = {
        name: {"forenoon": [], "over noon": [], "afternoon": []} for name in days
    }
    for seed in range(5):
        arrivals = [
            Arrival(job.submitted_at(job.submit / SHORTER), duration / SHORTER)
            for job, duration in jobs.sample("test", seed, 1000, 1).arrivals
            if job.submit / SHORTER < DAY
        ]
        for name, (params, tuned) in days.items():
            told, ends = _day(arrivals, Wfq(params), tuned)
            for job, _ in arrivals:
                end = ends[job.id]
                part = (
                    "afternoon"
                    if job.submit >= DAY / 2
                    else ("forenoon" if end < DAY / 2 else "over noon")
                )
                error = error_pct(job.submit, told[job.id] or 0.0, end) or 0.0
                rows[name][part].append((end - job.submit, error))
    found = {
        name: {
            part: {
                "jobs": len(values),
                "mean_jct_s": round(fmean(jct for jct, _ in values), 1),
                "avg_pred_err_pct": round(fmean(error for _, error in values), 2),
                "p99_pred_err_pct": round(quantile(sorted(e for _, e in values), 0.99) or 0.0, 2),
            }
            for part, values in parts.items()
        }
        for name, parts in rows.items()
    }
    return {"policy": label, "shorter": SHORTER, "days": 5, "jobs": found}


def _day(
    arrivals: Sequence[Arrival], policy: Wfq, tuned: WfqParams | None
) -> tuple[dict[str, float | None], dict[str, float]]:
    """Play a day; return when each job was told that it would end, and its end."""
    pool = arrivals[0].job.pool
    core = ForetellingCore(
        Core([Pool(pool, GPUS)], policy), lambda: Wfq(core.policy.params), lambda: no_solver
    )
    run_times = PerfectRunTimes({job.id: duration for job, duration in arrivals})
    facts = [] if tuned is None else [PolicyTuned(DAY / 2, to_builtins(tuned))]
    ends = {
        event.job_id: instant.now
        for instant in play(core, arrivals, run_times=run_times, facts=facts)
        for event in instant.events
        if type(event) is JobFinished
    }
    return core.told, ends


PARTS: dict[str, Callable[[], dict[str, Any]]] = {
    "workload-1": lambda: compared(workload("workload-1"), ("avg:jct", "avg:pred_err")),
    "workload-3": lambda: compared(four_an_hour(), ("avg:jct", "p99:pred_err")),
    "clusters": clusters,
    "heuristics": heuristics,
    "errors": errors,
    "load": load,
    "noon": noon,
}


def draw(stored: Mapping[str, Any]) -> None:
    """Draw a panel for each figure whose results are there."""
    figure = Figure(figsize=(13, 9), layout="constrained")
    axes = figure.subplots(2, 3).flat
    _scatter(next(axes), stored.get("clusters", {}).get(CLUSTERS[0]), "Figs. 3, 7: 0e4a51")
    _bars(next(axes), stored.get("clusters"), "Fig. 7: p99 error of each virtual cluster")
    _curves(next(axes), stored.get("workload-1"), "cdf:pred_err", "Fig. 4: errors, workload 1")
    _curves(next(axes), stored.get("workload-1"), "cdf:unfairness", "Fig. 6a: unfairness")
    _scatter(next(axes), stored.get("workload-3"), "Fig. 8: workload 3")
    axis = next(axes)
    axis.set_title("Fig. 10a: errors with wrong sizes")
    for name in ("wfq, fast", "elastic-fifo") if "errors" in stored else ():
        off = stored["errors"]["off"]
        values = [off[each][name]["avg:pred_err"] for each in off]
        axis.errorbar([*map(int, off)], [v for v, _ in values], [h for _, h in values], label=name)
    axis.set_xlabel("estimates off by up to (%)")
    axis.set_ylabel("mean prediction error (%)")
    axis.legend()
    figure.savefig(PICTURE, metadata={"Date": None})


def _scatter(axis: Any, part: Mapping[str, Any] | None, title: str) -> None:
    axis.set_title(title)
    if part is None:
        return
    for name, found in part["policies"].items():
        (x, dx), (y, dy) = found["avg:jct"], found["p99:pred_err"]
        axis.errorbar([x / 3600], [y], [dy], [dx / 3600], fmt="o", label=name)
    axis.set_yscale("symlog")
    axis.set_xlabel("mean JCT (h)")
    axis.set_ylabel("p99 of the error (%)")
    axis.legend(fontsize=7)


def _bars(axis: Any, part: Mapping[str, Any] | None, title: str) -> None:
    axis.set_title(title)
    if not part:
        return
    for i, name in enumerate(next(iter(part.values()))["policies"]):
        values = [each["policies"][name]["p99:pred_err"][0] for each in part.values()]
        axis.bar([x + i * 0.11 for x in range(len(values))], values, 0.11, label=name)
    axis.set_xticks([x + 0.35 for x in range(len(part))], list(part))
    axis.set_yscale("symlog")
    axis.set_ylabel("p99 of the error (%)")
    axis.legend(fontsize=7)


def _curves(axis: Any, part: Mapping[str, Any] | None, key: str, title: str) -> None:
    axis.set_title(title)
    for name, found in (part or {"policies": {}})["policies"].items():
        axis.plot(found[key], QUANTILES, label=name)
    axis.set_xscale("symlog")
    axis.set_xlabel("%")
    axis.set_ylabel("part of the jobs")
    axis.legend(fontsize=7)


def main(parts: Sequence[str]) -> None:
    """Run the parts, and draw."""
    path = RESULTS / "policies/pcs.json"
    stored = json.loads(path.read_text()) if path.exists() else {}
    for part in parts:
        stored[part] = PARTS[part]()
        sizes = {"gpus": GPUS, "seeds": SEEDS, "arrivals": ARRIVALS, "simulations": SIMULATIONS}
        keep("policies/pcs", stored | {"sizes": sizes})
    draw(stored)


if __name__ == "__main__":
    main(sys.argv[1:] or list(PARTS))
