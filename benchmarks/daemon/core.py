"""The daemon without HTTP: submissions, steps, job starts and restarts, with a synced journal.

`python -m benchmarks.daemon.core [FOLDER]`: FOLDER (default: the system's temporary one) is on the
disk that is measured.
"""

from __future__ import annotations

import asyncio
import gc
import resource
import sys
import time
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.common import keep, spread
from daemon.backends.simulated.backend import SimulatedBackend
from daemon.engine.engine import Engine
from daemon.journal.journal import Journal, JournalEntry, parts_of
from daemon.journal.recovery import recover
from daemon.model.inputs import Ended, Input, Started, Submit
from daemon.model.job import JobSpec
from daemon.model.outputs import Accepted, StartEffect
from daemon.model.setup import Setup
from daemon.runtime.clock import Anchor, Clock
from daemon.service.service import Service
from sia.model import Pool

CLIENTS, SECONDS = 32, 10.0
BATCH = 500
POOLS, QUOTA, PENDING = 1000, 10, 50_000
PASSES = 1000
RUNNING, QUEUED = 10_000, 100_000


def spec(job_id: str, pool: str, gpus: int = 1, duration: float = 1e6) -> JobSpec:
    """A job as scripts send them."""
    command = ("python", "train.py", "--config", f"runs/{job_id}.toml")
    return JobSpec(job_id, pool, gpus, command, {"SEED": "1"}, "/home/me/work", "me", "train",
                   duration=duration)  # fmt: skip


def percentiles(seconds: list[float]) -> dict[str, float]:
    """In milliseconds."""
    ordered = sorted(seconds)
    found = {f"p{q}": ordered[min(len(ordered) - 1, len(ordered) * q // 100)] for q in (50, 99)}
    return {name: round(value * 1000, 2) for name, value in found.items() | {("max", ordered[-1])}}


def service_in(folder: Path, setup: Setup) -> Service:
    clock = Clock()
    return Service(setup, SimulatedBackend(clock), Journal(folder / "db"), clock)


async def submissions(folder: Path, batch: int) -> dict[str, Any]:
    """Clients that each submit again once they are answered."""
    service = service_in(folder, Setup((Pool("a", 8), Pool("b", 8))))
    await service.start()
    waits: list[float] = []
    until = time.perf_counter() + SECONDS

    async def client(name: int) -> None:
        i = 0
        while time.perf_counter() < until:
            jobs = [Submit(spec(f"{name}-{i + j}", "ab"[name % 2])) for j in range(batch)]
            i += batch
            began = time.perf_counter()
            answers = await service.submit(jobs)
            waits.append(time.perf_counter() - began)
            assert answers == [Accepted()] * batch

    began = time.perf_counter()
    await asyncio.gather(*(client(i) for i in range(CLIENTS if batch == 1 else 4)))
    took = time.perf_counter() - began
    steps = service.status().steps
    await service.stop()
    return {
        "per_second": round(len(waits) * batch / took),
        "milliseconds": percentiles(waits),
        "commits": steps,
    }


def crowded(pools: int, quota: int, running: int, queued: int) -> tuple[Engine, list[Input]]:
    """An engine with so many jobs, and the inputs that made it so."""
    owned = tuple(Pool(f"p{i:04}", quota) for i in range(pools))
    engine, rng = Engine.new(Setup(owned)), Random(0)
    inputs: list[Input] = []
    for i in range(running + queued):
        gpus = 1 if i < running else rng.choice((1, 1, 2, 2, 4, 8))
        run_time = rng.choice((100.0, 1000.0, 20_000.0, 90_000.0))
        inputs.append(Submit(spec(f"job-{i}", f"p{i % pools:04}", gpus), run_time))
    return engine, inputs


def passes() -> dict[str, Any]:
    """One job ends and one comes, with many pools and many jobs waiting."""
    engine, inputs = crowded(POOLS, QUOTA, POOLS * QUOTA, PENDING)
    now, waits, loaded, started = 1e9, [], [], []
    for first in range(0, len(inputs), 1000):
        now += 1.0
        step = engine.step(now, inputs[first : first + 1000])
        started += [e.job for e in step.effects if isinstance(e, StartEffect)]
    gc.collect()
    gc.freeze()
    rng = Random(1)
    for i in range(PASSES):
        now += 1.0
        ending = started.pop(rng.randrange(len(started)))
        some = [Ended(ending, 1, 0), Submit(spec(f"n{i}", f"p{i % POOLS:04}", 2), 500.0)]
        began = time.perf_counter()
        step = engine.step(now, some)
        waits.append(time.perf_counter() - began)
        began = time.perf_counter()
        engine.do_idle_work()  # as the service does after each step
        loaded.append(time.perf_counter() - began)
        started += [e.job for e in step.effects if isinstance(e, StartEffect)]
    return {
        "waiting": engine.core.state.waiting,
        "milliseconds": percentiles(waits),
        "beside_milliseconds": percentiles(loaded),
    }


async def starts(folder: Path) -> dict[str, Any]:
    """Jobs that are over at once: each is submitted, started, seen to run, and seen to end."""
    service = service_in(folder, Setup((Pool("a", 64), Pool("b", 64))))
    await service.start()
    jobs, over = 10_000, 0
    began = time.perf_counter()
    for first in range(0, jobs, BATCH):
        some = range(first, first + BATCH)
        await service.submit([Submit(spec(f"{i}", "ab"[i % 2], 1, 1e-3), 1.0) for i in some])
    while service.book.jobs:
        await asyncio.sleep(0.01)
        over = len(service.book.ended)
    took = time.perf_counter() - began
    await service.stop()
    return {"jobs": jobs, "over": over, "per_second": round(jobs / took)}


def restart(folder: Path) -> dict[str, Any]:
    """From a snapshot and the records of as many inputs as come between two."""
    engine, inputs = crowded(POOLS, QUOTA, RUNNING, QUEUED)
    journal = Journal(folder / "db")
    setup = engine.book.setup
    engine = recover(journal, setup)
    now, tail = 1e9, 20_000
    for first in range(0, len(inputs), 200):
        now += 0.1
        some = inputs[first : first + 200]
        _take(journal, engine, now, some)
        if first == len(inputs) - tail:
            began = time.perf_counter()
            data = engine.dump()
            dumped = time.perf_counter() - began
            for part in parts_of(journal.last, data):
                journal.save(part)
    journal.close()
    seconds, cpu = [], []
    for _ in range(3):
        gc.collect()
        began, used = time.perf_counter(), time.process_time()
        again = Journal(folder / "db")
        engine = recover(again, setup)
        seconds.append(time.perf_counter() - began)
        cpu.append(time.process_time() - used)
        again.close()
    on_gpus = len(engine.core.state.jobs) - engine.core.state.waiting
    return {
        "running": on_gpus,
        "queued": engine.core.state.waiting,
        "tail_inputs": tail,
        "seconds": spread(seconds),
        "cpu_seconds": spread(cpu),
        "dump_seconds": round(dumped, 3),
        "snapshot_megabytes": round(len(data) / 1e6, 1),
    }


def _take(journal: Journal, engine: Engine, now: float, inputs: list[Input]) -> None:
    step = engine.step(now, inputs)
    anchor = Anchor("", now, now)
    entry = JournalEntry(journal.last + 1, anchor, inputs, step.decisions, step.notices,
                  step.over, (), step.booked)  # fmt: skip
    journal.commit(entry)
    ran = [Started(e.job, e.attempt) for e in step.effects if isinstance(e, StartEffect)]
    if ran:
        _take(journal, engine, now, ran)  # type: ignore[arg-type]


def main() -> None:
    home = sys.argv[1] if len(sys.argv) > 1 else None
    results: dict[str, Any] = {}
    for name, measure in {
        "restart": restart,
        "one at a time, 32 clients": lambda folder: asyncio.run(submissions(folder, 1)),
        f"batches of {BATCH}, 4 clients": lambda folder: asyncio.run(submissions(folder, BATCH)),
        f"passes, {POOLS} pools, {PENDING} pending": lambda _: passes(),
        "starts on the simulated backend": lambda folder: asyncio.run(starts(folder)),
    }.items():
        with TemporaryDirectory(dir=home) as folder:
            results[name] = measure(Path(folder))
            gc.unfreeze()
            gc.collect()
            print(name, results[name], flush=True)
    results["megabytes"] = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
    keep("daemon/core", results)


if __name__ == "__main__":
    main()
