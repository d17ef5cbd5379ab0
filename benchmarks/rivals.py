"""Jobs per second of the rivals on 30,000 Philly jobs in one pool, and of a bare loop."""

from __future__ import annotations

from typing import Any

import msgspec
from common import in_turn, keep, philly, spread
from speed import bare_loop

from replay.run import Settings, replay_one
from replay.trace import PoolTable, Trace
from sia.model import Options, Pool
from sia.playout import Arrival

RUNS = 5
JOBS, GPUS = 30_000, 1_500
RIVALS = ("sjf", "easy", "hived", "themis", "srtf", "srsf", "las", "emmfs")


def one_pool() -> tuple[Trace, PoolTable]:
    """The first jobs of the log, all in one pool."""
    trace, _ = philly()
    arrivals = [
        Arrival(msgspec.structs.replace(job, pool="all"), duration)
        for job, duration in trace.arrivals[:JOBS]
    ]
    return Trace(arrivals), PoolTable([Pool("all", GPUS)])


def main() -> None:
    trace, table = one_pool()

    def timed(policy: str) -> float:
        settings = Settings([policy], options=Options())
        return replay_one(trace, table, policy, settings, None).seconds

    results: dict[str, Any] = {"input": f"Philly, {JOBS} jobs, one pool of {GPUS} GPUs"}
    for name in ("fcfs", *RIVALS):
        own, bare = in_turn(RUNS, lambda n=name: timed(n), lambda: bare_loop(trace, {"all": GPUS}))  # type: ignore[misc]
        results[name] = {
            "jobs_per_s": spread([JOBS / seconds for seconds in own]),
            "times_the_bare_loop": spread([a / b for a, b in zip(own, bare, strict=True)]),
        }
    keep("rivals", results)


if __name__ == "__main__":
    main()
