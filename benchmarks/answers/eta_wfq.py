"""Estimates at submission under `wfq` with 1,000 live jobs in one pool.

The daemon is a process of its own (`sia serve`, simulated backend, real time): 64 GPUs, three
queues, elastic jobs that state their run times. Jobs are submitted one after the other; each is
cancelled once it has an estimate, so that the daemon stays as full as it is.

    python -m benchmarks.answers.eta_wfq [--jobs 50]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import time
from random import Random
from typing import Any

import aiohttp

from benchmarks.answers.whatif import ask, filled, quantiles, worked
from benchmarks.common import keep

LIVE, GPUS, ENDED = 1000, 64, 30
CONFIG = f"""
[daemon]
state = "state"
listen = "127.0.0.1:0"
policy = "wfq:sizes=20000+200000:weights=4+2+1:zeta=0"
forecast = "none+stated"
[backend]
kind = "simulated"
[limits]
rate = 10000
burst = 10000
[[pool]]
name = "all"
quota = {GPUS}
"""
AGAIN = 0.05
"""Seconds between two questions whether a job has an estimate by now."""


def job(name: str, rng: Random, seconds: float | None = None) -> dict[str, Any]:
    """An elastic job that takes so long, or some hours on all of its GPUs."""
    width = rng.randint(1, GPUS)
    run_time = 60.0 + rng.expovariate(1 / 7200) if seconds is None else seconds
    return {
        "id": name, "pool": "all", "gpus": width, "min_width": 1, "max_width": width,
        "duration": run_time, "run_time": run_time,
    }  # fmt: skip


async def measured(session: aiohttp.ClientSession, count: int, pid: int) -> dict[str, Any]:
    """Milliseconds of submissions, and until those without an estimate have one."""
    rng, took, later = Random(1), list[float](), list[float]()
    spent = 0.0
    for i in range(count):
        before = worked(pid)[0]
        began = time.perf_counter()
        seconds, answer = await ask(session, "/v1/jobs", job(f"new-{i}", rng))
        took.append(seconds)
        spent += worked(pid)[0] - before
        if answer.get("estimate") is None:
            while True:
                async with session.get(f"/v1/jobs/new-{i}/eta") as response:
                    if "estimate" in await response.json():
                        break
                await asyncio.sleep(AGAIN)
            later.append(time.perf_counter() - began)
        async with session.delete(f"/v1/jobs/new-{i}") as response:
            assert response.status < 300, await response.text()
    return {
        "submissions": count,
        "milliseconds": quantiles(took),
        "daemon_core_milliseconds": round(spent / count, 1),
        "with_an_estimate_at_once": count - len(later),
        "milliseconds_until_the_others_had_one": quantiles(later) if later else None,
    }


async def full(count: int) -> dict[str, Any]:
    """Fill a daemon, and measure."""
    rng = Random(0)
    first = [job(f"old-{i}", rng, 0.5) for i in range(ENDED)]
    live = [job(f"live-{i}", rng) for i in range(LIVE)]
    async with filled(CONFIG, [*first, *live]) as (session, pools, pid):
        while True:  # until there is an estimate at all
            async with session.get("/v1/jobs/live-7/eta") as response:
                if "estimate" in await response.json():
                    break
            await asyncio.sleep(1.0)
        found = await measured(session, count, pid)
        async with session.get("/metrics") as response:
            text = await response.text()
    counts = {name: pools[0][name] for name in ("running", "waiting")}
    worlds = [line for line in text.splitlines() if line.startswith("sia_estimates_w")]
    return counts | found | {"metrics": worlds}


def main() -> None:
    """Measure, and keep it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=50)
    count = parser.parse_args().jobs
    results: dict[str, Any] = {"load_before": os.getloadavg()[0]}
    keep("answers/eta_wfq", results | asyncio.run(full(count)))


if __name__ == "__main__":
    main()
