"""Cost of cells in a replay of Philly, for the core and for the whole command.

Measures CPU time, as the machine may be shared. Arguments are policies (default: all).
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from unittest.mock import patch

from benchmarks.common import NODE, ROOT, TRACES, in_turn, keep, philly, spread
from cells.layout.spec import Spec
from replay.cluster.cells_file import places_of, whole_spec
from replay.cluster.cells_write import write_cells
from replay.logs.trace import playable
from replay.run.run import Settings, replay_one

RUNS = 5


def compared(without: list[float], with_cells: list[float]) -> dict[str, Any]:
    """Seconds of each, and the speed with cells as a part of that without, run by run."""
    ratios = [a / b for a, b in zip(without, with_cells, strict=True)]
    return {
        "without_s": spread(without),
        "with_s": spread(with_cells),
        "speed_with_over_without": spread(ratios),
    }


def seconds_of_children() -> float:
    """CPU time of all child processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    log, table = philly()
    spec = whole_spec(Spec(NODE, (), ()), table)
    trace = playable(log, table, places_of(spec, table))
    results: dict[str, Any] = {"input": f"Philly, {len(trace.arrivals)} jobs, nodes of 8 GPUs"}
    asked = sys.argv[1:] or ["fcfs", "mmfs", "hived", "sia"]
    for policy in asked:

        def core(cells: Spec | None, policy: str = policy) -> float:
            settings = Settings([policy], cells=cells)
            with patch("replay.run.run.perf_counter", time.process_time):
                return replay_one(trace, table, policy, settings, None).seconds

        results[f"{policy}, core"] = compared(
            *in_turn(RUNS, lambda: core(None), lambda: core(spec))
        )
    with tempfile.TemporaryDirectory() as folder:
        cells = Path(folder) / "cells.toml"
        write_cells(cells, spec)

        def command(*options: str) -> float:
            began = seconds_of_children()
            subprocess.run(
                [
                    sys.executable, "-m", "sia", "replay",
                    "--trace", str(TRACES / "philly.csv.gz"),
                    "--pools", str(TRACES / "philly_pools.csv"),
                    *options, "--out", f"{folder}/out",
                ],
                cwd=ROOT, check=True, capture_output=True,
            )  # fmt: skip
            return seconds_of_children() - began

        for policy in (each for each in ("fcfs", "sia") if each in asked):
            for report in ((), ("--no-report",)):
                options = ("--policy", policy, *report)
                name = f"sia replay --policy {policy} {' '.join(report)}".strip()
                results[name] = compared(
                    *in_turn(
                        RUNS,
                        lambda o=options: command(*o),  # type: ignore[misc]
                        lambda o=options: command(*o, "--cells", str(cells)),  # type: ignore[misc]
                    )
                )
    keep("_".join(["replays/cells_replay", *sys.argv[1:]]), results)


if __name__ == "__main__":
    main()
