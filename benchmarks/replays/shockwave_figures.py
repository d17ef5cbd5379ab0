"""Figs. 2 and 8 of Shockwave again, and one picture of all that `policies/shockwave.py` has stored.

`python -m benchmarks.replays.shockwave_figures` replays the log of 120 jobs for Fig. 2 (a job that
speeds up, foreseen and not) and a batch of 50 of its jobs on 16 GPUs for Fig. 8 (who runs when, and
how fair it ends), stores both, and draws `docs/figures/shockwave.svg`; with `--draw` it only draws.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from statistics import fmean
from typing import Any

from matplotlib import rcParams
from matplotlib.figure import Figure

from benchmarks.common import RESULTS, ROOT, TRACES, keep
from benchmarks.policies.shockwave import EVEN, GPUS, MIDDLE
from replay.fairness.measures import PresentJobs, RunSegment, fairness
from replay.logs.read import read_trace
from replay.logs.trace import PoolTable, Trace
from replay.run.run import Settings, replay_one
from sia.core.playout import Arrival
from sia.model import Job, Pool
from sia.policies.shockwave.estimates import contention
from sia.policies.shockwave.foresight import PredictionRule, foreseen

STORE, PICTURE = "policies/shockwave_figures", ROOT / "docs" / "figures" / "shockwave.svg"
ROUND = 120.0

BATCH, BATCH_GPUS = 50, 16
COMPARED = (MIDDLE, "allox", "gavel", "ossp")
SIZES = {"below 1 GPU-hour": 1.0, "1 to 2": 2.0, "2 to 4": 4.0, "above": float("inf")}
"""Four classes, as in the paper's figure; most jobs of the log are in its smallest one."""

BIN = 5
"""Rounds that are averaged in the picture."""

MARKS = {"5": "*", "10": "s", "20": "o", "40": "D"}
"""Marks in the picture by rounds of the window."""

DOUBLINGS = 3
"""Doublings of the batch size that the job of Fig. 2 makes at least."""

Runs = dict[str, list[RunSegment]]


def run(trace: Trace, table: PoolTable, label: str) -> Runs:
    """Return when each job runs under a policy."""
    schedule = replay_one(trace, table, label, Settings([label]), None)
    found: Runs = {}
    for job_id, start, end, width, *_ in sorted(schedule.segments or ()):
        found.setdefault(job_id, []).append(RunSegment(start, end, int(width)))
    return found


def reactive() -> dict[str, Any]:
    """Fig. 2: the fair end of a job as it is estimated in each round, reactively and foreseen."""
    trace = read_trace(TRACES / "shockwave_120.csv.gz")
    table = PoolTable([Pool("all", GPUS["120"])])
    job, takes = max(
        (a for a in trace.arrivals if a.job.mode == "gns" and len(a.job.regimes) > DOUBLINGS),
        key=lambda a: a.job.regimes[0].seconds / min(regime.seconds for regime in a.job.regimes),
    )
    found: dict[str, Any] = {"job": job.id, "regimes": [list(each) for each in job.regimes]}
    rules: dict[str, PredictionRule] = {"filter:f=0.2": "last", MIDDLE: "restate"}
    for label, rule in rules.items():
        runs = run(trace, table, label)
        ends = {job_id: parts[-1].end for job_id, parts in runs.items()}
        present = PresentJobs([(a.job.submit, ends[a.job.id], 1.0) for a in trace.arrivals])
        times, estimates = [], []
        now = job.submit
        while now < ends[job.id]:
            total = foreseen(rule, job.mode, job.regimes, done(job, runs[job.id], now)).total
            contended = contention(present.average(job.submit, now), GPUS["120"])
            times.append(now - job.submit)
            estimates.append(total * contended)
            now += ROUND
        whole = contention(present.average(job.submit, ends[job.id]), GPUS["120"])
        found[label] = {
            "rule": rule, "seconds": times, "fair end": estimates,
            "true fair end": takes * whole, "end": ends[job.id] - job.submit,
            "runs": [[part.start - job.submit, part.end - job.submit] for part in runs[job.id]],
        }  # fmt: skip
    return found


def done(job: Job, runs: list[RunSegment], now: float) -> float:
    """Return the seconds of work done by then: each start but the first costs its resume time."""
    cost = job.preemptible if isinstance(job.preemptible, float) else 0.0
    ran = [
        min(part.end, now) - part.start - (cost if number else 0.0)
        for number, part in enumerate(runs)
        if part.start < now
    ]
    return sum(max(0.0, each) for each in ran)


def closer() -> dict[str, Any]:
    """Fig. 8: GPUs by size of job in each round, and the distribution of `ftf_jobs`."""
    some = read_trace(TRACES / "shockwave_120.csv.gz").arrivals[:BATCH]
    trace = Trace([Arrival(job.submitted_at(0.0), takes) for job, takes in some])
    table = PoolTable([Pool("all", BATCH_GPUS)])
    size = {
        job.id: next(name for name, most in SIZES.items() if job.width * takes / 3600 < most)
        for job, takes in some
    }
    found: dict[str, Any] = {}
    for label in COMPARED:
        runs = run(trace, table, label)
        measures = fairness(trace, table, runs)
        rounds = int(measures["makespan"] // ROUND) + 1
        busy = {name: [0] * rounds for name in SIZES}
        for job_id, parts in runs.items():
            for part in parts:
                for at in range(int(part.start // ROUND), int((part.end - 1e-6) // ROUND) + 1):
                    busy[size[job_id]][at] += part.width
        found[label] = {
            "makespan": measures["makespan"], "avg_jct": measures["avg_jct"],
            "gpus by round": busy,
            "ftf_jobs": sorted(round(each["ftf_jobs"], 4) for each in measures["jobs"].values()),
        }  # fmt: skip
    return found


def draw(figures: Mapping[str, Any], parts: Mapping[str, Any]) -> None:
    """Draw a panel for each figure whose results are there."""
    rcParams["svg.fonttype"] = "none"
    figure = Figure(figsize=(14, 19), layout="constrained")
    axes = figure.subplots(5, 3).flat
    _reactive(next(axes), figures["reactive"])
    for label in COMPARED:
        _schedule(next(axes), label, figures["closer"][label])
    _distributions(next(axes), figures["closer"])
    _predictions(next(axes), parts["predictions"])
    _logs(next(axes), parts["logs"], "makespan", "Fig. 9: makespan", 3600)
    _logs(next(axes), parts["logs"], "worst_ftf_jobs", "Fig. 9: worst ftf_jobs", 1)
    _sweep(next(axes), next(iter(parts["sweep"].values())))
    _bars(next(axes), parts["mixes"], "Fig. 10: mixes")
    _errors(next(axes), parts["errors"])
    _bars(next(axes), parts["contention"], "Fig. 16: contention")
    _bars(next(axes), parts["philly"], "Fig. 17: Philly's gaps")
    for axis in axes:
        axis.axis("off")
    figure.savefig(PICTURE, metadata={"Date": None})


def _reactive(axis: Any, found: Mapping[str, Any]) -> None:
    axis.set_title(f"Fig. 2: fair end of job {found['job']} as estimated")
    for label, colour in (("filter:f=0.2", "C1"), (MIDDLE, "C0")):
        each = found[label]
        hours = [seconds / 3600 for seconds in each["seconds"]]
        estimates = [seconds / 3600 for seconds in each["fair end"]]
        axis.plot(hours, estimates, colour, label=f"{label} ({each['rule']})")
        axis.axhline(each["true fair end"] / 3600, color=colour, linestyle=":")
        axis.axvline(each["end"] / 3600, color=colour, linestyle="--")
    axis.set_xlabel("h since submission; dashed: it ends")
    axis.set_ylabel("fair end (h); dotted: in truth")
    axis.legend(fontsize=7)


def _schedule(axis: Any, label: str, found: Mapping[str, Any]) -> None:
    axis.set_title(f"Fig. 8a: {label}")
    busy = [
        [fmean(row[at : at + BIN]) for at in range(0, len(row), BIN)]
        for row in found["gpus by round"].values()
    ]
    rounds = range(0, BIN * len(busy[0]), BIN)
    axis.stackplot(rounds, *busy, labels=list(SIZES), step="post")
    axis.set_xlabel("round")
    axis.set_ylabel("GPUs")
    axis.legend(fontsize=7)


def _distributions(axis: Any, found: Mapping[str, Any]) -> None:
    axis.set_title("Fig. 8b: ftf_jobs of the batch")
    for label, each in found.items():
        values = each["ftf_jobs"]
        axis.step(values, [(i + 1) / len(values) for i in range(len(values))], label=label)
    axis.axvline(1.0, color="grey", linestyle=":")
    axis.set_xscale("log")
    axis.set_xlabel("ftf_jobs")
    axis.set_ylabel("part of the jobs")
    axis.legend(fontsize=7)


def _predictions(axis: Any, part: Mapping[str, Any]) -> None:
    axis.set_title("Fig. 5: error of the predicted run time")
    for rule, row in next(iter(part.values())).items():
        axis.plot([10 * tenth for tenth in range(10)], [*row.values()], label=rule)
    axis.set_xlabel("% of the run")
    axis.set_ylabel("%")
    axis.legend(fontsize=7)


def _logs(axis: Any, part: Mapping[str, Any], key: str, title: str, unit: float) -> None:
    axis.set_title(title)
    shown = (EVEN, MIDDLE, "gavel", "gandiva-fair", "ftf", "allox", "filter", "ossp")
    for i, label in enumerate(shown):
        values = [rows.get(label, {}).get(key, 0.0) / unit for rows in part.values()]
        axis.bar([x + i * 0.11 for x in range(len(values))], values, 0.11, label=label)
    axis.set_xticks([x + 0.33 for x in range(len(part))], [f"{jobs} jobs" for jobs in part])
    axis.set_ylabel("h" if unit > 1 else "")
    axis.set_ylim(top=1.5 * axis.get_ylim()[1])
    axis.legend(fontsize=7, ncols=2)


def _sweep(axis: Any, rows: Mapping[str, Any]) -> None:
    axis.set_title("k, lambda and rounds on drawn workloads, means of five")
    for label, row in rows.items():
        options = dict(part.split("=") for part in label.split(":")[1:])
        x, y = row["makespan"][0] / 3600, row["unfair_ftf_jobs_1.05"][0]
        axis.plot([x], [y], MARKS[options["rounds"]], color="C0", markersize=4)
        axis.annotate(f"{options['k']}, {options['lambda']}", (x, y), fontsize=6)
    axis.set_xlabel("makespan (h); circle: 20 rounds, star 5, square 10, diamond 40")
    axis.set_ylabel("% over 1.05")


def _bars(axis: Any, part: Mapping[str, Any], title: str) -> None:
    axis.set_title(f"{title}: worst ftf_jobs")
    labels = [
        label for label in next(iter(part.values())) if "predict" not in label and label != EVEN
    ]
    for i, label in enumerate(labels):
        values = [rows[label]["worst_ftf_jobs"] for rows in part.values()]
        means, halves = zip(*values, strict=True)
        axis.bar(
            [x + i * 0.12 for x in range(len(means))], means, 0.12, yerr=halves, label=label
        )  # fmt: skip
    axis.set_xticks([x + 0.3 for x in range(len(part))], list(part), fontsize=6)
    axis.set_yscale("log")
    axis.set_ylim(top=10 * axis.get_ylim()[1])
    axis.legend(fontsize=7, ncols=2)


def _errors(axis: Any, part: Mapping[str, Any]) -> None:
    axis.set_title("Fig. 13: wrong predictions")
    rows = next(iter(part.values()))
    noise = [int(label.rpartition("=")[2]) for label in rows]
    for key, unit, name in (
        ("makespan", 3600, "makespan (10 h)"), ("worst_ftf_jobs", 1, "worst ftf_jobs"),
        ("unfair_ftf_jobs_1.05", 100, "part over 1.05"),
    ):  # fmt: skip
        scale = unit * (10 if key == "makespan" else 1)
        means = [row[key][0] / scale for row in rows.values()]
        halves = [row[key][1] / scale for row in rows.values()]
        axis.errorbar(noise, means, halves, label=name)
    axis.set_xlabel("predictions off by up to (%)")
    axis.legend(fontsize=7)


def main() -> None:
    """Replay and store what `--draw` does not leave out, and draw."""
    if "--draw" not in sys.argv:
        keep(STORE, {"reactive": reactive(), "closer": closer()}, quiet=True)
    figures = json.loads((RESULTS / f"{STORE}.json").read_text())
    draw(figures, json.loads((RESULTS / "policies/shockwave.json").read_text())["parts"])


if __name__ == "__main__":
    main()
