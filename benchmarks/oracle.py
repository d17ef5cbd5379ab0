"""What the oracle proves in the time it has: presets and seeds, each in a process of its own.

.venv/bin/python benchmarks/oracle.py [PRESET] [SLOT] [TIME_LIMIT] [SEED ...]

Results are put beside those of other presets, slots and seeds. The processor seconds say what
else ran on the machine: alone on two cores `solve` takes up to twice its time.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from common import RESULTS, keep

SEEDS = ("1", "2", "3")
KEPT = ("status", "total_wait_s", "bound_wait_s", "gap", "seconds", "variables", "nonzeros")


def sia(*arguments: object) -> None:
    subprocess.run([sys.executable, "-m", "sia", *map(str, arguments)], check=True)


def processor() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def solved(folder: Path, preset: str, seed: str, slot: str, limit: str) -> dict[str, Any]:
    made = folder / f"{preset}-{seed}"
    sia("trace", "synth", "--preset", preset, "--seed", seed, "--out", made)
    files = "--trace", made / "trace.csv", "--pools", made / "pools.csv", "--slot", slot
    results: dict[str, Any] = {}
    for command in ("bound", "solve"):
        out, before, load = made / command, processor(), os.getloadavg()[0]
        sia("oracle", command, *files, "--time-limit", limit, "--out", out)
        told = json.loads((out / "oracle.json").read_text())
        results[command] = {
            "time_limit": limit,
            "load": round(load, 1),
            "processor_s": round(processor() - before, 1),
            **{key: told[key] for key in KEPT},
        }
    return results


def main() -> None:
    preset, slot, limit = [*sys.argv[1:4], *("base", "5m", "5m")[len(sys.argv[1:4]) :]]
    kept = RESULTS / "oracle.json"
    runs = json.loads(kept.read_text())["runs"] if kept.exists() else {}
    with tempfile.TemporaryDirectory() as folder:
        for seed in sys.argv[4:] or SEEDS:
            found = solved(Path(folder), preset, seed, slot, limit)
            runs[f"{preset}, seed {seed}, slots of {slot}"] = found
    keep("oracle", {"runs": runs})


if __name__ == "__main__":
    main()
