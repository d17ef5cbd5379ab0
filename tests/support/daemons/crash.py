"""A daemon that is killed, and what outlives it: simulated jobs, and clients' record of answers."""

from __future__ import annotations

import asyncio
import gc
import itertools
import os
import signal
import time
from contextlib import suppress
from random import Random

from msgspec.structs import replace

from daemon.journal.journal import Journal
from daemon.model.errors import UnavailableError
from daemon.model.inputs import Cancel, Ended, Started, Stopped
from daemon.model.outputs import Accepted
from daemon.runtime.clock import Clock
from daemon.service.service import Service
from sia.policies.preemptive.srtf import Srtf
from tests.support.daemons.daemons import setup, submit, until

CLUSTER = setup([8, 8], a=8, b=8)

STOPPING = replace(CLUSTER, policy="srtf", grace=0.01)
"""The same under a policy that stops jobs."""

PLANNING = replace(CLUSTER, policy="knapsack")
"""The same under a policy that plans with a solver; tests install it."""

FAILING = replace(CLUSTER, policy="fickle", options=replace(CLUSTER.options, tick=0.05))
"""The same under a policy that fails in a third of its passes; tests install it."""


class Fickle(Srtf):
    """Fails at some moments, before its second proposal: what raises names an object's address."""

    def propose(self, now, changes):
        proposals, result = super().propose(now, changes), None
        with suppress(StopIteration):
            for count in itertools.count():
                if count == 1 and int(now * 1000) % 3 == 0:
                    raise KeyError(self, f"lost by {self}")
                result = yield proposals.send(result)


CLUSTERS = {"plain": CLUSTER, "stopping": STOPPING, "planning": PLANNING}


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
    """Jobs that run without the daemon; each ends a short time after its start, or after it was
    told to stop. The diary has a line for each start, end and stop, in order."""

    can = frozenset({"preempt"})
    gpus = None

    def __init__(self, folder, rng):
        self._diary = Diary(folder / "world")
        self._rng = rng
        self._last = {(job, attempt): what for what, job, attempt, _ in self._diary.lines()}

    async def open(self, house):
        self._sink = house.sink

    async def reconcile(self, expected):
        unseen = []
        for each in expected:
            key = (each.order.job, str(each.order.attempt))
            if key not in self._last:
                unseen.append(each.order)
            elif self._last[key] == "start":
                self._sink(Started(*self._key(key)))
                self._later("end", key)
            else:
                self._say_gone(key)
        return unseen

    async def start(self, order):
        key = (order.job, str(order.attempt))
        if key in self._last:  # repeated by a restarted daemon
            return
        self._last[key] = "start"
        self._diary.note("start", *key, order.gpus)
        self._sink(Started(*self._key(key)))
        self._later("end", key)

    async def stop(self, job_id, attempt, kind):
        self._gone("end", (job_id, str(attempt)))

    async def preempt(self, order):
        key = (order.job, str(order.attempt))
        if order.force:
            self._gone("stop", key)
        else:
            self._later("stop", key)

    def _later(self, what, key):
        loop = asyncio.get_running_loop()
        loop.call_later(self._rng.random() * 0.02, self._gone, what, key)

    def _gone(self, what, key):
        if self._last.get(key) == "start":
            self._last[key] = what
            self._diary.note(what, *key, 0)
            self._say_gone(key)

    def _say_gone(self, key):
        ended = self._last[key] == "end"
        self._sink(Ended(*self._key(key), 0) if ended else Stopped(*self._key(key)))

    def _key(self, key):
        return key[0], int(key[1])

    async def close(self):
        self._sink = lambda _: None

    def log(self, job_id, attempt, stream):
        return None


async def client(service, acks, rng, name):
    """Submits jobs one by one, sometimes cancels one, and records the answers."""
    for i in range(100_000):
        job_id = f"{name}-{i}"
        job = submit(job_id, rng.choice("ab"), rng.randint(1, 4), run_time=10 ** rng.uniform(0, 4))
        acks.note("asked", job_id)
        try:
            (answer,) = await service.submit([job])
            assert answer == Accepted(), answer
            acks.note("taken", job_id)
            if rng.random() < 0.1:
                (answer,) = await service.submit([Cancel(job_id)])
        except UnavailableError:
            await asyncio.sleep(0.01)


def live(folder, life, seconds=60.0, clients=4, cluster=CLUSTER):
    """Run a daemon until all jobs end or it is killed; return the jobs that are left."""

    async def story():
        rng = Random(life)
        journal = Journal(folder / "db")
        backend = OutlivingBackend(folder, rng)
        service = Service(cluster, backend, journal, Clock(journal.anchor()), snapshot_every=200)
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


def fork_a_life(folder, life, cluster=CLUSTER):
    """Fork a daemon; return its pid."""
    pid = os.fork()
    if pid:
        return pid
    try:
        gc.freeze()  # keep the tests' objects out of the daemon's garbage collection
        live(folder, life, cluster=cluster)
    finally:
        os._exit(1)


def kill(pid):
    """Kill the process; return whether it was still alive."""
    os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    return os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL


def assert_nothing_was_lost(folder, cluster=CLUSTER):
    """Check after the last run that each accepted job exists and did its work once.

    Returns the numbers of jobs that were accepted, of attempts, and of stops.
    """
    left = live(folder, "last", seconds=90.0, clients=0, cluster=cluster)
    acks = Diary(folder / "acks").lines()
    taken = [job_id for word, job_id in acks if word == "taken"]
    asked = {job_id for word, job_id in acks if word == "asked"}
    lives, most = lived(folder)
    journal = Journal(folder / "db")
    ended = {record.spec.id: record for _, record in journal.history(0, 10**6)}
    journal.close()
    assert not set(taken) - set(ended) - set(left), "lost"
    assert not left, "it takes longer than 90 s"
    assert not set(ended) - asked, "made up"
    assert most <= 16, "more GPUs than there are"
    for job_id, record in ended.items():
        life = lives.get(job_id, [])
        stops = life.count("stop")
        assert record.phase.value in (("finished", "cancelled") if life else ("cancelled",))
        assert life == ["start", "stop"] * stops + (["start", "end"] if "end" in life else [])
        assert record.phase.value == "cancelled" or "end" in life, record
        # A job that was cancelled as it stopped has a stop that only its backend knows.
        assert record.stops == stops or record.phase.value == "cancelled", (record, life)
    words = [word for life in lives.values() for word in life]
    return len(taken), words.count("start"), words.count("stop")


def lived(folder):
    """Return what happened to each job, in order, and the most GPUs that were in use at a time.

    Attempts must follow one another, and each is started once.
    """
    lives, holds, used, most = {}, {}, 0, 0
    for what, job_id, attempt, gpus in Diary(folder / "world").lines():
        if what == "start":
            assert job_id not in holds, "two attempts at a time"
            holds[job_id] = attempt, int(gpus)
            used += int(gpus)
            assert int(attempt) == lives.get(job_id, []).count("start") + 1, "started twice"
        else:
            held, width = holds.pop(job_id)
            assert held == attempt, "another attempt ended"
            used -= width
        lives.setdefault(job_id, []).append(what)
        most = max(most, used)
    return lives, most
