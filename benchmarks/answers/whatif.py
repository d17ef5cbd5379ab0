"""What-if questions to a loaded daemon: time of an answer, and delay of other requests meanwhile.

The daemon is a process of its own (`sia serve`, simulated backend): 1,000 pools of 10 GPUs, 10,000
jobs that run and 10,000 that wait. Pools are one sharing group, or groups of ten.

    python -m benchmarks.answers.whatif [--questions 100]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import aiohttp

from benchmarks.common import keep

CONFIG = """
[daemon]
state = "state"
listen = "127.0.0.1:0"
forecast = "none"
[backend]
kind = "simulated"
"""
POOLS, QUOTA, RUNNING, PENDING = 1000, 10, 10_000, 10_000
BATCH = 1000
TICKS = os.sysconf("SC_CLK_TCK")
GROUP = 10
"""Pools of a sharing group, in the second case."""

QUESTIONS: dict[str, dict[str, Any]] = {
    "a new job": {"submit": [{"pool": "p0007", "gpus": 4, "run_time": 3600}]},
    "a quota": {"pools": [{"pool": "p0007", "quota": 20}]},
    "a job cancelled": {"jobs": [{"job": "job-10007", "cancel": True}]},
    "lending off": {"lending": False},
}


def configuration(group: int) -> str:
    """Pools, so many in a sharing group."""
    pools = (
        f'[[pool]]\nname = "p{i:04}"\nquota = {QUOTA}\ngroup = "g{i // group}"\n'
        for i in range(POOLS)
    )
    return CONFIG + "".join(pools)


def jobs(pending: int = PENDING) -> list[dict[str, Any]]:
    """Those that run first, then so many that wait; they last a few hours on average."""
    rng, found = Random(0), []
    for i in range(RUNNING + pending):
        seconds = 60.0 + rng.expovariate(1 / 20_000)
        gpus = 1 if i < RUNNING else rng.choice((1, 1, 2, 2, 4, 8))
        found.append(
            {
                "id": f"job-{i}", "pool": f"p{i % POOLS:04}", "gpus": gpus, "duration": seconds,
                "run_time": seconds, "user": f"u{i % 97}", "name": "train",
                "command": ["python", "train.py", "--config", f"runs/{i}.toml"],
            }
        )  # fmt: skip
    return found


@contextmanager
def served(folder: Path, config: str) -> Iterator[tuple[str, str, int]]:
    """A daemon's address, its token and its process."""
    (folder / "sia.toml").write_text(config)
    with (folder / "log").open("wb") as log:
        daemon = subprocess.Popen(
            [sys.executable, "-m", "sia", "serve", "--config", "sia.toml"],
            cwd=folder, stdout=subprocess.PIPE, stderr=log, text=True,
        )  # fmt: skip
        try:
            assert daemon.stdout is not None
            line = daemon.stdout.readline()
            address = next(word for word in line.split() if word.startswith("http")).rstrip("/,;")
            yield address, (folder / "state" / "token").read_text().strip(), daemon.pid
        finally:
            daemon.terminate()
            daemon.wait()


def megabytes(pid: int) -> int:
    """Of memory that a process has."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) // 1024 for line in lines if line.startswith("VmRSS"))


def worked(pid: int) -> tuple[float, float]:
    """Milliseconds of a core that a process has had, and its children that are gone."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:15]
    own, own_system, children, their_system = (int(f) * 1000 / TICKS for f in fields)
    return own + own_system, children + their_system


async def ask(session: aiohttp.ClientSession, path: str, body: Any) -> tuple[float, Any]:
    """Return the seconds until the answer, and the answer."""
    began = time.perf_counter()
    async with session.post(path, json=body) as response:
        answer = await response.json()
        assert response.status < 300, answer
    return time.perf_counter() - began, answer


async def fill(session: aiohttp.ClientSession, todo: list[dict[str, Any]]) -> None:
    """Submit all, and wait until as many run as can."""
    for first in range(0, len(todo), BATCH):
        await ask(session, "/v1/jobs", {"jobs": todo[first : first + BATCH]})
        await asyncio.sleep(0.2)  # they start before the next ones come


async def submissions(session: aiohttp.ClientSession, took: list[float]) -> None:
    """One after the other, until cancelled: held, so that the daemon stays as crowded as it is."""
    i = 0
    while True:
        i += 1
        body = {"id": f"n{i}-{id(took)}", "pool": "p0000", "gpus": 1, "hold": True}
        took.append((await ask(session, "/v1/jobs", body))[0])
        await asyncio.sleep(0.005)


async def measured(session: aiohttp.ClientSession, questions: int, pid: int) -> dict[str, Any]:
    """Milliseconds of each kind of question, and of submissions without and with them."""
    found: dict[str, Any] = {}
    for name, question in QUESTIONS.items():
        before = worked(pid)
        answers = [await ask(session, "/v1/whatif", question) for _ in range(questions)]
        await asyncio.sleep(0.5)  # the last children are gone
        daemon, children = (b - a for a, b in zip(before, worked(pid), strict=True))
        answer = answers[-1][1]
        found[name] = {
            "milliseconds": quantiles([took for took, _ in answers]),
            "core_milliseconds_of_a_child": round(children / questions / 2, 1),
            "core_milliseconds_of_the_daemon": round(daemon / questions, 1),
            "starts": answer["starts"],
            "seconds_played": round(answer["until"] - answer["time"], 1),
            "earlier": sum(pool["earlier"] for pool in answer["pools"]),
            "later": sum(pool["later"] for pool in answer["pools"]),
        }
    for name, question in {"alone": None, "beside questions": QUESTIONS["a new job"]}.items():
        took: list[float] = []
        task = asyncio.create_task(submissions(session, took))
        for _ in range(questions):
            if question is None:
                await asyncio.sleep(0.2)
            else:
                await ask(session, "/v1/whatif", question)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        found[f"submissions {name}, milliseconds"] = quantiles(took)
    return found


def quantiles(took: list[float]) -> dict[str, float]:
    """Of so many seconds, in milliseconds."""
    took = sorted(took)
    places = {"min": 0, "p50": len(took) // 2, "p99": len(took) * 99 // 100, "max": -1}
    found = {name: round(took[place] * 1000, 1) for name, place in places.items()}
    return {**found, "runs": len(took)}


@asynccontextmanager
async def filled(
    config: str, submitted: list[dict[str, Any]]
) -> AsyncIterator[tuple[aiohttp.ClientSession, list[Any], int]]:
    """Run a daemon with these jobs; give a session with it, its pools, and its process id."""
    with TemporaryDirectory() as folder, served(Path(folder), config) as (url, token, pid):
        headers = {"Authorization": f"Bearer {token}"}
        async with aiohttp.ClientSession(url, headers=headers) as session:
            await fill(session, submitted)
            async with session.get("/v1/pools") as response:
                pools = (await response.json())["pools"]
            yield session, pools, pid


async def case(group: int, questions: int) -> dict[str, Any]:
    async with filled(configuration(group), jobs()) as (session, pools, pid):
        found = await measured(session, questions, pid)
        return {
            "gpus_running": sum(pool["running"] for pool in pools),
            "jobs_waiting": sum(pool["waiting"] for pool in pools),
            "megabytes": megabytes(pid),
            **found,
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--questions", type=int, default=100)
    questions = parser.parse_args().questions
    keep(
        "answers/whatif",
        {
            "load_before": os.getloadavg()[0],
            "one group": asyncio.run(case(POOLS, questions)),
            f"groups of {GROUP}": asyncio.run(case(GROUP, questions)),
        },
    )


if __name__ == "__main__":
    main()
