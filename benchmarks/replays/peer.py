"""FIFO in one pool, whole process against whole process: `sia replay` and AccaSim.

AccaSim needs an environment of its own:
python3 -m venv .peer && .peer/bin/pip install accasim==1.1.3
usage: peer.py .peer/bin/python
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.common import in_turn, keep, philly, spread

CASES = ((20_000, 4_000), (5_000, 960))
RUNS = 3


def write_inputs(folder: Path, jobs: int, gpus: int) -> None:
    """The first Philly jobs for both sides."""
    trace, _ = philly()
    log = [a for a in trace.arrivals if a.job.width <= gpus][:jobs]
    with (folder / "log.swf").open("w") as swf, (folder / "log.csv").open("w") as csv:
        swf.write("; UnixStartTime: 0\n")
        csv.write("job_id,pool,submit,width,duration\n")
        for i, (job, duration) in enumerate(log, 1):
            d, w, s = int(duration), job.width, int(job.submit)
            swf.write(f"{i} {s} -1 {d} {w} -1 -1 {w} {d} -1 1 1 1 1 1 1 -1 -1\n")
            csv.write(f"{i},all,{s},{w},{d}\n")
    (folder / "pools.csv").write_text(f"pool,quota\nall,{gpus}\n")
    for name, per_node in (("one", gpus), ("eights", 8)):
        system = {
            "groups": {"node": {"core": per_node}},
            "resources": {"node": gpus // per_node},
            "equivalence": {"processor": {"core": 1}},
            "start_time": 0,
        }
        (folder / f"{name}.json").write_text(json.dumps(system))


def seconds(command: list[str]) -> float:
    """Wall time of a whole process."""
    began = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return time.perf_counter() - began


def main() -> None:
    peer = sys.argv[1]
    results: dict[str, Any] = {}
    for jobs, gpus in CASES:
        with tempfile.TemporaryDirectory() as text:
            folder = Path(text)
            write_inputs(folder, jobs, gpus)
            (folder / "peer").mkdir()
            script = str(Path(__file__).with_name("accasim_fifo.py"))
            theirs = [
                [peer, script, *(str(folder / n) for n in ("log.swf", system, "peer"))]
                for system in ("one.json", "eights.json")
            ]
            ours = [str(Path(sys.executable).with_name("sia")), "replay", "--policy", "fcfs"]
            ours += ["--trace", str(folder / "log.csv"), "--pools", str(folder / "pools.csv")]
            ours += ["--no-report", "--out", str(folder / "out")]
            own, one, eights = in_turn(
                RUNS,
                lambda: seconds(ours),  # noqa: B023  called before the loop goes on
                lambda: seconds(theirs[0]),  # noqa: B023
                lambda: seconds(theirs[1]),  # noqa: B023
            )
        results[f"{jobs:,} jobs on {gpus:,} GPUs"] = {
            "sia_s": spread(own),
            "accasim on one node, s": spread(one),
            "accasim on nodes of 8, s": spread(eights),
            "times as fast as on one node": spread([b / a for a, b in zip(own, one, strict=True)]),
            "times as fast as on nodes of 8": spread(
                [b / a for a, b in zip(own, eights, strict=True)]
            ),
        }
    keep("replays/peer", results)


if __name__ == "__main__":
    main()
