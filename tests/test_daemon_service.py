"""The service: from a client's command to a job that runs, by way of the journal."""

import asyncio

from daemons import FakeBackend, forget_snapshots, job, serving, setup, submit, until

from daemon.answers import Accepted
from daemon.jobs import JobPhase
from daemon.journal import Journal
from daemon.recovery import recover


def phase(service, job_id):
    return service.book.job(job_id).phase


def test_a_job_is_submitted_started_and_ends(tmp_path):
    async def story():
        backend = FakeBackend()
        async with serving(tmp_path / "db", setup(a=4), backend) as service:
            assert await service.submit([submit("one")]) == [Accepted()]
            await until(lambda: phase(service, "one") is JobPhase.RUNNING)
            assert backend.told == [("start", "one", 1)]
            backend.end("one")
            await until(lambda: phase(service, "one") is JobPhase.FINISHED)
            kinds = []
            async for notice in service.notices(0):
                kinds.append(notice.kind)
                if notice.kind == "ended":
                    break
            assert kinds == ["submitted", "started", "running", "ended"]
            assert (await service.past_job("one")).spec == job("one")

    asyncio.run(story())


def test_a_restart_goes_on_byte_for_byte(tmp_path):
    async def story():
        backend = FakeBackend()
        async with serving(tmp_path / "db", setup(a=2, b=2), backend) as service:
            await service.submit([submit(f"a{i}") for i in range(5)])
            await service.submit([submit("b0", "b", 2, time_limit=30.0)])
            await until(lambda: len(backend.running) >= 3)
            backend.end("a0")
            await until(lambda: phase(service, "a0").over)
            engine = service.engine
        forget_snapshots(tmp_path / "db")
        journal = Journal(tmp_path / "db")
        assert journal.snapshots() == [0]
        again = recover(journal, setup())
        again.check()
        assert again.dump() == engine.dump()
        assert again.due == engine.due
        journal.close()

    asyncio.run(story())
