"""Time to explain why a job is pending: 1,000 pools, 10,000 running and 50,000 pending jobs.

`python -m benchmarks.answers.why`. Pending jobs are asked about one after another, in a random
order: in one sharing group and in fifty, without limits on loans and with some. As in the daemon, a
child process answers, and each trial runs in a forked copy of it.
"""

from __future__ import annotations

import gc
import os
from collections import Counter
from random import Random
from typing import Any

from benchmarks.common import keep
from daemon.doors.http.routes.explain import explain_in_copies
from sia import Core, Job, Options, Pool
from sia.events import ForecastUpdated, JobSubmitted
from sia.explain.glance import glance
from sia.explain.obstacles import Explanation
from sia.model import Load
from sia.policies.sia.policy import Sia

POOLS, QUOTA, RUNNING, PENDING, ASKED = 1000, 16, 10_000, 50_000, 50
"""Jobs are submitted to every second pool at first, so that half of the running jobs have loans."""

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
    """Return CPU milliseconds per explanation, and what the explanations were."""
    core, rng = crowded(groups, limited=limited)
    waiting = [job for job in core.state.jobs.values() if job.stream is None]
    gc.collect()
    gc.freeze()
    seconds, glances, named, inexact = [], [], Counter[str](), 0
    for job in rng.sample(waiting, ASKED):
        before = _processor()  # the machine is shared
        glance(core.policy, job)
        glances.append(_processor() - before)
        before = _processor()
        explanation: Explanation = explain_in_copies(core, job)
        seconds.append(_processor() - before)
        named.update(type(each).__name__ for each in explanation.obstacles)
        inexact += not explanation.exact
    gc.unfreeze()
    return {
        "running": len(core.state.jobs) - core.state.waiting,
        "lent": sum(pool.lends for pool in core.state.pools.values()),
        "waiting": core.state.waiting,
        "asked": ASKED,
        "milliseconds": _milliseconds(seconds),
        "milliseconds at first sight": _milliseconds(glances),
        "not exact": inexact,
        "obstacles": dict(named),
    }


def _processor() -> float:
    """Seconds of the processor that this process and its copies took."""
    return sum(os.times()[:4])


def _milliseconds(seconds: list[float]) -> dict[str, float]:
    seconds.sort()
    at = {f"p{q}": seconds[min(ASKED - 1, ASKED * q // 100)] for q in (50, 99)}
    return {name: round(1000 * value, 1) for name, value in [*at.items(), ("max", seconds[-1])]}


def main() -> None:
    results = {}
    for groups in (1, 50):
        for limited in (False, True):
            name = f"{groups} groups, {'limits on loans' if limited else 'no limits'}"
            results[name] = measure(groups, limited=limited)
            print(name, results[name], flush=True)
    keep("answers/why", results)


if __name__ == "__main__":
    main()
