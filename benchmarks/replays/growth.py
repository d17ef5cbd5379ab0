"""Growth of the cost per job with the length of the log, the length of the queue, and the pools."""

from __future__ import annotations

import gc
import time
from collections.abc import Sequence
from random import Random
from typing import Any

from benchmarks.common import CASES, in_turn, keep, philly, spread
from replay.logs.trace import PoolTable, Trace
from replay.run.run import Settings, loads_of, replay_one, run_times_of
from sia import Core
from sia.core.playout import Arrival, play
from sia.model import Job, Pool
from sia.policies import make

RUNS = 3
LONG = 10
"""Times that the log is repeated: 109,348 jobs make 1,093,480."""

SHORT_QUEUE, LONG_QUEUE = 100, 20_000
ARRIVALS = 20_000
"""Jobs that arrive while the queue has that length."""


def repeated(trace: Trace, times: int) -> Trace:
    """The log so many times, one after the other."""
    shift = trace.arrivals[-1].job.submit + 86400.0
    arrivals = [
        Arrival(Job(f"{job.id}/{i}", job.pool, job.submit + i * shift, job.width), duration)
        for i in range(times)
        for job, duration in trace.arrivals
    ]
    return Trace(arrivals)


def by_length() -> dict[str, Any]:
    """Microseconds a job on the log, and on the log ten times."""
    trace, table = philly()
    long = repeated(trace, LONG)
    results = {}
    for name, (policy, forecast, durations) in CASES.items():
        settings = Settings([policy], forecast, durations)

        def cost(log: Trace, policy: str = policy, settings: Settings = settings) -> float:
            gc.collect()
            return 1e6 * replay_one(log, table, policy, settings, None).seconds / len(log.arrivals)

        short, far = in_turn(RUNS, lambda c=cost: c(trace), lambda c=cost: c(long))  # type: ignore[misc]
        results[name] = compared(short, far)
    return results


def queued(waiting: int, seed: int = 0) -> tuple[Trace, PoolTable]:
    """Eleven full pools, so many jobs waiting, and as much arriving as can be served."""
    random = Random(seed)
    pools = [Pool(f"p{i:02}", 64) for i in range(11)]
    lengths, widths = (100.0, 1000.0, 10_000.0, 60_000.0), (1, 1, 1, 2, 4, 8)
    work = sum(lengths) / len(lengths) * sum(widths) / len(widths)
    gap = work / sum(pool.quota for pool in pools)

    def job(i: int, submit: float) -> Arrival:
        made = Job(f"j{i}", random.choice(pools).name, submit, random.choice(widths))
        return Arrival(made, random.choice(lengths))

    arrivals = [job(i, 0.0) for i in range(waiting + 350)]
    now = 0.0
    for i in range(ARRIVALS):
        now += random.expovariate(1 / gap)
        arrivals.append(job(len(arrivals) + i, now))
    return Trace(arrivals), PoolTable(pools)


def cost_of_arrivals(trace: Trace, table: PoolTable, case: Sequence[str]) -> float:
    """Microseconds for each job that arrives after second 0, until the last one has."""
    policy, forecast, durations = case
    settings = Settings([policy], forecast, durations)
    rule = make(policy)
    core = Core(table.pools, rule, settings.options)
    run_times = run_times_of(durations, trace, settings) if rule.needs.run_times else None
    loads = loads_of(forecast, trace, table, settings) if rule.needs.loads else None
    last = trace.arrivals[-1].job.submit
    began = 0.0
    gc.collect()
    for instant in play(core, trace.arrivals, run_times=run_times, loads=loads):
        if not began:
            began = time.perf_counter()  # the first instant, with all that waits, is over
        if instant.now >= last:
            break
    return 1e6 * (time.perf_counter() - began) / ARRIVALS


def by_queue() -> dict[str, Any]:
    """Microseconds an arrival with few and with many jobs waiting."""
    inputs = queued(SHORT_QUEUE), queued(LONG_QUEUE)
    return {
        name: compared(
            *in_turn(
                RUNS,
                lambda c=case: cost_of_arrivals(*inputs[0], c),  # type: ignore[misc]
                lambda c=case: cost_of_arrivals(*inputs[1], c),  # type: ignore[misc]
            )
        )
        for name, case in CASES.items()
    }


def many_pools(pools: int, jobs: int = 50_000, seed: int = 0) -> tuple[Trace, PoolTable]:
    """The same jobs a pool-hour, whatever the number of pools."""
    random = Random(seed)
    table = PoolTable([Pool(f"p{i:04}", 16) for i in range(pools)])
    arrivals = []
    now = 0.0
    for i in range(jobs):
        now += random.expovariate(pools / 600.0)
        made = Job(f"j{i}", random.choice(table.pools).name, now, random.choice((1, 1, 2, 4, 8)))
        arrivals.append(Arrival(made, random.expovariate(1 / 2400.0) + 1.0))
    return Trace(arrivals), table


def by_pools() -> dict[str, Any]:
    """Microseconds a job in 10, 100 and 1,000 pools."""
    results: dict[str, Any] = {}
    inputs = {pools: many_pools(pools) for pools in (10, 100, 1000)}
    for name, (policy, forecast, durations) in CASES.items():
        settings = Settings([policy], forecast, durations)
        results[name] = {
            str(pools): round(
                1e6 * replay_one(*given, policy, settings, None).seconds / len(given[0].arrivals), 2
            )
            for pools, given in inputs.items()
        }
    return results


def compared(small: list[float], large: list[float]) -> dict[str, Any]:
    """Microseconds of both, and how many times the second is the first, round by round."""
    ratios = [b / a for a, b in zip(small, large, strict=True)]
    return {"small_us": spread(small), "large_us": spread(large), "ratio": spread(ratios)}


if __name__ == "__main__":
    keep("replays/growth_pools", {"microseconds a job": by_pools()})
    keep("replays/growth_queue", {"waiting": [SHORT_QUEUE, LONG_QUEUE], **by_queue()})
    keep("replays/growth_length", {"times the log": LONG, **by_length()})
