"""Daemons for tests: a backend and a clock that tests control, and jobs."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import asynccontextmanager
from functools import partial
from time import monotonic, time

from daemon.backends.interface import BackendContext
from daemon.journal.journal import Journal
from daemon.model.inputs import Ended, Started, Submit
from daemon.model.job import JobSpec
from daemon.model.setup import Node, Setup
from daemon.runtime.clock import Anchor, Clock, uptime
from daemon.runtime.fence import SoleLeader
from daemon.runtime.health import HealthRegistry
from daemon.service.service import Service
from sia.model import Options, Pool

SMALL = Options(windows=(5.0, 20.0, 100.0), tick=5.0)


def setup(nodes=(), **quotas):
    return Setup(
        tuple(Pool(name, quota) for name, quota in quotas.items()),
        options=SMALL,
        nodes=tuple(Node(f"n{i}", tuple(range(gpus))) for i, gpus in enumerate(nodes)),
    )


def job(job_id, pool="a", gpus=1, **more):
    return JobSpec(job_id, pool, gpus, **more)


def submit(job_id, pool="a", gpus=1, run_time=50.0, **more):
    return Submit(job(job_id, pool, gpus, **more), run_time)


class StillClock:
    """A clock that only the test advances; waiting tasks poll it."""

    def __init__(self, now=1000.0):
        self.time = now

    def now(self):
        return self.time

    def anchor(self):
        return Anchor("", 0.0, self.time)

    def seconds_until(self, moment):
        return 0.001 if moment > self.time else 0.0

    async def sleep_until(self, moment):
        await asyncio.sleep(self.seconds_until(moment))


def time_goes_by(monkeypatch, seconds):
    """Advance the time that daemons created from now on see at their start."""
    ahead = partial(Clock, wall=lambda: time() + seconds, steady=lambda: uptime() + seconds)
    monkeypatch.setattr("daemon.process.build.Clock", ahead)


class MemoryNotes:
    """Attempt records kept in memory for the length of the test."""

    def __init__(self):
        self.kept = {}

    async def read(self, prefix):
        return {key: self.kept[key] for key in sorted(self.kept) if key.startswith(prefix)}

    async def write(self, changes):
        for key, value in changes.items():
            if value is None:
                self.kept.pop(key, None)
            else:
                self.kept[key] = value


def house(sink, *, fence=None, notes=None, ask=None, parts=None, book=None):
    """Context for a backend without a daemon: no takeover and no queries."""
    return BackendContext(
        sink,
        fence or SoleLeader(1),
        notes or MemoryNotes(),
        ask,
        parts or HealthRegistry(lambda: 1000.0),
        book,
    )


class FakeBackend:
    """A backend that records orders and sends only the reports of the test."""

    can = frozenset()
    gpus = None

    def __init__(self, *, runs=True):
        self.told = []
        self.runs = runs  # whether started jobs are reported as running at once
        self.running = {}
        self.sink = None

    async def open(self, house):
        self.sink = house.sink

    async def reconcile(self, expected):
        orders = [each.order for each in expected]
        return [order for order in orders if self.running.get(order.job) != order.attempt]

    async def start(self, order):
        assert self.running.get(order.job) is None, f"{order.job} is started twice"
        self.told.append(("start", order.job, order.attempt))
        self.running[order.job] = order.attempt
        if self.runs:
            self.sink(Started(order.job, order.attempt))

    async def stop(self, job_id, attempt, kind):
        self.told.append((kind, job_id, attempt))
        if kind == "end" and self.running.get(job_id) == attempt:
            self.end(job_id, code=None, signal=15)

    def end(self, job_id, code=0, signal=None):
        self.sink(Ended(job_id, self.running.pop(job_id), code, signal))

    async def close(self):
        self.sink = None

    def log(self, job_id, attempt, stream):
        return None


@asynccontextmanager
async def serving(path, cluster, backend, clock=None, **more):
    """Run a service from its start to its stop."""
    service = Service(cluster, backend, Journal(path), clock or StillClock(), **more)
    await service.start()
    try:
        yield service
    finally:
        await service.stop()


LONG = 180.0
"""Time limit in seconds of waits that normally end at once; a slow machine does not fail them."""


async def until(happens, seconds=LONG):
    """Wait until a condition holds that other tasks bring about."""
    deadline = monotonic() + seconds
    while not happens():
        assert monotonic() < deadline, "the condition never held"
        await asyncio.sleep(0.002)


def forget_snapshots(path):
    """Delete all snapshots but the first, so that a restart replays all steps."""
    with sqlite3.connect(path) as db:
        db.execute("DELETE FROM snapshots WHERE seq > (SELECT MIN(seq) FROM snapshots)")
        db.execute("DELETE FROM parts WHERE seq NOT IN (SELECT seq FROM snapshots)")
    db.close()
