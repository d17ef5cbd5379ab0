"""What the oracle proves in the time it has: presets and seeds, each in a process of its own.

.venv/bin/python benchmarks/oracle.py [PRESET] [SLOT] [TIME_LIMIT]
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from common import keep

SEEDS = (1, 2, 3)
KEPT = ("status", "total_wait_s", "bound_wait_s", "gap", "seconds", "variables", "nonzeros")


def sia(*arguments: object) -> None:
    subprocess.run([sys.executable, "-m", "sia", *map(str, arguments)], check=True)


def solved(folder: Path, preset: str, seed: int, slot: str, limit: str) -> dict[str, Any]:
    made = folder / f"{preset}-{seed}"
    sia("trace", "synth", "--preset", preset, "--seed", seed, "--out", made)
    files = "--trace", made / "trace.csv", "--pools", made / "pools.csv", "--slot", slot
    results = {}
    for command in ("bound", "solve"):
        out = made / command
        sia("oracle", command, *files, "--time-limit", limit, "--out", out)
        told = json.loads((out / "oracle.json").read_text())
        results[command] = {key: told[key] for key in KEPT}
    return results


def main() -> None:
    preset, slot, limit = [*sys.argv[1:], *("base", "5m", "5m")[len(sys.argv) - 1 :]]
    with tempfile.TemporaryDirectory() as folder:
        found = {str(seed): solved(Path(folder), preset, seed, slot, limit) for seed in SEEDS}
    keep(f"oracle_{preset}_{slot}", {"time_limit": limit, "seeds": found})


if __name__ == "__main__":
    main()
