"""Durable submissions a second over HTTP: one at a time from 64 clients, and in batches.

The daemon is a process of its own (`sia serve`, simulated backend), the clients another one; each
client sends the next job when the last one is answered. The clients write and read bare HTTP, as a
general HTTP client needs as much CPU time for a request as the daemon. The benchmark also measures
how long a reader waits meanwhile, and the CPU time of the daemon, of its children and of the
clients per submission: on a machine that others use too, CPU time says more than the rate does.
With `--waiting` so many jobs wait in the queues before the measurement begins.

    python -m benchmarks.daemon.http [--seconds 60] [--clients 64] [--waiting 50000]
        [--database postgresql://…]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter, process_time
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import msgspec

from benchmarks.common import keep

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

AS_JSON = {"Content-Type": "application/json"}

LONG = 86400.0
"""Duration in seconds of the jobs that fill the queues: none ends during the measurement."""

SHORT = 1.0
"""Seconds of the jobs before them: the daemon knows how long jobs last once some have ended, and
then makes estimates, as it does on any cluster that is in use."""

QUIET = 0.1
"""Seconds of CPU time within a second, below which a daemon has nothing left to do."""

MOST_QUIET = 120
"""Seconds that the benchmark waits for that."""

LOOK_EVERY = 0.5
"""Seconds between two requests of a reader."""


def configuration(database: str) -> str:
    """Fifty pools, at a port that is free."""
    return CONFIG.format(database=database) + "".join(
        f'[[pool]]\nname = "p{i}"\nquota = {QUOTA}\n' for i in range(POOLS)
    )


def job(number: int, seconds: float = 30.0) -> bytes:
    """A job of so many seconds, on one to four GPUs."""
    values = {
        "id": f"job-{number}", "pool": f"p{number % POOLS}", "gpus": 1 + number % 4,
        "duration": seconds, "run_time": 2 * seconds, "user": f"u{number % 97}", "name": "train",
        "command": ["python", "train.py", "--lr", "0.1"],
    }  # fmt: skip
    return msgspec.json.encode(values)


class Client(asyncio.Protocol):
    """Sends one job after the other over one connection until a time."""

    def __init__(
        self, head: bytes, numbers: Iterator[int], until: float, took: list[float]
    ) -> None:
        """Send these jobs, each after this head of a request; add the seconds of each to `took`."""
        self._head, self._numbers, self._until, self._took = head, numbers, until, took
        self._heard = b""
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the first job."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._send()

    def _send(self) -> None:
        self._began = perf_counter()
        if self._began >= self._until:
            self._transport.close()
            return
        body = job(next(self._numbers))
        self._transport.write(b"%b%d\r\n\r\n%b" % (self._head, len(body), body))

    def data_received(self, data: bytes) -> None:
        """Send the next job once the answer is complete."""
        self._heard += data
        head, blank, body = self._heard.partition(b"\r\n\r\n")
        if not blank or len(body) < int(head.lower().partition(b"content-length:")[2].split()[0]):
            return
        if not head.startswith(b"HTTP/1.1 201 "):
            self.over.set_exception(AssertionError(self._heard.decode()))
            return
        self._heard = b""
        self._took.append(perf_counter() - self._began)
        self._send()

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        if not self.over.done():
            self.over.set_result(None)


async def one_by_one(url: str, token: str, clients: int, seconds: float, first: int) -> list[float]:
    """Seconds that each submission took."""
    address = urlsplit(url)
    head = (
        f"POST /v1/jobs HTTP/1.1\r\nHost: {address.netloc}\r\nAuthorization: Bearer {token}\r\n"
        "Content-Type: application/json\r\nContent-Length: "
    ).encode()
    took: list[float] = []
    numbers, until = iter(range(first, 10**9)), perf_counter() + seconds
    loop = asyncio.get_running_loop()
    begun = [
        await loop.create_connection(
            lambda: Client(head, numbers, until, took), address.hostname, address.port
        )
        for _ in range(clients)
    ]
    await asyncio.gather(*(client.over for _, client in begun))
    return took


async def in_batches(
    session: aiohttp.ClientSession, batches: int, first: int, seconds: float = 30.0
) -> float:
    """Jobs a second from two clients; each job runs for so many seconds."""
    numbers = iter(range(batches))

    async def client() -> None:
        for batch in numbers:
            begin = first + batch * BATCH
            jobs = b",".join(job(begin + i, seconds) for i in range(BATCH))
            body = b'{"jobs":[%b]}' % jobs
            async with session.post("/v1/jobs", data=body, headers=AS_JSON) as response:
                assert (await response.json())["accepted"] == BATCH

    began = perf_counter()
    await asyncio.gather(client(), client())
    return batches * BATCH / (perf_counter() - began)


async def looks(session: aiohttp.ClientSession, took: list[float]) -> None:
    """Look at the pools now and then."""
    while True:
        began = perf_counter()
        async with session.get("/v1/pools") as response:
            await response.read()
        took.append(perf_counter() - began)
        await asyncio.sleep(LOOK_EVERY)


def quantiles(took: list[float]) -> dict[str, float]:
    """In milliseconds."""
    ordered = sorted(took)
    at = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
    found = {name: ordered[int(q * len(ordered))] * 1000 for name, q in at.items()}
    return {name: round(value, 2) for name, value in (*found.items(), ("max", ordered[-1] * 1000))}


async def measure(
    url: str, token: str, pid: int, clients: int, seconds: float, waiting: int
) -> dict[str, Any]:
    """All of it, against a daemon that serves as this process."""
    headers = {"Authorization": f"Bearer {token}"}
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(url, headers=headers, connector=connector) as session:
        if waiting:
            full = POOLS * QUOTA * 2 // 5  # jobs that run: they have 2.5 GPUs on average
            await in_batches(session, -(-full // BATCH), 4 * 10**7, SHORT)
            await in_batches(session, -(-(waiting + full) // BATCH), 3 * 10**7, LONG)
        await one_by_one(url, token, clients, 2.0, 10**7)  # warm
        await quiet(pid)
        reads: list[float] = []
        looking = asyncio.create_task(looks(session, reads))
        before, mine = cpu_of(pid), process_time()
        took = await one_by_one(url, token, clients, seconds, 0)
        mine = process_time() - mine
        own, children = (b - a for a, b in zip(before, cpu_of(pid), strict=True))
        looking.cancel()
        batches = await in_batches(session, 60, 2 * 10**7)
    return {
        "clients": clients,
        "seconds": seconds,
        "waiting_before": waiting,
        "daemon_cpu_us_per_submission": round(1e6 * own / len(took)),
        "children_cpu_us_per_submission": round(1e6 * children / len(took)),
        "clients_cpu_us_per_submission": round(1e6 * mine / len(took)),
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


def cpu_of(pid: int) -> tuple[float, float]:
    """Seconds of CPU time of a process, and of its children that have ended."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    user, system, child_user, child_system = map(int, fields[11:15])
    ticks = os.sysconf("SC_CLK_TCK")
    return (user + system) / ticks, (child_user + child_system) / ticks


async def quiet(pid: int) -> None:
    """Wait until a daemon has finished its work after an answer, such as estimates."""
    before = sum(cpu_of(pid))
    for _ in range(MOST_QUIET):
        await asyncio.sleep(1.0)
        now = sum(cpu_of(pid))
        if now - before < QUIET:
            return
        before = now


def peak(pid: int) -> float:
    """MB that a process held at most."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    line = next(line for line in lines if line.startswith("VmHWM"))
    return round(int(line.split()[1]) / 1024, 1)


def main() -> None:
    """Measure, print and keep."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--waiting", type=int, default=0, help="Jobs that wait beforehand.")
    parser.add_argument("--database", default="sia.db", help="A file, or an empty PostgreSQL.")
    asked = parser.parse_args()
    with TemporaryDirectory() as name:
        folder = Path(name)
        process, url = serve(folder, asked.database)
        try:
            token = (folder / "state" / "token").read_text().strip()
            found = asyncio.run(
                measure(url, token, process.pid, asked.clients, asked.seconds, asked.waiting)
            )
            found["daemon_peak_mb"] = peak(process.pid)
        finally:
            process.terminate()
            process.wait()
    name = "daemon/http" if asked.database == "sia.db" else "daemon/http_postgres"
    keep(f"{name}_waiting" if asked.waiting else name, found)


if __name__ == "__main__":
    main()
