"""What a stop and its resume cost the engine: processor time of the steps, with jobs pending.

`python -m benchmarks.policies.stops [POLICY ...]`. A short job arrives and a running one is told to
stop; it is gone; the short one is seen to run; it ends, and the stopped one goes on and is seen to
run. The figure is all of that: the arrival and the end of the short job, too. Under policies that
do not stop a job because another is shorter, the short one has a higher priority.
"""

from __future__ import annotations

import gc
import statistics
import sys
import time
from collections.abc import Sequence
from random import Random
from typing import Any

from benchmarks.common import keep
from daemon.engine.engine import Engine
from daemon.model.inputs import Ended, Input, Started, Stopped, Submit
from daemon.model.job import JobSpec
from daemon.model.outputs import PreemptEffect, StartEffect
from daemon.model.setup import Setup
from sia.model import Pool

POLICIES = ("srtf", "srsf", "las", "emmfs")
BY_PRIORITY = ("las", "emmfs")
POOLS = 10
ROUNDS = 300
PENDING = (1000, 20_000)


class Machine:
    """An engine whose backend does at once what it is told."""

    def __init__(self, policy: str, pending: int) -> None:
        """Fill all GPUs, and let so many jobs wait."""
        self.priority = int(policy in BY_PRIORITY)
        self.quota = max(4, pending // 100)
        pools = tuple(Pool(f"p{i}", self.quota) for i in range(POOLS))
        self.engine = Engine.new(Setup(pools, policy, resizes=False))
        self.now, rng = 1e9, Random(1)
        jobs = POOLS * self.quota + pending
        for first in range(0, jobs, 1000):
            batch = range(first, min(jobs, first + 1000))
            self.live([self.job(f"j{i}", rng.uniform(1e4, 1e6)) for i in batch])
            self.now += 1.0

    def job(self, name: str, lasts: float, priority: int = 0) -> Submit:
        """A job on one GPU, in the pool of its number."""
        pool = int("".join(filter(str.isdigit, name))) % POOLS
        spec = JobSpec(name, f"p{pool}", 1, preemptible=30.0, priority=priority)
        return Submit(spec, lasts)

    def live(self, inputs: Sequence[Input]) -> tuple[float, int, int]:
        """Make steps until nothing follows; return processor time, steps and stops."""
        took, steps, stops, seen = 0.0, 0, 0, [*inputs]
        while seen:
            began = time.process_time()
            step = self.engine.step(self.now, seen)
            took += time.process_time() - began
            steps += 1
            seen = []
            for effect in step.effects:
                if isinstance(effect, StartEffect):
                    seen.append(Started(effect.job, effect.attempt))
                elif isinstance(effect, PreemptEffect):
                    stops += 1
                    seen.append(Stopped(effect.job, effect.attempt))
        return took, steps, stops


def measured(policy: str, pending: int) -> dict[str, Any]:
    """In milliseconds of processor time."""
    machine = Machine(policy, pending)
    gc.collect()
    gc.freeze()
    costs, steps, stops = [], 0, 0
    for i in range(ROUNDS):
        machine.now += 1.0
        arrives = machine.live([machine.job(f"short-{i}", 10.0, machine.priority)])
        machine.now += 1.0
        ends = machine.live([Ended(f"short-{i}", 1, 0)])
        costs.append(1000 * (arrives[0] + ends[0]))
        steps, stops = steps + arrives[1] + ends[1], stops + arrives[2] + ends[2]
    gc.unfreeze()
    machine.engine.check()
    assert stops == ROUNDS, f"{policy}: {stops} stops in {ROUNDS} rounds"
    return {
        "pending": machine.engine.core.state.waiting,
        "running": POOLS * machine.quota,
        "stops": stops,
        "steps for a stop and its resume": round(steps / ROUNDS, 2),
        "milliseconds": {
            "median": round(statistics.median(costs), 3),
            "p99": round(sorted(costs)[len(costs) * 99 // 100], 3),
            "max": round(max(costs), 3),
        },
    }


def main() -> None:
    results: dict[str, Any] = {}
    for policy in sys.argv[1:] or POLICIES:
        for pending in PENDING:
            results[f"{policy}, {pending} pending"] = measured(policy, pending)
            print(policy, pending, results[f"{policy}, {pending} pending"], flush=True)
    keep("policies/stops", results)


if __name__ == "__main__":
    main()
