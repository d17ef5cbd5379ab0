"""Figures 8 to 10 and 14 to 16 of JamaisVu in a small size: jvu and its rivals on drawn workloads.

python -m benchmarks.policies.jvu [PART…] [--length 10m] [--load 120] [--seeds 5] [--warmup 0s]

Classes and run times are of Google's log of 2011, widths of Philly's (`sia trace classes`). There
are 256 nodes of one GPU in 8 racks. Each part replays each workload with each seed; plans look two
minutes ahead and are greedy unless the label says `global`. A number is the mean over the seeds,
with the half width of its 95 % interval (Student's t).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.common import RESULTS, TRACES, interval, keep

MEASURES = ("slo_missed_pct", "best_effort_goodput_gpu_h", "best_effort_avg_jct_s")
GREEDY = "jvu:{}:greedy:ahead=120"
LIMITED = "jvu:{}:global:ahead=120:starts=6:nodes=20:iterations=5000"
"""With less work for the solver than by default: a replay of an hour takes seconds."""

EXPERIMENTS = ("EXP1", "EXP2", "EXP3")
RIVALS = [GREEDY.format("puo"), GREEDY.format("base"), "prio", "prio:kill"]
LETTERS = [GREEDY.format(each) for each in ("base", "p", "pu", "puo")]
SLACKS = [f"DEADLINE-{slack}" for slack in (20, 60, 180)]

PARTS: dict[str, list[tuple[list[str], list[str], list[str]]]] = {
    "fig8_9": [([*EXPERIMENTS], ["perfect", "jvupredict"], RIVALS)],
    "fig10": [(SLACKS, ["perfect", "jvupredict"], [GREEDY.format("puo"), "prio"])],
    "fig14": [(SLACKS[1:2], ["jvupredict", "perfect"], LETTERS)],
    "delay": [(SLACKS[1:2], ["jvupredict"],
               [f"{GREEDY.format('puo')}:delay={delay}" for delay in (15, 60)])],
    "fig15": [(SLACKS[1:2], [f"biased:{error}" for error in (-50, 100)],
               [*LETTERS, GREEDY.format("po")])],
    "fig16": [(SLACKS[:2], ["biased:-50", "biased:-80"],
               [GREEDY.format("puo"), GREEDY.format("po")])],
    "lost": [(["EXP1"], ["jvupredict"], [GREEDY.format("puo"), GREEDY.format("puol"),
                                         f"{GREEDY.format('puol')}:lost=100"])],
    "history": [(SLACKS[1:2], ["perfect", "jvupredict"], [GREEDY.format("puo")])],
    "carried": [(SLACKS[1:2], ["perfect", "jvupredict"], [GREEDY.format("puo")])],
    "under": [(["EXP1"], ["biased:-50", "biased:-80"],
               [GREEDY.format("puo"), GREEDY.format("po")])],
    "under_p": [(["EXP1"], ["biased:-80"], [GREEDY.format("p"), GREEDY.format("pu")])],
    "early": [(SLACKS, ["jvupredict"], [f"{GREEDY.format('puo')}:early"])],
    "limits": [(["EXP1", "DEADLINE-60"], ["jvupredict"],
                [GREEDY.format("puo"), "jvu:puo:global:ahead=120"])],
    "global": [(["EXP1", "DEADLINE-60"], ["jvupredict"],
                [GREEDY.format("puo"), LIMITED.format("puo")])],
}  # fmt: skip
"""By part: workloads, estimates and policies, all combined."""


def sia(*options: object) -> str:
    """Run `sia`, and return what it prints."""
    command = [sys.executable, "-m", "sia", *map(str, options)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)}: {done.stderr}")
    return done.stdout


class Workloads:
    """Draws each workload once."""

    def __init__(self, folder: Path, length: str, load: float, warmup: str) -> None:
        """Convert the log. What is submitted during the warm-up is not measured."""
        self._folder, self._length, self._load, self._warmup = folder, length, load, warmup
        log = TRACES / "google2011_jobs.csv.gz"
        sia("trace", "convert", log, "--format", "google", "--out", folder / "log")

    def draw(self, name: str, seed: int) -> Path:
        """Return the folder of a workload."""
        out = self._folder / f"{name}-{seed}"
        if not out.exists():
            sia("trace", "classes", "--trace", self._folder / "log" / "trace.csv", "--widths",
                TRACES / "philly.csv.gz", "--workload", name, "--load", self._load, "--length",
                self._length, "--seed", seed, "--out", out)  # fmt: skip
        return out

    def replay(self, name: str, seed: int, durations: str, policies: list[str]) -> dict[str, Any]:
        """Return the measures of each policy, its kills and what they threw away in GPU-hours."""
        drawn, out = self.draw(name, seed), self._folder / "out"
        told = json.loads(sia(
            "replay", "--trace", drawn / "trace.csv", "--pools", drawn / "pools.csv", "--nodes",
            drawn / "nodes.csv", "--durations", durations, "--policy", ",".join(policies),
            "--no-report", "--json", "--out", out, "--warmup", self._warmup,
        ))  # fmt: skip
        found = {}
        for label in policies:
            rows = (out / label / "segments.csv").read_text().splitlines()
            columns = rows[0].split(",")
            lost = [float(row.split(",")[columns.index("lost")] or 0) for row in rows[1:]]
            found[label] = {key: told["policies"][label][key] for key in MEASURES}
            found[label]["kills"] = sum(each > 0.0 for each in lost)
            found[label]["lost_gpu_h"] = sum(lost) / 3600.0
        return found


def measure(part: str, workloads: Workloads, seeds: int) -> dict[str, Any]:
    """Replay one part, and return means by workload, estimates and policy."""
    found: dict[str, Any] = {}
    before = getrusage(RUSAGE_CHILDREN)
    for names, estimates, policies in PARTS[part]:
        for name in names:
            for durations in estimates:
                runs = [workloads.replay(name, seed, durations, policies) for seed in range(seeds)]
                rows = found.setdefault(f"{name}, {durations}", {})
                for label in policies:
                    rows[label] = {
                        key: interval([run[label][key] for run in runs]) for key in runs[0][label]
                    }
    after = getrusage(RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"cpu_s": round(seconds, 1), "rows": found}


def store(part: str, found: dict[str, Any]) -> None:
    """Store the results of a part beside those of the others."""
    stored = RESULTS / "policies/jvu.json"
    parts = json.loads(stored.read_text())["parts"] if stored.exists() else {}
    keep("policies/jvu", {"parts": {**parts, part: found}})


def main() -> None:
    """Measure the parts that are asked for, or all of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", nargs="*", help=f"of {', '.join(PARTS)}")
    parser.add_argument("--length", default="10m")
    parser.add_argument("--load", type=float, default=120.0)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--warmup", default="0s")
    asked = parser.parse_args()
    setting = {"length": asked.length, "load_pct": asked.load, "seeds": asked.seeds}
    if asked.warmup != "0s":
        setting["warmup"] = asked.warmup
    with TemporaryDirectory() as folder:
        workloads = Workloads(Path(folder), asked.length, asked.load, asked.warmup)
        for part in asked.part or PARTS:
            store(part, {**setting, **measure(part, workloads, asked.seeds)})


if __name__ == "__main__":
    main()
