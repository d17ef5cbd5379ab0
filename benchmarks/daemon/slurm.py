"""Job releases per second through slurmrestd, and cost of a poll with many ended jobs.

On a Slurm of its own, with four fake nodes: python -m benchmarks.daemon.slurm [JOBS_OVER …]
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from typing import Any

from benchmarks.common import keep
from daemon.backends.slurm.interface import SlurmSubmission, SlurmTarget
from daemon.backends.slurm.rest import Rest
from tests.support.clusters.slurm import SlurmCluster, slurm_cluster

STARTS = 200
LOOKS = 20


def wanted(folder: str, number: int) -> SlurmSubmission:
    place = SlurmTarget("vision", [("n1", 1)])
    return SlurmSubmission(
        f"j{number}", "", place, "#!/bin/sh\ntrue\n", folder, 5, "/dev/null", "/dev/null"
    )


async def each(work: Callable[[], Awaitable[object]], rounds: int) -> float:
    """Seconds of one, on average, one after the other."""
    began = time.perf_counter()
    for _ in range(rounds):
        await work()
    return (time.perf_counter() - began) / rounds


async def over(door: Rest, folder: str, many: int) -> None:
    """Have so many jobs be there that are over."""
    for first in range(0, many, 16):
        count = min(16, many - first)
        refs = await asyncio.gather(*(door.submit(wanted(folder, i)) for i in range(count)))
        await asyncio.gather(*(door.cancel(ref) for ref in refs))


async def measure(cluster: SlurmCluster, counts: list[int]) -> dict[str, Any]:
    folder = str(cluster.root / "out")
    door = Rest(cluster.url, cluster.jwt, "root")
    try:
        began = time.perf_counter()
        for i in range(STARTS):
            ref = await door.submit(wanted(folder, i))
            await door.release(ref, SlurmTarget("vision", [("n1", 1)]))
        starts = round(STARTS / (time.perf_counter() - began), 1)
        results: dict[str, Any] = {"starts_a_second": starts}
        cluster.cancel_all()
        there = 0
        for count in counts:
            await over(door, folder, count - there)
            there = count
            listed = await each(door.jobs, 3)
            await asyncio.sleep(3)
            same = await each(lambda: door.jobs(changed=True), LOOKS)
            one = await each(lambda: door.job("1"), LOOKS)
            seconds = {"all_s": listed, "unchanged_s": same, "one_job_s": one}
            results[f"{count} over"] = {name: round(took, 4) for name, took in seconds.items()}
    finally:
        await door.close()
    return results


def main() -> None:
    counts = [int(word) for word in sys.argv[1:]] or [0, 1000, 10_000]
    with (
        tempfile.TemporaryDirectory(prefix="sia-slurm-") as folder,
        slurm_cluster(folder, min_job_age=7200) as cluster,
    ):
        keep("daemon/slurm", asyncio.run(measure(cluster, counts)))


if __name__ == "__main__":
    main()
