"""Durable submissions a second over HTTP: one at a time from 32 clients, and in batches.

The daemon is a process of its own (`sia serve`, simulated backend), the clients another one; each
sends the next job when the last one is answered. Also how long a reader waits meanwhile.

    python benchmarks/daemon_http.py [--seconds 60] [--clients 32] [--database postgresql://…]
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import aiohttp
import msgspec
from common import keep

CONFIG = """
[daemon]
state = "state"
database = "{database}"
listen = "127.0.0.1:0"
[backend]
kind = "simulated"
speed = 1.0
"""
POOLS, QUOTA = 50, 64
BATCH = 500
"""Jobs of a batch: what a script that submits a sweep sends."""

LOOK_EVERY = 0.5
"""Seconds between two looks of a reader."""


def configuration(database: str) -> str:
    """Fifty pools, at a port that is free."""
    return CONFIG.format(database=database) + "".join(
        f'[[pool]]\nname = "p{i}"\nquota = {QUOTA}\n' for i in range(POOLS)
    )


def job(number: int) -> bytes:
    """A job of 30 s, on one to four GPUs."""
    values = {
        "id": f"job-{number}", "pool": f"p{number % POOLS}", "gpus": 1 + number % 4,
        "duration": 30.0, "run_time": 60.0, "user": f"u{number % 97}", "name": "train",
        "command": ["python", "train.py", "--lr", "0.1"],
    }  # fmt: skip
    return msgspec.json.encode(values)


async def one_by_one(
    session: aiohttp.ClientSession, clients: int, seconds: float, first: int
) -> list[float]:
    """Seconds that each submission took."""
    until = time.perf_counter() + seconds
    took: list[float] = []
    numbers = iter(range(first, 10**9))

    async def client() -> None:
        while (began := time.perf_counter()) < until:
            async with session.post("/v1/jobs", data=job(next(numbers))) as response:
                assert response.status == 201, await response.text()
                await response.read()
            took.append(time.perf_counter() - began)

    await asyncio.gather(*(client() for _ in range(clients)))
    return took


async def in_batches(session: aiohttp.ClientSession, batches: int, first: int) -> float:
    """Jobs a second from two clients."""
    numbers = iter(range(batches))

    async def client() -> None:
        for batch in numbers:
            begin = first + batch * BATCH
            jobs = b",".join(job(begin + i) for i in range(BATCH))
            async with session.post("/v1/jobs", data=b'{"jobs":[%b]}' % jobs) as response:
                assert (await response.json())["accepted"] == BATCH

    began = time.perf_counter()
    await asyncio.gather(client(), client())
    return batches * BATCH / (time.perf_counter() - began)


async def looks(session: aiohttp.ClientSession, took: list[float]) -> None:
    """Look at the pools now and then."""
    while True:
        began = time.perf_counter()
        async with session.get("/v1/pools") as response:
            await response.read()
        took.append(time.perf_counter() - began)
        await asyncio.sleep(LOOK_EVERY)


def quantiles(took: list[float]) -> dict[str, float]:
    """In milliseconds."""
    ordered = sorted(took)
    at = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
    found = {name: ordered[int(q * len(ordered))] * 1000 for name, q in at.items()}
    return {name: round(value, 2) for name, value in (*found.items(), ("max", ordered[-1] * 1000))}


async def measure(url: str, token: str, clients: int, seconds: float) -> dict[str, Any]:
    """All of it, against a daemon that serves."""
    headers = {"Authorization": f"Bearer {token}"}
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(url, headers=headers, connector=connector) as session:
        await one_by_one(session, clients, 2.0, 10**7)  # warm
        reads: list[float] = []
        looking = asyncio.create_task(looks(session, reads))
        took = await one_by_one(session, clients, seconds, 0)
        looking.cancel()
        batches = await in_batches(session, 60, 2 * 10**7)
    return {
        "clients": clients,
        "seconds": seconds,
        "submissions_a_second": round(len(took) / seconds, 1),
        "submission_ms": quantiles(took),
        "look_at_pools_ms": quantiles(reads),
        "batch": BATCH,
        "in_batches_a_second": round(batches),
    }


def serve(folder: Path, database: str) -> tuple[subprocess.Popen[str], str]:
    """A daemon, and its address."""
    config = folder / "sia.toml"
    config.write_text(configuration(database))
    process = subprocess.Popen(
        [sys.executable, "-m", "sia", "serve", "--config", str(config)],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    return process, process.stdout.readline().split()[2].rstrip(";")


def peak(pid: int) -> float:
    """MB that a process held at most."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    line = next(line for line in lines if line.startswith("VmHWM"))
    return round(int(line.split()[1]) / 1024, 1)


def main() -> None:
    """Measure, print and keep."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--database", default="sia.db", help="A file, or an empty PostgreSQL.")
    asked = parser.parse_args()
    with TemporaryDirectory() as name:
        folder = Path(name)
        process, url = serve(folder, asked.database)
        try:
            token = (folder / "state" / "token").read_text().strip()
            found = asyncio.run(measure(url, token, asked.clients, asked.seconds))
            found["daemon_peak_mb"] = peak(process.pid)
        finally:
            process.terminate()
            process.wait()
    keep("daemon_http" if asked.database == "sia.db" else "daemon_http_postgres", found)


if __name__ == "__main__":
    main()
