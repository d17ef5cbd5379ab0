"""The figures of Chronus's evaluation (Figs. 5 to 9) on small pieces of Philly's and Venus's logs.

`python -m benchmarks.policies.chronus_figures [--only 6,7a] [--seeds 5] [--draw]`

A piece has jobs of one day, of at most 8 GPUs, with run times cut at 6 hours, on 32 GPUs (4 nodes)
and at a load of 1.2: the paper has two weeks on 768 or 960 GPUs. Each seed draws the day, the jobs
and their deadlines. Going on costs 30 s, and the solver gets a fiftieth of the usual work. Trials
have 8 GPUs at least instead of 16, as a node is a quarter of this cluster. Speeds of spread jobs
are ours, not the paper's (`SPEEDS`). Each replay adds a line to
`results/policies/chronus_figures.jsonl`; a run that is repeated continues where it was stopped.
The means of all lines are in `results/policies/chronus_figures.json`; `--draw` only draws them.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import cache, partial
from math import sqrt
from multiprocessing import Pool as Processes
from random import Random
from statistics import fmean, stdev
from typing import Any, NamedTuple
from unittest.mock import patch

from msgspec.structs import replace as altered

from benchmarks.common import RESULTS, ROOT, STUDENT, TRACES, keep
from replay.deadlines.rewards import UNGUARANTEED, deadline_measures
from replay.deadlines.workloads import PHILLY_WEEKS, Mix, with_deadlines
from replay.logs.read import read_trace
from replay.logs.trace import PoolTable, Trace
from replay.run.run import Settings, replay_one
from sia.limits import MAX_GROUP
from sia.model import GpuNode, Options, Pool
from sia.policies.chronus import cycles, promises
from sia.policies.chronus.leases import selection
from sia.program import SolveLimit
from sia.state.speeds import SpeedRow

STORE, PICTURE = "policies/chronus_figures", ROOT / "docs" / "figures" / "chronus.svg"
ROWS = RESULTS / "policies" / "chronus_figures.jsonl"
LOGS = {"P": "philly.csv.gz", "H": "helios_venus.csv.gz", "U": "helios_venus_users.csv.gz"}
"""The two weeks of Philly's log, Venus's log, and the 20 days of Venus's log with users."""
DAY, GPUS, NODE, WIDEST, LONGEST, LOAD = 86400.0, 32, 8, 8, 21600.0, 1.2
SHORT, COST = 300.0, 30.0
MIXES = {"SLO": Mix(100, 0, 0), "MIX1": Mix(70, 0, 30), "MIX2": Mix(30, 60, 10)}
CHRONUS, SHORTER = "chronus:floor=8", "chronus:lease=300:be=60:profile=0:fill"
LIMIT = SolveLimit(seconds=4.0, nodes=5, iterations=1_000, gap=0.01)
"""Work of one program: a fiftieth of the usual, so that all figures take minutes."""
RIVALS = ("edf", "3sigma", "genie", "yarn-cs", "las", "themis-lease")
SPEEDS = tuple(
    SpeedRow(model, gpus, nodes, speed)
    for model, near in (("chatty", 0.7), ("quiet", 0.95))
    for gpus in (2, 4, 8)
    for nodes, speed in ((1, 1.0), (2, near), (4, near - 0.15))
)
"""Half of the jobs lose 30 % on two nodes and 45 % on four, the others 5 and 20 %."""


class Case(NamedTuple):
    """One replay: what it belongs to, its workload and its policy."""

    figure: str
    point: str
    policy: str
    seed: int
    log: str = "P"
    mix: str = "MIX2"
    density: float = 100.0
    short: bool = False
    """Whether jobs of up to 300 s take part, too."""
    noise: int = 0
    hostile: float | None = None
    """The share of jobs with 3, 5, 6 or 7 GPUs, on nodes; None without nodes."""
    patched: str = ""
    """What is left out of the policy: `objective`, or `spreading` of small best-effort jobs."""


@cache
def whole_log(name: str) -> Trace:
    """The jobs of at most `WIDEST` GPUs, with cut run times."""
    trace = read_trace(TRACES / LOGS[name])
    begin, end = PHILLY_WEEKS if name == "P" else (0.0, float("inf"))
    kept = [
        arrival._replace(duration=min(arrival.duration, LONGEST))
        for arrival in trace.arrivals
        if begin <= arrival.job.submit < end and arrival.job.width <= WIDEST
    ]
    return replace(trace, arrivals=kept)


def piece_of(case: Case) -> Trace:
    """Draw the piece of a seed: first a day with enough jobs, then jobs up to the load."""
    log, rng = whole_log(case.log), Random(case.seed)
    first, last = log.arrivals[0].job.submit, log.arrivals[-1].job.submit
    wanted = LOAD * GPUS * DAY
    while True:
        begin = rng.uniform(first, last - DAY)
        jobs = [a for a in log.arrivals if begin <= a.job.submit < begin + DAY]
        short = [a for a in jobs if a.duration <= SHORT]
        jobs = [a for a in jobs if a.duration > SHORT]
        load = sum(a.job.width * a.duration for a in jobs)
        if load >= wanted:
            break
    share = wanted / load
    chosen = [a for a in jobs if rng.random() < share]
    if case.short:
        chosen += [a for a in short if rng.random() < share]
    shapes = [
        a._replace(job=replace_job(a.job, begin, rng, case.hostile))
        for a in sorted(chosen, key=lambda a: a.job.submit)
    ]
    return with_deadlines(replace(log, arrivals=shapes), MIXES[case.mix], (1.2, 2.0),
                          case.density, case.seed)  # fmt: skip


def replace_job(job: Any, begin: float, rng: Random, hostile: float | None) -> Any:
    """Put a job into the only pool; some are of a width that wastes a part of a node."""
    width, model = job.width, ""
    if hostile is not None:
        width = rng.choice((3, 5, 6, 7)) if rng.random() < hostile else width
        model = rng.choice(("chatty", "quiet"))
    return altered(job, pool="all", submit=job.submit - begin, width=width, model=model)


def measured(case: Case) -> dict[str, Any]:
    """Replay a case."""
    trace = piece_of(case)
    quota = 100 if case.mix == "SLO" else 70 if case.mix == "MIX1" else 90
    label = f"yarn-cs:slo={quota}" if case.policy == "yarn-cs" else case.policy
    nodes = tuple(GpuNode(f"n{n}", NODE) for n in range(GPUS // NODE))
    durations = f"noisy:{case.noise}" if case.noise else "perfect"
    made = Settings(
        [label], durations=durations, seed=case.seed, options=Options(resume_cost=COST),
        nodes=nodes if case.hostile is not None else (),
        speeds=SPEEDS if case.hostile is not None else (),
    )  # fmt: skip
    changes: dict[str, Any] = {
        "": nullcontext(),
        "objective": patch.object(selection.Selection, "of", lambda *_: None),
        "spreading": patch.object(cycles, "WIDE", 0),
    }
    with (
        changes[case.patched],
        patch.object(promises, "LIMIT", LIMIT),
        patch.object(promises, "SOON", LIMIT),
    ):
        found = replay_one(trace, PoolTable([Pool("all", GPUS)]), label, made, None)
    measures = deadline_measures(trace, found.ends)
    rows = found.tables.get("profiling", [])
    begun: dict[str, float] = {}
    for job_id, start, *_ in rows:
        begun[str(job_id)] = min(float(start), begun.get(str(job_id), float("inf")))
    waits = [begun[a.job.id] - a.job.submit for a in trace.arrivals if a.job.id in begun]
    unpromised = [
        (a, end) for a, end in zip(trace.arrivals, found.ends, strict=True)
        if a.job.id in found.promises and found.promises[a.job.id].label == UNGUARANTEED
    ]  # fmt: skip
    short = [
        end - a.job.submit for a, end in zip(trace.arrivals, found.ends, strict=True)
        if a.duration <= SHORT and end is not None
    ]  # fmt: skip
    among = replace(trace, arrivals=[a for a, _ in unpromised])
    rest = deadline_measures(among, [end for _, end in unpromised]) if unpromised else {}
    return {
        **case._asdict(), "jobs": len(trace.arrivals), "wdmr": measures["wdmr"],
        "wdmr_soft": measures["wdmr_soft"],
        "be": measures["best_effort_avg_jct_s"], "seconds": round(found.seconds, 2),
        "wait": fmean(waits) if waits else None, "longest": max(waits, default=None),
        "short_jct": fmean(short) if short else None, "refused": rest.get("wdmr"),
        "refused_jobs": len(unpromised),
    }  # fmt: skip


def profiler_cases(seed: int) -> Iterator[Case]:
    """Yield the replays of Fig. 6."""
    for size in (8, 16):
        yield Case("6a", str(size), f"chronus:capacity={size}", seed, "H", short=True)
    yield Case("6a", "by the hour", CHRONUS, seed, "H", short=True)
    for noise in (20, 40, 80):
        yield Case("6d", str(noise), CHRONUS, seed, "H", noise=noise)


def control_cases(seed: int) -> Iterator[Case]:
    """Yield the replays of Fig. 6b, with and without control of users' trials, and 6c's ideal."""
    yield Case("6c", "ideal", "srtf", seed, "H", short=True)
    for control, option in (("24 GPUs", ""), ("none", f":user={MAX_GROUP}")):
        yield Case("6b", control, CHRONUS + option, seed, "U", short=True)


def lease_cases(seed: int) -> Iterator[Case]:
    """Yield the replays of Fig. 7a; 20 minutes are the usual case."""
    for lease in (3600, 1800, 600, 300):
        yield Case("7a", str(lease), f"{CHRONUS}:lease={lease}", seed, "H")


def selector_cases(seed: int) -> Iterator[Case]:
    """Yield the replays of Fig. 7b."""
    yield Case("7b", "any plan", CHRONUS, seed, "H", patched="objective")


def allocator_cases(seed: int) -> Iterator[Case]:
    """Yield the replays of Fig. 8."""
    for hostile in (0.1, 0.3):
        for more in ("", ":roundup=no"):
            yield Case("8a", f"{hostile:.0%}{more}", CHRONUS + more, seed, "H", hostile=hostile)
    yield Case("8b", "quasi", f"{CHRONUS}:search=0", seed, "H", hostile=0.3)
    yield Case("8b", "together", CHRONUS, seed, "H", hostile=0.3, patched="spreading")


def rival_cases(seed: int, log: str, policies: Sequence[str]) -> Iterator[Case]:
    """Yield the replays of Fig. 9 on pieces of one log."""
    for mix in ("MIX2", "MIX1", "SLO"):
        for policy in policies:
            yield Case("9a", f"{log}_{mix}", policy, seed, log, mix)
    for density in (140, 80):
        for policy in policies:
            yield Case("9c", f"{log} {density}", policy, seed, log, density=density)


QUICK = tuple(policy for policy in RIVALS if policy != "3sigma")
CASES = {
    "6": profiler_cases,
    "6b": control_cases,
    "7a": lease_cases,
    "7b": selector_cases,
    "8": allocator_cases,
    "9P": partial(rival_cases, log="P", policies=(*QUICK, CHRONUS, "3sigma")),
    "9H": partial(rival_cases, log="H", policies=(*QUICK, CHRONUS, "3sigma")),
    "9P shorter": partial(rival_cases, log="P", policies=(SHORTER,)),
    "9H shorter": partial(rival_cases, log="H", policies=(SHORTER,)),
}


def summed(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return mean and half of the 95 % interval of each measure, by figure, point and policy."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(f"{row['figure']} | {row['point']} | {row['policy']}", []).append(row)
    found = {}
    for name, group in groups.items():
        found[name] = {"jobs": round(fmean(row["jobs"] for row in group))}
        for key in (
            "wdmr",
            "wdmr_soft",
            "be",
            "wait",
            "longest",
            "short_jct",
            "refused",
            "seconds",
        ):
            values = [row[key] for row in group if row[key] is not None]
            if values:
                count = len(values)
                half = STUDENT.get(count, 2.0) * stdev(values) / sqrt(count) if count > 1 else 0.0
                found[name][key] = [round(fmean(values), 4), round(half, 4)]
    return found


def traits() -> dict[str, Any]:
    """Fig. 5: how long jobs run, and how many GPUs are asked for in an hour."""
    found = {}
    for name in "PH":
        trace = read_trace(TRACES / LOGS[name])
        begin, end = PHILLY_WEEKS if name == "P" else (0.0, float("inf"))
        jobs = [a for a in trace.arrivals if begin <= a.job.submit < end]
        hours: dict[int, int] = {}
        for job, _ in jobs:
            hours[int(job.submit // 3600)] = hours.get(int(job.submit // 3600), 0) + job.width
        asked = [hours.get(h, 0) for h in range(min(hours), max(hours) + 1)]
        found[name] = {
            "jobs": len(jobs),
            "shorter": {
                str(s): round(sum(a.duration <= s for a in jobs) / len(jobs), 4)
                for s in (60, 300, 1800, 3600, 6 * 3600, 86400, 7 * 86400)
            },
            "GPUs asked for in an hour": {
                "mean": round(fmean(asked)), "most": max(asked),
                "95 %": sorted(asked)[len(asked) * 95 // 100],
            },
        }  # fmt: skip
    return found


def named(sums: dict[str, Any], figure: str) -> list[tuple[str, str]]:
    """Return the points of a figure with the names of their sums."""
    return [(name.split(" | ")[1], name) for name in sums if name.startswith(f"{figure} | ")]


def draw(stored: dict[str, Any]) -> None:
    """Draw what is stored as one picture."""
    from matplotlib import rc_context  # noqa: PLC0415  a slow import
    from matplotlib.figure import Figure  # noqa: PLC0415

    from replay.plotting.canvas import STYLE, SVG_METADATA  # noqa: PLC0415

    sums: dict[str, Any] = stored["means"]
    usual = f"9a | H_MIX2 | {CHRONUS}"
    leases = sorted([*named(sums, "7a"), ("1200", usual)], key=lambda row: int(row[0]))
    leases += named(sums, "7b")
    with rc_context({**STYLE, "svg.hashsalt": "sia"}):
        figure = Figure(figsize=(10, 13), layout="constrained")
        grid = figure.subplots(5, 2).flat
        draw_durations(next(grid), stored["5"])
        for title, rows, key, scale in (
            ("Fig. 6a: wDMR in % by GPUs of the profiler", named(sums, "6a"), "wdmr", 100),
            ("Fig. 6a: mean wait for a trial, s", named(sums, "6a"), "wait", 1),
            ("Fig. 6d: wDMR in % by noise of estimates, %", [("0", usual), *named(sums, "6d")],
             "wdmr", 100),
            ("Fig. 7a and b: wDMR in % by seconds of a lease, and with any plan", leases,
             "wdmr", 100),
            ("Fig. 8: wDMR in % by share of hostile widths, and by placement",
             [*named(sums, "8a"), *named(sums, "8b")], "wdmr", 100),
        ):  # fmt: skip
            draw_bars(next(grid), title, [(n, sums[row][key]) for n, row in rows if row in sums],
                      scale)  # fmt: skip
        loads = [f"{log} {density}" for log in "HP" for density in (80, 100, 140)]
        for key, title, scale in (
            ("wdmr", "wDMR in %", 100.0), ("be", "best-effort JCT, h", 1 / 3600)
        ):  # fmt: skip
            mixes = [f"{log}_{mix}" for log in "HP" for mix in MIXES]
            draw_rivals(next(grid), f"Fig. 9: {title} by workload", sums, mixes, key, scale)
            draw_rivals(next(grid), f"Fig. 9: {title} by density", sums, loads, key, scale)
        figure.axes[-1].legend(frameon=False, fontsize=6, ncols=2)
        figure.savefig(PICTURE, format="svg", metadata=SVG_METADATA)


def draw_durations(axes: Any, found: dict[str, Any]) -> None:
    """Draw Fig. 5a."""
    from replay.plotting.canvas import PALETTE  # noqa: PLC0415

    for i, (name, log) in enumerate((("P", "Philly"), ("H", "Venus"))):
        shorter = found[name]["shorter"]
        axes.plot([float(s) for s in shorter], [*shorter.values()], color=PALETTE[i],
                  label=log, marker="o", markersize=3)  # fmt: skip
    axes.set_xscale("log")
    marks = {60: "1 min", 300: "5 min", 3600: "1 h", 86400: "1 d", 604800: "7 d"}
    axes.set_xticks([*marks], [*marks.values()])
    axes.minorticks_off()
    axes.set_title("Fig. 5a: share of jobs that run at most so long", loc="left", fontsize=9)
    axes.legend(frameon=False)


def draw_bars(axes: Any, title: str, rows: list[tuple[str, list[float]]], scale: float) -> None:
    """Draw means with their intervals, or nothing where nothing was measured."""
    if not rows:
        axes.axis("off")
        return
    from replay.plotting.canvas import PALETTE  # noqa: PLC0415

    axes.bar(
        range(len(rows)), [scale * mean for _, (mean, _) in rows],
        yerr=[scale * half for _, (_, half) in rows], color=PALETTE[0], ecolor=PALETTE[9],
    )  # fmt: skip
    axes.set_xticks(range(len(rows)), [name for name, _ in rows], fontsize=7)
    axes.set_title(title, loc="left", fontsize=9)
    axes.set_ylim(bottom=0)


def draw_rivals(
    axes: Any, title: str, sums: dict[str, Any], points: list[str], key: str, scale: float
) -> None:
    """Draw a measure of all policies at the points that were measured."""
    from replay.plotting.canvas import PALETTE  # noqa: PLC0415

    seen = {name.split(" | ")[1] for name in sums if name.startswith(("9a", "9c"))}
    points = [p for p in points if p.replace(" 100", "_MIX2") in seen]

    for i, policy in enumerate((CHRONUS, SHORTER, *RIVALS)):
        found = []
        for x, point in enumerate(points):
            is_usual = "_" in point or point.endswith(" 100")
            name = f"9a | {point[0]}_MIX2" if point.endswith(" 100") else f"9a | {point}"
            name = f"{name if is_usual else f'9c | {point}'} | {policy}"
            if key in sums.get(name, {}):
                found.append((x + (i - 3.5) * 0.1, *sums[name][key]))
        if found:
            xs, ys, halves = zip(*found, strict=True)
            axes.errorbar(xs, [scale * y for y in ys], [scale * h for h in halves], fmt="o",
                          markersize=3, elinewidth=0.8, color=PALETTE[i], label=policy)  # fmt: skip
    axes.set_xticks(range(len(points)), points, fontsize=7)
    axes.set_title(title, loc="left", fontsize=9)
    axes.set_ylim(bottom=0)


def measure(part: str, seeds: int, processes: int) -> None:
    """Replay the cases of a part that are not stored yet, and store a row for each."""
    lines = ROWS.read_text().splitlines() if ROWS.exists() else []
    done = {tuple(json.loads(line)[key] for key in Case._fields) for line in lines}
    of_seeds = [CASES[part](seed) for seed in range(seeds)]
    tasks = [case for of_case in zip(*of_seeds, strict=True) for case in of_case]
    with Processes(processes) as workers:
        for row in workers.imap_unordered(measured, [case for case in tasks if case not in done]):
            with ROWS.open("a") as file:
                file.write(json.dumps(row) + "\n")


def main() -> None:
    """Measure the parts that are asked for, store them, and draw all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default=",".join(("5", *CASES)))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--draw", action="store_true")
    given = parser.parse_args()
    path = RESULTS / f"{STORE}.json"
    stored = json.loads(path.read_text()) if path.exists() else {}
    for part in [] if given.draw else given.only.split(","):
        if part == "5":
            keep(STORE, {**stored, part: traits()}, quiet=True)
        else:
            measure(part, given.seeds, given.processes)
    rows = [json.loads(line) for line in ROWS.read_text().splitlines()]
    stored = json.loads(path.read_text())
    keep(STORE, {**stored, "means": {**stored.get("means", {}), **summed(rows)}}, quiet=True)
    draw(json.loads(path.read_text()))


if __name__ == "__main__":
    main()
