"""Two clusters on one broker, at high speed: counts agree to the last job."""

import asyncio
import json
import random
import time
from collections import Counter

from daemon.config.config import PoolConfig
from daemon.doors.mqtt.manager.config import MqttBackendConfig
from daemon.model.job import JobPhase
from tests.support.budget import budget
from tests.support.daemons.daemons import until
from tests.support.servers.managers import example, manager_on
from tests.support.servers.mqtt import daemon_on, peer

SECONDS = budget(ci=20.0, soak=600.0)
"""How long jobs come: 3600 for the record."""

POOLS = (PoolConfig("vision", 64), PoolConfig("speech", 32))

RATE = 150
"""Jobs a second and cluster at most."""

WAITING = 500
"""Jobs of a cluster that wait when no more come for a while: a queue that only grows ends never."""


class Quick(example("manager").Manager):
    """Keeps what it remembers in memory alone: it is not killed here."""

    def __init__(self, *args, **more):
        super().__init__(*args, **more)
        self.memory.keep = lambda what, **fact: self.memory._take({"what": what, **fact})


async def fed(one, cluster, service, dice):
    """Jobs for a while, some of them twice, some of them cancelled; how many."""
    number, end = 0, time.monotonic() + SECONDS
    while time.monotonic() < end:
        root = f"sia/v1/{cluster}/pool/{dice.choice(['vision', 'speech'])}"
        jobs = [
            {"id": f"{cluster}-{number + i}", "gpus": dice.choice([1, 1, 2, 4]), "command": ["x"],
             "duration": dice.uniform(1, 20)}
            for i in range(RATE // 10)
        ]  # fmt: skip
        number += len(jobs)
        for _ in range(dice.choice([1, 1, 2])):
            await one.say(f"{root}/submit", jobs)
        if dice.random() < 0.3:
            await one.say(f"{root}/cmd", {"do": "cancel", "job": dice.choice(jobs)["id"]})
        await asyncio.sleep(0.1)
        while service.engine.core.state.waiting > WAITING:  # noqa: ASYNC110  looked at from outside
            await asyncio.sleep(0.1)
    return number


async def tell(folder, broker):
    dice = random.Random(11)
    async with (
        peer(broker.port) as one,
        manager_on(folder, broker.port, cluster="east", kind=Quick, speed=100.0) as east,
        manager_on(folder, broker.port, cluster="west", kind=Quick, speed=100.0) as west,
    ):
        for name in ("east", "west"):
            (folder / name).mkdir()
        live = {"backend": MqttBackendConfig(), "pools": POOLS}
        async with (
            daemon_on(folder / "east", broker.port, mqtt={"cluster": "east"}, **live) as first,
            daemon_on(folder / "west", broker.port, mqtt={"cluster": "west"}, **live) as second,
            peer(broker.port, "sia/v1/+/pool/+/event") as watcher,
        ):
            tallies = {"east": Tally(), "west": Tally()}
            watcher.hear = lambda topic, body: tallies[topic.split("/")[2]].hear(json.loads(body))
            numbers = await asyncio.gather(
                fed(one, "east", first, dice), fed(one, "west", second, dice)
            )
            for service in (first, second):
                await until(lambda: not service.book.jobs, 60)  # noqa: B023
            print(f"{SECONDS:g} s: {numbers} jobs, {tallies}")  # noqa: T201  for the record, with -s
            await agrees(first, east, tallies["east"], numbers[0])
            await agrees(second, west, tallies["west"], numbers[1])


class Tally:
    """Counts events of a cluster, each number once, and keeps none of them."""

    def __init__(self):
        self.kinds, self.newest = Counter(), 0

    def __repr__(self):
        return f"{dict(self.kinds)}"

    def hear(self, event):
        if event["seq"] > self.newest:  # in order; what comes again has come
            assert event["seq"] >= self.newest
            self.newest = event["seq"]
            self.kinds[event["kind"]] += 1


async def agrees(service, manager, tally, number):
    """What was asked for, and what the daemon, the manager and the events say."""
    await until(lambda: tally.newest >= service.last_notice, 60)
    past, before, started, phases = 0, 2**62, 0, Counter()
    while page := await service.past_jobs(before, 1000):
        past, before = past + len(page), page[-1][0]
        for _, record in page:
            phases[record.phase.value] += 1
            ran = (record.spec.id, 1) in manager.memory.started
            started += ran
            assert record.attempt <= 1
            assert record.placed or not ran  # else it was cancelled before its GPUs were free
            assert ran or record.phase is JobPhase.CANCELLED
    assert past == number == tally.kinds["submitted"]
    assert started == len(manager.memory.started)
    assert tally.kinds["ended"] + tally.kinds["cancelled"] >= number
    assert manager.memory.started == set(manager.memory.over)
    assert set(phases) <= {"finished", "cancelled"}
    assert not manager.running


def test_two_clusters_on_one_broker_agree_on_every_job(tmp_path, broker):
    asyncio.run(asyncio.wait_for(tell(tmp_path, broker), 1.2 * SECONDS + 120))
