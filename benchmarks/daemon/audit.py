"""Cost of the audit log: durable submissions per second with and without it, in one process.

The two alternate, so that other load on the machine affects both.

    python -m benchmarks.daemon.audit [--seconds 5] [--turns 6] [--clients 32]
"""

from __future__ import annotations

import argparse
import asyncio
import time
from itertools import count
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import daemon.service.service as module
from benchmarks.common import keep
from daemon.backends.simulated.backend import SimulatedBackend
from daemon.journal.journal import Journal
from daemon.model.inputs import Submit
from daemon.model.job import JobSpec
from daemon.model.setup import Setup
from daemon.runtime.clock import Clock
from daemon.service.service import Service
from sia.model import Pool

POOLS = 50
BATCH = 500
"""Jobs of a batch, as in `daemon_http.py`."""

RECORDS = module.records_of


def job(number: int) -> Submit:
    """A job that runs for 30 s."""
    spec = JobSpec(f"job-{number}", f"p{number % POOLS}", 1 + number % 4, duration=30.0)
    return Submit(spec, 60.0, actor="benchmark")


async def client(service: Service, numbers: Any, size: int, until: float) -> int:
    """So many were submitted, `size` at a time."""
    done = 0
    while time.perf_counter() < until:
        await service.submit([job(next(numbers)) for _ in range(size)], "127.0.0.1")
        done += size
    return done


async def turn(folder: Path, clients: int, size: int, seconds: float) -> float:
    """Jobs a second."""
    clock = Clock()
    setup = Setup(tuple(Pool(f"p{i}", 64) for i in range(POOLS)))
    service = Service(setup, SimulatedBackend(clock), Journal(folder / "sia.db"), clock)
    await service.start()
    began, numbers = time.perf_counter(), count()
    until = began + seconds
    done = sum(
        await asyncio.gather(*(client(service, numbers, size, until) for _ in range(clients)))
    )
    took = time.perf_counter() - began
    await service.stop()
    return done / took


def measured(clients: int, size: int, seconds: float, turns: int) -> dict[str, Any]:
    """The medians of both, and the share of its jobs that the audit costs."""
    rates: dict[bool, list[float]] = {True: [], False: []}
    for number in range(2 * turns):
        audited = number % 2 == 0
        module.records_of = RECORDS if audited else lambda *_: ()
        with TemporaryDirectory() as folder:
            rates[audited].append(asyncio.run(turn(Path(folder), clients, size, seconds)))
    with_, without = median(rates[True]), median(rates[False])
    return {
        "jobs at a time": size, "clients": clients, "with": round(with_), "without": round(without),
        "cost_pct": round(100 * (1 - with_ / without), 1),
    }  # fmt: skip


def main() -> None:
    """Measure, print and keep."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--clients", type=int, default=32)
    options = parser.parse_args()
    found = [
        measured(options.clients, 1, options.seconds, options.turns),
        measured(2, BATCH, options.seconds, options.turns),
    ]
    for each in found:
        print(each)
    keep("daemon/audit", {"runs": found})


if __name__ == "__main__":
    main()
