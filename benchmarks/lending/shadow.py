"""Compare the reports of shadow lending with real lending, and measure the cost of the shadow.

The daemon's engine lives in virtual time through the first jobs of Philly, which run as long as
they did and as was thought: with lending on, off and on shadow.

    python -m benchmarks.lending.shadow [--jobs 20000]
"""

from __future__ import annotations

import argparse
from heapq import heappop, heappush
from math import inf
from time import process_time
from typing import Any

from benchmarks.common import keep, philly
from daemon.engine.engine import Engine
from daemon.model.inputs import Ended, Input, Started, Submit, Tick
from daemon.model.job import JobSpec, LendingMode
from daemon.model.outputs import StartEffect
from daemon.model.setup import Setup
from replay.logs.trace import PoolTable, Trace


def lived(trace: Trace, table: PoolTable, mode: LendingMode) -> dict[str, Any]:
    """Play a log through one engine until all jobs have ended; return counts and CPU time."""
    engine = Engine.new(Setup(tuple(table.pools), lending=mode))
    lasts = {arrival.job.id: arrival.duration for arrival in trace.arrivals}
    ends: list[tuple[float, int, str, int]] = []
    place, steps, spent, after, begun = 0, 0, 0.0, 0.0, list[Input]()
    now = 0.0
    while True:
        coming = trace.arrivals[place].job.submit if place < len(trace.arrivals) else inf
        end = ends[0][0] if ends else inf
        if not begun:
            if coming == end == inf == engine.due:
                break
            now = min(coming, end, max(engine.due, now))
        inputs, begun = begun, []
        while ends and ends[0][0] <= now:
            _, _, job_id, attempt = heappop(ends)
            inputs.append(Ended(job_id, attempt, 0))
        while place < len(trace.arrivals) and trace.arrivals[place].job.submit <= now:
            job, duration = trace.arrivals[place]
            inputs.append(Submit(JobSpec(job.id, job.pool, job.width), duration))
            place += 1
        began = process_time()
        step = engine.step(now, inputs or [Tick()])
        done = process_time()
        engine.settle_accounts()
        spent, after = spent + done - began, after + process_time() - done
        steps += 1
        for effect in step.effects:
            if isinstance(effect, StartEffect):
                heappush(ends, (now + lasts[effect.job], steps, effect.job, effect.attempt))
                begun.append(Started(effect.job, effect.attempt))
    times = {"us_a_step": spent, "us_after_each": after}
    rounded = {name: round(1e6 * seconds / steps, 1) for name, seconds in times.items()}
    return {**rounded, "steps": steps, **_sums(engine)}


def _sums(engine: Engine) -> dict[str, Any]:
    accounts = engine.book.accounts.values()
    found: dict[str, Any] = {"lent_gpu_hours": round(sum(a.lent for a in accounts) / 3600, 3)}
    kept = engine.book.shadow
    if kept is not None:
        hours = sum(sum(sums.values()) for sums in kept.lent.values()) / 3600
        found["would_lend_gpu_hours"] = round(hours, 3)
        found["would_borrow_jobs"], found["renewed"] = kept.jobs, kept.renewed
        found["sooner"], found["gained_hours"] = kept.sooner, round(kept.gained / 3600, 1)
        found["later"], found["lost_hours"] = kept.later, round(kept.lost / 3600, 1)
    return found


def main() -> None:
    """Run the engine with lending on, off and in shadow mode, and store the comparison."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=20_000)
    options = parser.parse_args()
    whole, table = philly()
    trace = Trace(whole.arrivals[: options.jobs])
    found = {mode.value: lived(trace, table, mode) for mode in LendingMode}
    for mode, row in found.items():
        print(mode, row)
    keep("lending/shadow", {"jobs": len(trace.arrivals), "modes": found})


if __name__ == "__main__":
    main()
