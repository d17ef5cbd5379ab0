"""Cost of a step with and without recall, by the number of preemptible spare jobs."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

from benchmarks.common import in_turn, keep, spread
from sia import Core, Job, Options, Pool
from sia.events import JobSubmitted
from sia.model import Stream
from sia.policies import make

RUNS = 5
RUNNING = (1_000, 20_000)
STEPS = 400


def step_us(policy: str, running: int) -> float:
    """Return the microseconds of a step in which one job arrives and none is stopped."""
    pools = [Pool("borrows", 1), Pool("lends", 2 * running)]
    core = Core(pools, make(policy), Options())
    jobs = [Job(f"r{i}", "borrows", 0.0, 1, preemptible=1.0) for i in range(running + 1)]
    core.step(0.0, [JobSubmitted(0.0, job, 60.0) for job in jobs])
    spare = sum(1 for job in core.state.jobs.values() if job.stream is Stream.SPARE)
    assert spare == running, spare
    began = time.perf_counter()
    for i in range(STEPS):
        now = 1.0 + i / STEPS
        core.step(now, [JobSubmitted(now, Job(f"a{i}", "lends", now, 1), 1e6)])
    return (time.perf_counter() - began) / STEPS * 1e6


def main() -> None:
    results: dict[str, Any] = {"input": "two pools, spare jobs of one GPU; one job comes a step"}
    few, many = RUNNING
    for policy in ("sia", "sia-recall"):
        calls = (partial(step_us, policy, few), partial(step_us, policy, many))
        short, long = in_turn(RUNS, *calls)
        results[policy] = {
            f"step_us_{few}": spread(short),
            f"step_us_{many}": spread(long),
            "growth": spread([b / a for a, b in zip(short, long, strict=True)]),
        }
    keep("lending/recall", results)


if __name__ == "__main__":
    main()
