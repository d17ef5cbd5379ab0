"""Seconds to dump and to restore a core with 10,000 running and 100,000 waiting jobs.

1,000 pools of 32 GPUs in one sharing group, with and without cells; as many jobs are waiting and
running as fit. CPU time of one thread, median of five; `restore` checks every invariant.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from random import Random
from typing import Any

from benchmarks.common import NODE, keep, spread
from cells.cells import Cells
from cells.layout.spec import Spec
from replay.cluster.cells_file import whole_spec
from replay.logs.trace import PoolTable
from sia import Core, Job, Pool
from sia.core.snapshot import decode, dump, encode, restore
from sia.events import FutureRevealed, JobSubmitted
from sia.model import FutureJob
from sia.policies import load, make, names

RUNS = 5
JOBS, POOLS, QUOTA = 110_000, 1000, 32
AT_ONCE = 1000
"""Jobs that arrive at one second."""

WIDTHS = (1, 1, 2, 2, 4, 8)
RUN_TIMES = (100.0, 1000.0, 20_000.0, 90_000.0)


def submissions() -> list[JobSubmitted]:
    """The same for every policy."""
    rng, found = Random(0), []
    for i in range(JOBS):
        now = float(i // AT_ONCE)
        cost = rng.choice((None, None, 5.0))
        job = Job(f"job-{i}", f"p{i % POOLS:04}", now, rng.choice(WIDTHS), preemptible=cost)
        found.append(JobSubmitted(now, job, rng.choice(RUN_TIMES)))
    return found


def filled(policy: str, *, cells: bool) -> Core:
    """All have arrived, and none has ended."""
    owned = [Pool(f"p{i:04}", QUOTA) for i in range(POOLS)]
    there = Cells(whole_spec(Spec(NODE, (), ()), PoolTable(owned))) if cells else None
    core = Core(owned, make(policy), None, there)
    jobs = submissions()
    if core.policy.needs.future:
        future = [FutureJob(each.job, each.run_time, each.time + 100.0) for each in jobs]
        core.step(0.0, [FutureRevealed(0.0, future)])
    for first in range(0, JOBS, AT_ONCE):
        core.step(jobs[first].time, jobs[first : first + AT_ONCE])
    return core


def timed(call: Callable[[], object]) -> float:
    """CPU seconds of one call."""
    gc.collect()
    began = time.process_time()
    call()
    return time.process_time() - began


def measured(policy: str, *, cells: bool) -> dict[str, Any]:
    """All steps of going to bytes and back."""
    core = filled(policy, cells=cells)
    data = encode(dump(core))
    snapshot, kind = decode(data), type(core.policy)
    calls: dict[str, Callable[[], object]] = {
        "dump": lambda: dump(core),
        "encode": lambda: encode(snapshot),
        "decode": lambda: decode(data),
        "restore": lambda: restore(snapshot, kind()),
    }
    waiting = core.state.waiting
    return {
        "running": len(core.state.jobs) - waiting,
        "waiting": waiting,
        "megabytes": round(len(data) / 1e6, 1),
        **{name: spread([timed(call) for _ in range(RUNS)]) for name, call in calls.items()},
    }


if __name__ == "__main__":
    results = {name: measured(name, cells=False) for name in names()}
    housed = [name for name in names() if load(name).places]
    results |= {f"{name}, cells": measured(name, cells=True) for name in housed}
    keep("daemon/snapshot", {"jobs": JOBS, "pools": POOLS, **results})
