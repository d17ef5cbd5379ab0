"""Processor time of whole processes before and after a change, in pairs.

`python -m benchmarks.pairs BEFORE [--pairs N] [--only COMMAND] [--keep NAME]`

BEFORE is a checkout of an earlier commit (`git worktree add BEFORE COMMIT`). Each pair runs the
same command from there and from here, one right after the other, in alternating order, and counts
the processor time of the process and its children. Both find their own policies, by metadata made
of their own `pyproject.toml`. The live pass is measured only if BEFORE has benchmarks in rooms.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tomllib
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.common import ROOT, TRACES, keep, spread

POLICIES = ("fcfs", "sia", "sia@peaks+survival", "srtf", "las", "emmfs")
CORE = """
import sys, time
from pathlib import Path
from replay.logs.read import read_pools, read_trace
from replay.run.run import Settings, replay_one

label, log = sys.argv[1], Path(sys.argv[2])
table = read_pools(log / "pools.csv")
trace, settings = read_trace(log / "trace.csv"), Settings((label,))
baseline = replay_one(trace, table, "fcfs", settings, None)
began = time.process_time()
replay_one(trace, table, label, settings, baseline)
print(time.process_time() - began)
"""
"""The replay of one policy without reading the log and writing the results."""

LENGTH = "2w"
"""Of the piece of the Philly log that is replayed, from its day 60 on."""

PASS = """
import sys, time
from random import Random

sys.path.append(sys.argv[1])  # after the checkout that is measured
from benchmarks.daemon.core import PENDING, POOLS, QUOTA, crowded, spec
from daemon.model.inputs import Ended, Submit
from daemon.model.outputs import StartEffect

engine, inputs = crowded(POOLS, QUOTA, POOLS * QUOTA, PENDING)
now, rng, took, started = 1e9, Random(1), [], []
some = [inputs[first : first + 1000] for first in range(0, len(inputs), 1000)]
for i in range(len(some) + 4000):
    now += 1.0
    if i < len(some):
        given = some[i]
    else:
        gone = started.pop(rng.randrange(len(started)))
        given = [Ended(gone, 1, 0), Submit(spec(f"n{i}", f"p{i % POOLS:04}", 2), 500.0)]
    began = time.thread_time()
    step = engine.step(now, given)
    took.append(time.thread_time() - began)
    engine.do_idle_work()
    started += [each.job for each in step.effects if isinstance(each, StartEffect)]
print(sorted(took[len(some) :])[2000])
"""
"""The median of 4,000 passes of a daemon's engine with 1,000 pools and 50,000 pending jobs."""


def metadata(checkout: Path, folder: Path) -> Path:
    """Write a checkout's entry points as an installed package has them; return their folder."""
    project = tomllib.loads((checkout / "pyproject.toml").read_text())["project"]
    info = folder / f"{project['name'].replace('-', '_')}-{project.get('version', '0')}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project.get('version', '0')}\n"
    )
    lines = []
    for group, points in project["entry-points"].items():
        lines += [f"[{group}]", *(f"{name} = {value}" for name, value in points.items()), ""]
    (info / "entry_points.txt").write_text("\n".join(lines))
    return folder


def seconds(checkout: Path, points: Path, words: list[str]) -> float:
    """Run Python from a checkout; return what it prints, or its processor time."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(points), str(checkout)])}
    env.pop("PYTHONDONTWRITEBYTECODE", None)  # as installed: only the first run compiles
    inner = words[0] == "-c"
    with (points / "stdout").open("w+") as output, (points / "stderr").open("w+") as errors:
        process = subprocess.Popen(
            [sys.executable, "-P", *words], cwd=points, env=env, stdout=output, stderr=errors
        )
        _, status, used = os.wait4(process.pid, 0)
        for file in (output, errors):
            file.seek(0)
        printed, told = output.read(), errors.read()
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"{checkout}: {words}: {told}")
    return float(printed) if inner else used.ru_utime + used.ru_stime


def main() -> None:
    """Measure and store the results."""
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("before", type=Path)
    options.add_argument("--pairs", type=int, default=9)
    options.add_argument("--only", metavar="COMMAND")
    options.add_argument("--keep", default="pairs")
    asked = options.parse_args()
    results: dict[str, Any] = {"before": _commit(asked.before), "after": _commit(ROOT)}
    with TemporaryDirectory() as name:
        folder = Path(name)
        sides = [(each.resolve(), metadata(each, folder / word))
                 for word, each in (("before", asked.before), ("after", ROOT))]  # fmt: skip
        log = folder / "log"
        subprocess.run(
            [sys.executable, "-m", "sia", "trace", "slice", "--trace", TRACES / "philly.csv.gz",
             "--pools", TRACES / "philly_pools.csv", "--from", "60d", "--length", LENGTH,
             "--out", log],
            check=True, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        cases = {"sia --help": ["-m", "sia", "--help"]}
        cases |= {f"sia replay, {each}": _replay(log, each) for each in POLICIES}
        if (asked.before / "benchmarks/daemon/core.py").exists():
            cases["live pass, 1,000 pools, 50,000 pending"] = ["-c", PASS]
        cases |= {f"core, {each}": ["-c", CORE, each, str(log)] for each in POLICIES}
        for case, words in cases.items():
            if asked.only in (None, case):
                took = _pairs(sides, words, asked.pairs, folder / case)
                ratios = [after / before for before, after in zip(*took, strict=True)]
                results[case] = {
                    "before, CPU s": spread(took[0]),
                    "after, CPU s": spread(took[1]),
                    "after / before, median of pairs": round(statistics.median(ratios), 3),
                }
    keep(asked.keep, results)


def _pairs(
    sides: list[tuple[Path, Path]], words: list[str], pairs: int, out: Path
) -> list[list[float]]:
    took: list[list[float]] = [[], []]
    for pair in range(pairs):
        for side in (0, 1) if pair % 2 else (1, 0):
            more = ["--out", f"{out}-{pair}-{side}"] if "replay" in words else []
            if PASS in words:
                more = [str(sides[side][0])]
            took[side].append(seconds(*sides[side], [*words, *more]))
    return took


def _replay(log: Path, policy: str) -> list[str]:
    """Return the arguments of a replay, with the baseline, which it added by itself only later."""
    policies = ",".join(dict.fromkeys(["fcfs", policy]))
    return ["-m", "sia", "replay", "--trace", str(log / "trace.csv"), "--pools",
            str(log / "pools.csv"), "--no-report", "--policy", policies]  # fmt: skip


def _commit(checkout: Path) -> str:
    command = ["git", "-C", str(checkout), "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    main()
