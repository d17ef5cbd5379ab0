"""A daemon that is killed, and what outlives it: simulated jobs, and clients' record of answers."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import time
from collections import Counter
from random import Random

from daemon.journal.journal import Journal
from daemon.model.errors import UnavailableError
from daemon.model.inputs import Cancel, Ended, Started
from daemon.model.outputs import Accepted
from daemon.runtime.clock import Clock
from daemon.service.service import Service
from tests.support.daemons.daemons import setup, submit, until

CLUSTER = setup([8, 8], a=8, b=8)


class Diary:
    """Lines in files that outlive the process; several files keep each one short."""

    def __init__(self, path):
        self.path = path

    def note(self, *words):
        with self.path.open("a") as file:
            file.write(" ".join(map(str, words)) + "\n")

    def lines(self):
        if not self.path.exists():
            return []
        return [tuple(line.split()) for line in self.path.read_text().splitlines()]


class OutlivingBackend:
    """Jobs that run without the daemon; each ends a fixed time after its start."""

    can = frozenset()
    gpus = None

    def __init__(self, folder, rng):
        self._starts, self._ends = Diary(folder / "starts"), Diary(folder / "ends")
        self._rng = rng
        self._ended = set(self._ends.lines())
        self._known = set(self._starts.lines())

    async def open(self, house):
        self._sink = house.sink

    async def reconcile(self, expected):
        unseen = []
        for each in expected:
            key = (each.order.job, str(each.order.attempt))
            if key in self._ended:
                self._say_ended(key)
            elif key in self._known:
                self._sink(Started(each.order.job, each.order.attempt))
                self._end_later(key)
            else:
                unseen.append(each.order)
        return unseen

    async def start(self, order):
        key = (order.job, str(order.attempt))
        if key in self._known:  # repeated by a restarted daemon
            return
        self._known.add(key)
        self._starts.note(*key)
        self._sink(Started(*self._key(key)))
        self._end_later(key)

    def _end_later(self, key):
        loop = asyncio.get_running_loop()
        loop.call_later(self._rng.random() * 0.02, self._end, key)

    def _end(self, key):
        if key not in self._ended:
            self._ended.add(key)
            self._ends.note(*key)
            self._say_ended(key)

    def _say_ended(self, key):
        self._sink(Ended(*self._key(key), 0))

    def _key(self, key):
        return key[0], int(key[1])

    async def stop(self, job_id, attempt, kind):
        self._end((job_id, str(attempt)))

    async def close(self):
        self._sink = lambda _: None

    def log(self, job_id, attempt, stream):
        return None


async def client(service, acks, rng, name):
    """Submits jobs one by one, sometimes cancels one, and records the answers."""
    for i in range(100_000):
        job_id = f"{name}-{i}"
        acks.note("asked", job_id)
        try:
            (answer,) = await service.submit([submit(job_id, rng.choice("ab"), rng.randint(1, 4))])
            assert answer == Accepted(), answer
            acks.note("taken", job_id)
            if rng.random() < 0.1:
                (answer,) = await service.submit([Cancel(job_id)])
        except UnavailableError:
            await asyncio.sleep(0.01)


def live(folder, life, seconds=60.0, clients=4):
    """Run a daemon until all jobs end or it is killed; return the jobs that are left."""

    async def story():
        rng = Random(life)
        journal = Journal(folder / "db")
        backend = OutlivingBackend(folder, rng)
        service = Service(CLUSTER, backend, journal, Clock(journal.anchor()), snapshot_every=200)
        await service.start()
        acks = Diary(folder / "acks")
        tasks = [
            asyncio.create_task(client(service, acks, rng, f"{life}-{i}")) for i in range(clients)
        ]
        deadline = time.monotonic() + seconds
        await until(lambda: time.monotonic() > deadline or not (tasks or service.book.jobs), 999.0)
        service.engine.check()
        await service.stop()
        return list(service.book.jobs)

    return asyncio.run(story())


def fork_a_life(folder, life):
    """Fork a daemon; return its pid."""
    pid = os.fork()
    if pid:
        return pid
    try:
        gc.freeze()  # keep the tests' objects out of the daemon's garbage collection
        live(folder, life)
    finally:
        os._exit(1)


def kill(pid):
    """Kill the process; return whether it was still alive."""
    os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    return os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL


def assert_nothing_was_lost(folder):
    """Check after the last run that each accepted job exists and ran at most once."""
    left = live(folder, "last", seconds=90.0, clients=0)
    acks = Diary(folder / "acks").lines()
    taken = [job_id for word, job_id in acks if word == "taken"]
    asked = {job_id for word, job_id in acks if word == "asked"}
    starts = Counter(job_id for job_id, _ in Diary(folder / "starts").lines())
    journal = Journal(folder / "db")
    ended = {record.spec.id: record for _, record in journal.history(0, 10**6)}
    journal.close()
    assert not set(taken) - set(ended) - set(left), "lost"
    assert not left, "it takes longer than 90 s"
    assert not set(ended) - asked, "made up"
    assert max(starts.values()) == 1, "started twice"
    for job_id, record in ended.items():
        ran = starts[job_id]
        phases = ("finished", "cancelled") if ran else ("cancelled",)
        assert record.phase.value in phases, (job_id, record)
        assert record.attempt == 1 or not ran, record
    return len(taken), sum(starts.values())
