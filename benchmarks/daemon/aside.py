"""Cost of a forked child for the daemon: pause of the event loop, and memory copied afterwards.

`python -m benchmarks.daemon.aside [JOBS]`: an engine of 1,000 pools and 20,000 jobs (or JOBS, half
of them running). RUNS times a child is made that lives on for a while; then each job is looked at
once, which copies the pages that its reference counts are on. Milliseconds; no other work is done.
"""

from __future__ import annotations

import asyncio
import sys
import time
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.common import keep
from benchmarks.daemon.core import crowded
from daemon.answers.simulate.fork import child_worker
from daemon.service.observer import Observer

POOLS, RUNS = 1000, 15


class Pauses(Observer):
    """Keeps them, in seconds."""

    def __init__(self) -> None:
        """None yet."""
        self.heard: list[float] = []
        self.made = asyncio.Event()

    def paused(self, seconds: float) -> None:
        """A child is made."""
        self.heard.append(seconds)
        self.made.set()


def looked(engine: Any) -> float:
    """Seconds to look at each job once."""
    began = time.perf_counter()
    for record in engine.book.jobs.values():
        _ = (record.spec.id, record.submitted, record.phase)
    return time.perf_counter() - began


async def measure(engine: Any) -> tuple[list[float], list[float], list[float]]:
    """Return the pauses of forks, and times of a pass over all jobs with a child and without."""
    watch, loaded, alone = Pauses(), list[float](), list[float]()
    for _ in range(RUNS):
        alone.append(looked(engine))
        child = asyncio.create_task(child_worker(sleep, seconds=60, watch=watch))
        await watch.made.wait()
        watch.made.clear()
        loaded.append(looked(engine))
        child.cancel()
        with suppress(asyncio.CancelledError):
            await child
    return watch.heard, loaded, alone


def sleep() -> bytes:
    """What the child does."""
    time.sleep(60)
    return b""


def megabytes() -> int:
    """Resident memory (Linux)."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return round(pages * 4096 / 1e6)


def main() -> None:
    jobs = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000
    engine, inputs = crowded(POOLS, jobs // 2 // POOLS, jobs // 2, jobs // 2)
    for first in range(0, len(inputs), 1000):
        engine.step(1e9 + first, inputs[first : first + 1000])
    names = ("fork", "each job, beside a child", "each job, alone")
    found = dict(zip(names, asyncio.run(measure(engine)), strict=True))
    result = {"jobs": len(engine.book.jobs), "megabytes": megabytes(), "runs": RUNS}
    result["milliseconds"] = {
        name: {f.__name__: round(1e3 * f(some), 2) for f in (min, median, max)}
        for name, some in found.items()
    }
    keep("daemon/aside" if jobs == 20_000 else f"daemon_aside_{jobs}", result)


if __name__ == "__main__":
    main()
