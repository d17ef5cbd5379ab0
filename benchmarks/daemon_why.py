"""How long it takes to say why a job waits: 1,000 pools, 10,000 jobs running, 10,000 waiting.

`python benchmarks/daemon_why.py`. The jobs that wait are asked about one after another, in a random
order: in one sharing group and in fifty, without limits on loans and with some.
"""

from __future__ import annotations

import gc
import time
from collections import Counter
from random import Random
from typing import Any

from common import keep

from sia import Core, Job, Options, Pool
from sia.events import ForecastUpdated, JobSubmitted
from sia.explain.why import Explanation
from sia.model import Load
from sia.policies.sia.policy import Sia

POOLS, QUOTA, RUNNING, PENDING, ASKED = 1000, 16, 10_000, 10_000, 200
"""Every second pool submits at first, so that half of what runs is lent."""

SHORT, LONG = 1000.0, 90_000.0
"""Seconds: within a window, and beyond all."""


def crowded(groups: int, *, limited: bool) -> tuple[Core, Random]:
    """A core with so many jobs."""
    rng = Random(0)
    owned = [
        Pool(
            f"p{i:04}", QUOTA, f"g{i % groups}",
            lend_limit=rng.choice((None, 4, 12)) if limited else None,
            borrow_limit=rng.choice((None, 8, 16)) if limited else None,
        )
        for i in range(POOLS)
    ]  # fmt: skip
    core, number = Core(owned, Sia(), Options()), 0

    def submitted(pools: list[Pool], count: int, widths: tuple[int, ...]) -> list[JobSubmitted]:
        nonlocal number
        found = []
        for _ in range(count):
            number += 1
            pool, width = pools[number % len(pools)], rng.choice(widths)
            run_time = rng.choice((100.0, SHORT, SHORT, LONG))
            job = Job(f"j{number}", pool.name, core.state.now, width)
            found.append(JobSubmitted(core.state.now, job, run_time))
        return found

    core.step(0.0, [])
    while len(core.state.jobs) - core.state.waiting < RUNNING:
        before = len(core.state.jobs) - core.state.waiting
        core.step(core.state.now + 1.0, submitted(owned[::2], 500, (1,)))
        if len(core.state.jobs) - core.state.waiting == before:
            break
    loads = [Load(pool.name, i, rng.choice((0, 2, 6, 16))) for pool in owned for i in range(3)]
    core.step(core.state.now + 1.0, [ForecastUpdated(core.state.now + 1.0, loads)])
    while core.state.waiting < PENDING:
        more = min(1000, PENDING - core.state.waiting)
        core.step(core.state.now + 1.0, submitted(owned, more, (1, 2, 2, 4, 8, 16)))
    return core, rng


def measure(groups: int, *, limited: bool) -> dict[str, Any]:
    """Milliseconds of the processor, and what was said."""
    core, rng = crowded(groups, limited=limited)
    waiting = [job for job in core.state.jobs.values() if job.stream is None]
    gc.collect()
    gc.freeze()
    seconds, named, inexact = [], Counter[str](), 0
    for job in rng.sample(waiting, ASKED):
        began = time.process_time()  # the machine is shared
        said: Explanation = core.policy.why(job)
        seconds.append(time.process_time() - began)
        named.update(type(each).__name__ for each in said.obstacles)
        inexact += not said.exact
    gc.unfreeze()
    seconds.sort()
    at = {f"p{q}": seconds[min(ASKED - 1, ASKED * q // 100)] for q in (50, 95, 99)}
    at["max"] = seconds[-1]
    return {
        "running": len(core.state.jobs) - core.state.waiting,
        "lent": sum(pool.lends for pool in core.state.pools.values()),
        "waiting": core.state.waiting,
        "asked": ASKED,
        "milliseconds": {name: round(value * 1000, 2) for name, value in at.items()},
        "not exact": inexact,
        "obstacles": dict(named),
    }


def main() -> None:
    results = {}
    for groups in (1, 50):
        for limited in (False, True):
            name = f"{groups} groups, {'limits on loans' if limited else 'no limits'}"
            results[name] = measure(groups, limited=limited)
            print(name, results[name], flush=True)
    keep("daemon_why", results)


if __name__ == "__main__":
    main()
