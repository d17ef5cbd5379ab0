"""Bounds that the oracle proves within its time limit, by preset and seed, one process each.

.venv/bin/python -m benchmarks.replays.oracle [PRESET] [SLOT] [TIME_LIMIT] [SEED ...]

PRESET may be `dense`: 410 jobs that need 1.01 of all GPUs for three days, of a generator that left
the load to chance (its base, seed 1); it has no seeds. Results are added to those of other
presets, slots and seeds. The processor seconds say what else ran on the machine: alone on two cores
`solve` takes up to twice its time.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.common import RESULTS, keep

SEEDS = ("1", "2", "3")
DENSE = Path(__file__).resolve().parent / "dense"
KEPT = ("status", "total_wait_s", "bound_wait_s", "gap", "seconds", "variables", "nonzeros")


def sia(*arguments: object) -> None:
    subprocess.run([sys.executable, "-m", "sia", *map(str, arguments)], check=True)


def processor() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def solved(folder: Path, log: Path, slot: str, limit: str) -> dict[str, Any]:
    files = "--trace", log / "trace.csv", "--pools", log / "pools.csv", "--slot", slot
    results: dict[str, Any] = {}
    for command in ("bound", "solve"):
        out, before, load = folder / command, processor(), os.getloadavg()[0]
        sia("oracle", command, *files, "--time-limit", limit, "--out", out)
        summary = json.loads((out / "oracle.json").read_text())
        results[command] = {
            "time_limit": limit,
            "load": round(load, 1),
            "processor_s": round(processor() - before, 1),
            **{key: summary[key] for key in KEPT},
        }
    return results


def logs_of(preset: str, seeds: Sequence[str], folder: Path) -> Iterator[tuple[str, Path]]:
    """The name and folder of each log asked for; those of the generator are made in `folder`."""
    if preset == DENSE.name:
        yield preset, DENSE
        return
    for seed in seeds:
        made = folder / f"{preset}-{seed}"
        sia("trace", "synth", "--preset", preset, "--seed", seed, "--out", made)
        yield f"{preset}, seed {seed}", made


def main() -> None:
    preset, slot, limit = [*sys.argv[1:4], *("base", "5m", "5m")[len(sys.argv[1:4]) :]]
    kept = RESULTS / "replays/oracle.json"
    runs = json.loads(kept.read_text())["runs"] if kept.exists() else {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for what, log in logs_of(preset, sys.argv[4:] or SEEDS, folder):
            runs[f"{what}, slots of {slot}"] = solved(folder / what, log, slot, limit)
    keep("replays/oracle", {"runs": runs})


if __name__ == "__main__":
    main()
