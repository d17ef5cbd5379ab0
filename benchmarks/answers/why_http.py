"""Time of `GET /v1/jobs/ID/why` on a loaded daemon, and delay of other requests meanwhile.

The daemon is a process of its own, as in `daemon_whatif.py`: 1,000 pools of 10 GPUs, 10,000 jobs
that run and 10,000 that wait. Pools are one sharing group or groups of ten, with limits on loans or
without.

    python -m benchmarks.answers.why_http [--questions 300]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import time
from random import Random
from typing import Any

import aiohttp

from benchmarks.answers.whatif import (
    GROUP,
    PENDING,
    POOLS,
    RUNNING,
    configuration,
    filled,
    submissions,
    worked,
)
from benchmarks.common import keep
from benchmarks.daemon.core import percentiles

LEND, BORROW = (4, 8, 10), (4, 8, 20)
"""Limits in GPUs that pools have in turn, of 10 each."""

HOUR = 3600.0


def limited(config: str) -> str:
    """Return the configuration with lend and borrow limits added."""
    for i in range(POOLS):
        name = f'name = "p{i:04}"\n'
        limits = f"lend_limit = {LEND[i % 3]}\nborrow_limit = {BORROW[i // 3 % 3]}\n"
        config = config.replace(name, name + limits)
    return config


def jobs() -> list[dict[str, Any]]:
    """Return jobs for every second pool first, so that half have loans, then for all pools."""
    rng, found = Random(0), []
    for i in range(RUNNING + PENDING):
        seconds = rng.choice((HOUR, 2 * HOUR, 2 * HOUR, 100 * HOUR))
        pool, gpus = i % POOLS, rng.choice((1, 2, 2, 4, 8, 10))
        if i < RUNNING:
            pool, gpus = pool - pool % 2, 1
        found.append(
            {"id": f"job-{i}", "pool": f"p{pool:04}", "gpus": gpus, "run_time": seconds,
             "duration": seconds}
        )  # fmt: skip
    return found


async def waiting(session: aiohttp.ClientSession) -> list[str]:
    """Jobs that wait, of those that were submitted last."""
    found, cursor = list[str](), ""
    while len(found) < PENDING // 2 and cursor is not None:
        query = {"phase": "pending", "limit": "1000", **({"cursor": cursor} if cursor else {})}
        async with session.get("/v1/jobs", params=query) as response:
            page = await response.json()
        found += [job["id"] for job in page["jobs"]]
        cursor = page.get("next")
    return found


async def measured(session: aiohttp.ClientSession, questions: int, pid: int) -> dict[str, Any]:
    """Return the milliseconds of successive answers, and of submissions at the same time."""
    jobs = await waiting(session)
    asked = Random(0).sample(jobs, questions)
    answers, submitted, inexact = list[float](), list[float](), 0
    task = asyncio.create_task(submissions(session, submitted))
    before = worked(pid)[0]
    for job_id in asked:
        began = time.perf_counter()
        async with session.get(f"/v1/jobs/{job_id}/why") as response:
            answer = await response.json()
            assert response.status == 200, answer
        answers.append(time.perf_counter() - began)
        inexact += not answer.get("exact", False)
    after = worked(pid)[0]
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return {
        "asked": questions,
        "milliseconds": percentiles(answers),
        "not exact": inexact,
        "core_milliseconds_of_the_daemon": round((after - before) / questions, 1),
        "submissions beside them, milliseconds": percentiles(submitted),
    }


async def case(group: int, questions: int, *, limits: bool) -> dict[str, Any]:
    config = configuration(group)
    if limits:
        config = limited(config)
    async with filled(config, jobs()) as (session, pools, pid):
        found = await measured(session, questions, pid)
    counts = {name: sum(pool[name] for pool in pools) for name in ("running", "waiting", "lent")}
    return {**counts, **found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--questions", type=int, default=300)
    questions = parser.parse_args().questions
    results: dict[str, Any] = {"load_before": os.getloadavg()[0]}
    for group in (POOLS, GROUP):
        for limits in (False, True):
            kind = "one group" if group == POOLS else f"groups of {GROUP}"
            name = f"{kind}, {'limits on loans' if limits else 'no limits'}"
            results[name] = asyncio.run(case(group, questions, limits=limits))
            print(name, results[name], flush=True)
    keep("answers/why_http", results)


if __name__ == "__main__":
    main()
