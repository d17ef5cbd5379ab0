"""Cost of job starts and ends in the daemon's backends, and overhead of a local job.

`simulated`: starts in a second, and ends that fall due. `local`: real processes (`sleep`) in a
second, one start after the other; the processor time of each from start to end, its supervisor's
included; and the memory of a supervisor, resident and shared with no other.
"""

from __future__ import annotations

import asyncio
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from types import SimpleNamespace

from benchmarks.common import keep
from daemon.backends.local.backend import LocalBackend
from daemon.backends.simulated.backend import SimulatedBackend
from daemon.model.inputs import Ended, Observation, Started
from daemon.model.job import JobSpec
from daemon.model.outputs import StartEffect

TIMERS = 100_000
"""Jobs of the simulated backend: as many as run in a large cloud."""

PROCESSES = 200
"""Jobs of the local backend: more than run on any one machine."""


class HandClock:
    """Time stands still until it is turned on."""

    time = 0.0

    def now(self) -> float:
        """The present."""
        return self.time

    async def sleep_until(self, time: float) -> None:
        """Wait, looking again and again."""
        while self.time < time:  # noqa: ASYNC110 - nobody says when
            await asyncio.sleep(0.0)


async def simulated() -> dict[str, float]:
    reports: list[Observation] = []
    clock = HandClock()
    backend = SimulatedBackend(clock)
    await backend.open(SimpleNamespace(sink=reports.append))
    orders = [order(f"j{i}", duration=1.0 + i / TIMERS) for i in range(TIMERS)]
    seconds = time.perf_counter()
    for one in orders:
        await backend.start(one)
    started = time.perf_counter()
    clock.time = 3.0
    await asyncio.sleep(0.01)
    ended = time.perf_counter()
    assert len(reports) == 2 * TIMERS
    await backend.close()
    return {
        "starts_a_second": round(TIMERS / (started - seconds)),
        "ends_a_second": round(TIMERS / (ended - started - 0.01)),
    }


async def local(jobs: int = PROCESSES) -> dict[str, float]:
    reports: list[Observation] = []
    with tempfile.TemporaryDirectory() as folder:
        backend = LocalBackend(Path(folder), gpus=8)
        await backend.open(SimpleNamespace(sink=reports.append))
        begun, spent = time.perf_counter(), processor()
        for i in range(jobs):
            await backend.start(order(f"j{i}", command=("sleep", "600")))
        await until(lambda: count(reports, Started) == jobs)
        started = time.perf_counter()
        resident, own = zip(*map(memory, supervisors(folder)), strict=True)
        ending = time.perf_counter()
        for i in range(jobs):
            await backend.stop(f"j{i}", 1, "end")
        await until(lambda: count(reports, Ended) == jobs)
        ended = time.perf_counter()
        await backend.close()
    return {
        "jobs": jobs,
        "starts_a_second": round(jobs / (started - begun), 1),
        "ends_a_second": round(jobs / (ended - ending), 1),
        "processor_ms_a_job": round(1e3 * (processor() - spent) / jobs, 1),
        "supervisor_resident_kb": median(resident),
        "supervisor_own_kb": median(own),
    }


def order(
    name: str, *, command: tuple[str, ...] = (), duration: float | None = None
) -> StartEffect:
    spec = JobSpec(name, "vision", 1, command=command, duration=duration)
    return StartEffect(name, 1, spec, (("local", (0,)),))


async def until(true: Callable[[], bool]) -> None:
    while not true():  # noqa: ASYNC110 - as above
        await asyncio.sleep(0.002)


def count(reports: list[Observation], kind: type) -> int:
    return sum(isinstance(one, kind) for one in reports)


def processor() -> float:
    """Seconds of this process, and of those that it has waited for."""
    who = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return sum(used.ru_utime + used.ru_stime for used in map(resource.getrusage, who))


def supervisors(folder: str) -> list[int]:
    """Processes with this folder on their command line."""
    named = Path("/proc").glob("[0-9]*/cmdline")
    return [int(path.parent.name) for path in named if folder.encode() in path.read_bytes()]


def memory(pid: int) -> tuple[int, int]:
    """Resident and own memory, kB."""
    rows = [line.split() for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()]
    sizes = {row[0]: int(row[1]) for row in rows[1:]}
    return sizes["Rss:"], sizes["Private_Dirty:"] + sizes["Private_Clean:"]


if __name__ == "__main__":
    keep("daemon/backends", {"simulated": asyncio.run(simulated()), "local": asyncio.run(local())})
