"""How the daemon's parts are; what they keep; whether they may act."""

import asyncio

from daemon.runtime.health import HealthRegistry
from tests.support.daemons.daemons import FakeBackend, serving, setup, submit, until


class Switch:
    """A fence that a test opens and shuts."""

    epoch = 1

    def __init__(self):
        self.open = True

    def holds(self):
        return self.open


def test_a_part_that_is_not_well_says_so_until_it_is_again():
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


def test_a_daemon_without_the_lease_does_nothing_outside(tmp_path):
    async def story():
        backend, fence = FakeBackend(), Switch()
        async with serving(tmp_path / "db", setup(a=1), backend, fence=fence) as service:
            await service.submit([submit("first"), submit("second")])
            await until(lambda: backend.told)
            fence.open = False
            backend.end("first")
            await until(lambda: service.book.jobs["second"].placed)
            await asyncio.sleep(0.05)
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
