"""The health of the daemon's components, and whether it lets them act."""

import asyncio

from daemon.model.inputs import Cancel
from daemon.model.outputs import Accepted
from daemon.runtime.health import HealthRegistry
from sia import policies as installed
from sia.contract.policy import Policy
from sia.contract.proposals import Start
from sia.model import Stream
from sia.policies.queues.fcfs import Fcfs
from tests.support.daemons.daemons import FakeBackend, serving, setup, submit, until


class Switch:
    """A fence that a test opens and shuts."""

    epoch = 1

    def __init__(self):
        self.open, self.asked = True, 0

    def holds(self):
        self.asked += 1
        return self.open


def test_an_unhealthy_component_is_reported_until_it_recovers():
    time = [5.0]
    parts = HealthRegistry(lambda: time[0])
    parts.say("mqtt")
    time[0] = 9.0
    parts.say("mqtt", "refused", "look at the password")
    time[0] = 11.0
    parts.say("mqtt", "no answer", "start the broker")
    (state,) = parts.all()
    assert state == ("mqtt", False, "no answer", "start the broker", 9.0)
    parts.say("mqtt")
    assert parts.all()[0][1:] == (True, "", "", 11.0)
    parts.forget("mqtt")
    assert parts.all() == []


class Breaks(Policy):
    """Starts each job that fits, and fails while a job of three GPUs waits for two."""

    def propose(self, now, changes):
        for pool in self.state.pools.values():
            for job in [*pool.waiting()]:
                if job.width <= pool.idle:
                    yield Start(job, Stream.DEDICATED, "fits")
                elif job.width - pool.idle == 1:
                    raise KeyError(f"no plan for {pool.name}")


def test_a_policy_that_raises_is_reported_and_the_daemon_continues(tmp_path, monkeypatch):
    monkeypatch.setattr(installed, "load_plugin", lambda group, name: Breaks)

    def unwell(service):
        return [(part.why, part.mend) for part in service.parts.all()
                if part.name == "policy" and not part.ok]  # fmt: skip

    async def story():
        backend = FakeBackend()
        async with serving(tmp_path / "db", setup(a=3), backend) as service:
            await service.submit([submit("small", gpus=1)])
            assert unwell(service) == []
            answers = await service.submit([submit("wide", gpus=3), submit("other", gpus=1)])
            assert [*map(type, answers)] == [Accepted, Accepted]
            ((why, mend),) = unwell(service)
            assert why == "sia: the policy failed in propose: KeyError: no plan for a"
            assert "daemon.policy" in mend
        async with serving(tmp_path / "db", setup(a=3), backend) as service:
            await service.submit([Cancel("wide")])
            await until(lambda: service.book.jobs["other"].placed)
            assert unwell(service) == []
            service.engine.check()

    asyncio.run(story())


class Forgets(Fcfs):
    """Cannot say what it remembers, when it is asked while `lost` is set."""

    lost = False

    def memory(self):
        if Forgets.lost:
            raise KeyError("lost")


def test_a_policy_that_cannot_say_what_it_remembers_costs_the_snapshot_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(installed, "load_plugin", lambda group, name: Forgets)

    async def story():
        backend = FakeBackend()
        async with serving(tmp_path / "db", setup(a=3), backend) as service:
            monkeypatch.setattr(Forgets, "lost", True)
            await service.submit([submit("first", gpus=2)])
        (part,) = [each for each in service.parts.all() if each.name == "policy"]
        assert part.why == "sia: the policy failed in memory: KeyError: lost"
        async with serving(tmp_path / "db", setup(a=3), backend) as service:
            monkeypatch.setattr(Forgets, "lost", False)
            assert service.book.jobs["first"].placed
            service.engine.check()

    asyncio.run(story())


def test_a_daemon_without_the_lease_has_no_outside_effects(tmp_path):
    async def story():
        backend, fence = FakeBackend(), Switch()
        async with serving(tmp_path / "db", setup(a=1), backend, fence=fence) as service:
            await service.submit([submit("first"), submit("second")])
            await until(lambda: backend.told)
            fence.open = False
            backend.end("first")
            await until(lambda: service.book.jobs["second"].placed)
            asked = fence.asked
            await until(lambda: fence.asked > asked + 2)  # the start of the second waits for it
            assert backend.told == [("start", "first", 1)]
            fence.open = True
            await until(lambda: len(backend.told) == 2)
            assert backend.told[1] == ("start", "second", 1)

    asyncio.run(story())


def test_notes_outlive_the_daemon(tmp_path):
    async def story():
        async with serving(tmp_path / "db", setup(a=1), FakeBackend()) as service:
            await service.notes.write({"slurm:b": "2", "slurm:a": "1", "mqtt:a": "3"})
            await service.notes.write({"slurm:b": None, "slurm:c": "4"})
            first = service.fence.epoch
        async with serving(tmp_path / "db", setup(a=1), FakeBackend()) as service:
            assert list((await service.notes.read("slurm:")).items()) == [
                ("slurm:a", "1"),
                ("slurm:c", "4"),
            ]
            assert service.fence.epoch == first + 1

    asyncio.run(story())
