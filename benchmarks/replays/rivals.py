"""Jobs per second of the rival policies on 30,000 Philly jobs in one pool, and growth of cost."""

from __future__ import annotations

import gc
import time
from typing import Any

import msgspec

from benchmarks.common import in_turn, keep, philly, spread
from benchmarks.replays.growth import LONG_QUEUE, SHORT_QUEUE, compared, queued
from benchmarks.replays.speed import bare_loop
from replay.logs.trace import PoolTable, Trace
from replay.run.run import Settings, replay_one, run_times_of
from sia import Core
from sia.core.playout import Arrival, play
from sia.model import Options, Pool
from sia.policies import make

RUNS = 5
JOBS, GPUS = 30_000, 1_500
ARRIVALS = 4_000
"""Jobs that arrive while the queue has that length."""
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
    keep("replays/rivals", results)


def cost_of_a_step(trace: Trace, table: PoolTable, policy: str) -> float:
    """Microseconds for each event and decision after the first instant, until the last arrival.

    The unit is not an arrival, because shortest-first policies end many jobs per arrival.
    """
    rule = make(policy)
    core = Core(table.pools, rule)
    run_times = run_times_of("perfect", trace, Settings([])) if rule.needs.run_times else None
    last, began, steps = trace.arrivals[-1].job.submit, 0.0, 0
    gc.collect()
    for instant in play(core, trace.arrivals, run_times=run_times):
        if not began:
            began = time.perf_counter()
        steps += len(instant.events) + len(instant.decisions)
        if instant.now >= last:
            break
    return 1e6 * (time.perf_counter() - began) / steps


def by_queue() -> dict[str, Any]:
    """Microseconds a step with few and with many jobs waiting."""
    inputs = [
        (Trace(trace.arrivals[: waiting + ARRIVALS]), table)
        for waiting in (SHORT_QUEUE, LONG_QUEUE)
        for trace, table in [queued(waiting)]
    ]
    return {
        name: compared(
            *in_turn(
                3,
                lambda n=name: cost_of_a_step(*inputs[0], n),  # type: ignore[misc]
                lambda n=name: cost_of_a_step(*inputs[1], n),  # type: ignore[misc]
            )
        )
        for name in RIVALS
    }


if __name__ == "__main__":
    main()
    keep("replays/rivals_queue", {"waiting": [SHORT_QUEUE, LONG_QUEUE], **by_queue()})
