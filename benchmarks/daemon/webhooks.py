"""Webhooks: events per second to one receiver, their delay, and the cost of a dead receiver.

The daemon (`sia serve`, simulated backend), the receiver and the clients are three processes. Late
is from the answer of a submission, which is durable then, to the arrival of its event. What
receivers cost is the submissions a second of 32 clients with none, one that is well, one where
nobody listens and one that takes requests and never answers, in turn.

    python -m benchmarks.daemon.webhooks [--seconds 15] [--rounds 3]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import aiohttp
from aiohttp import web

from benchmarks.common import keep, spread
from benchmarks.daemon.http import BATCH, configuration, in_batches, one_by_one, quantiles
from benchmarks.daemon.http import job as a_job

HOOK = """
[[webhook]]
name = "bench"
url = "http://127.0.0.1:{port}/"
secret_file = "secret"
events = ["submitted"]
batch = {batch}
"""
EVENTS = 20_000
"""Events of a burst: some seconds of the fastest receiver."""


class Receiver(NamedTuple):
    """Where it listens, and its process."""

    port: int
    process: subprocess.Popen[str]


async def receive() -> None:
    """Note when each job is heard of first; say so to whoever asks."""
    seen: dict[str, float] = {}
    requests = 0

    async def take(request: web.Request) -> web.Response:
        nonlocal requests
        requests += 1
        now = time.time()
        for event in json.loads(await request.read())["events"]:
            seen.setdefault(event["job"], now)
        return web.Response()

    async def tell(_: web.Request) -> web.Response:
        return web.json_response({"seen": seen, "requests": requests})

    app = web.Application(client_max_size=2**24)
    app.add_routes([web.post("/", take), web.get("/", tell)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    listening = socket.create_server(("127.0.0.1", 0))
    await web.SockSite(runner, listening).start()
    print(listening.getsockname()[1], flush=True)
    await asyncio.Event().wait()


@contextmanager
def receiver() -> Iterator[Receiver]:
    """One that is well."""
    process = subprocess.Popen(
        [sys.executable, __file__, "--receive"], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        yield Receiver(int(process.stdout.readline()), process)
    finally:
        process.kill()
        process.wait()


@contextmanager
def silent() -> Iterator[int]:
    """The port of one that takes connections, and nothing else."""
    with socket.create_server(("127.0.0.1", 0), backlog=100) as listening:
        yield listening.getsockname()[1]


AS_JSON = {"Content-Type": "application/json"}


def nobody() -> int:
    """Return a port on which no process listens."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


@contextmanager
def serving(port: int | None, batch: int = 100) -> Iterator[tuple[str, str]]:
    """A daemon that tells a receiver, if there is one: its address and token."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "secret").write_text("only-for-this-benchmark")
        (folder / "secret").chmod(0o600)
        more = "" if port is None else HOOK.format(port=port, batch=batch)
        (folder / "sia.toml").write_text(configuration() + more)
        process = subprocess.Popen(
            [sys.executable, "-m", "sia", "serve", "--config", folder / "sia.toml"],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        try:
            assert process.stdout is not None
            url = process.stdout.readline().split()[2].rstrip(";")
            yield url, (folder / "state" / "token").read_text().strip()
        finally:
            process.terminate()
            process.wait()


def client(url: str, token: str) -> aiohttp.ClientSession:
    """Of the daemon."""
    connector = aiohttp.TCPConnector(limit=0)
    return aiohttp.ClientSession(
        url, headers={"Authorization": f"Bearer {token}"}, connector=connector
    )


async def all_heard(port: int, count: int) -> tuple[dict[str, float], int]:
    """When each of so many jobs was heard of, and in how many requests."""
    async with aiohttp.ClientSession() as session:
        while True:
            async with session.get(f"http://127.0.0.1:{port}/") as answer:
                seen = await answer.json()
            if len(seen["seen"]) >= count:
                return seen["seen"], seen["requests"]
            await asyncio.sleep(0.5)


async def burst(url: str, token: str, port: int) -> dict[str, float]:
    """So many events at once, until the last is there."""
    async with client(url, token) as session:
        began = time.time()
        await in_batches(session, EVENTS // BATCH, 0)
    seen, requests = await all_heard(port, EVENTS)
    took = max(seen.values()) - began
    return {"events_a_second": round(EVENTS / took), "requests_a_second": round(requests / took)}


async def late(url: str, token: str, port: int, seconds: float) -> dict[str, Any]:
    """One client after the other's fashion: a job, its answer, the next."""
    answered: dict[str, float] = {}
    until = time.perf_counter() + seconds
    numbers = iter(range(10**9))
    async with client(url, token) as session:

        async def submit() -> None:
            while time.perf_counter() < until:
                number = next(numbers)
                async with session.post(
                    "/v1/jobs", data=a_job(number), headers=AS_JSON
                ) as response:
                    assert response.status == 201, await response.text()
                    await response.read()
                answered[f"job-{number}"] = time.time()

        await asyncio.gather(*(submit() for _ in range(32)))
    seen, requests = await all_heard(port, len(answered))
    took = [max(0.0, seen[job] - at) for job, at in answered.items()]
    return {
        "submissions_a_second": round(len(answered) / seconds),
        "late_ms": quantiles(took),
        "events_a_request": round(len(answered) / requests, 1),
    }


async def submissions(url: str, token: str, seconds: float) -> float:
    """A second, of 32 clients."""
    await one_by_one(url, token, 32, 1.0, 10**7)
    took = await one_by_one(url, token, 32, seconds, 0)
    return len(took) / seconds


def cost(seconds: float, rounds: int) -> dict[str, Any]:
    """Return submissions per second by the state of the receiver."""
    found: dict[str, list[float]] = {"none": [], "well": [], "nobody listens": [], "silent": []}
    with receiver() as well, silent() as mute:
        ports = {"none": None, "well": well.port, "nobody listens": nobody(), "silent": mute}
        for _ in range(rounds):
            for name, port in ports.items():
                with serving(port) as daemon:
                    found[name].append(asyncio.run(submissions(*daemon, seconds)))
    return {name: spread(rates) for name, rates in found.items()}


def main() -> None:
    """Measure, print and keep."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--receive", action="store_true", help="Be the receiver.")
    asked = parser.parse_args()
    if asked.receive:
        asyncio.run(receive())
        return
    found: dict[str, Any] = {"events": EVENTS}
    for batch in (100, 1):
        with receiver() as well, serving(well.port, batch) as daemon:
            found[f"burst, batch {batch}"] = asyncio.run(burst(*daemon, well.port))
    with receiver() as well, serving(well.port) as daemon:
        found["under load"] = asyncio.run(late(*daemon, well.port, asked.seconds))
    found["submissions a second by receiver"] = cost(asked.seconds, asked.rounds)
    keep("daemon/webhooks", found)


if __name__ == "__main__":
    main()
