"""Jobs that only the journal knows: what is asked of them is answered as if they were there."""

import asyncio

from daemon.model.inputs import Cancel
from daemon.model.outputs import Accepted
from tests.support.daemons.daemons import FakeBackend, serving, setup, submit, until


def test_an_array_with_a_job_that_only_the_journal_has_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("daemon.service.ended_jobs.KEEP_ENDED", 1)
    monkeypatch.setattr("daemon.model.book.KEEP_ENDED", 1)

    async def story():
        backend = FakeBackend()
        async with serving(tmp_path / "db", setup(a=9), backend) as service:
            for job_id in ("x.1", "other"):
                await service.submit([submit(job_id, hold=True), Cancel(job_id)])
            assert service.book.job("x.1") is None
            array = [submit(f"x.{i}", array=(i, 3)) for i in range(3)]
            answers = await service.submit([*array, submit("beside")])
            assert [answer.status for answer in answers[:3]] == [409] * 3
            assert answers[3] == Accepted()
            await until(lambda: backend.told)
            assert backend.told == [("start", "beside", 1)]
            assert not service.book.arrays

    asyncio.run(story())


def test_an_array_is_not_named_as_a_job_that_only_the_journal_knows(tmp_path, monkeypatch):
    monkeypatch.setattr("daemon.service.ended_jobs.KEEP_ENDED", 1)
    monkeypatch.setattr("daemon.model.book.KEEP_ENDED", 1)

    async def story():
        async with serving(tmp_path / "db", setup(a=9), FakeBackend()) as service:
            for job_id in ("x", "other"):
                await service.submit([submit(job_id, hold=True), Cancel(job_id)])
            assert service.book.job("x") is None
            answers = await service.submit([submit(f"x.{i}", array=(i, 2)) for i in range(2)])
            assert [answer.status for answer in answers] == [409, 409]
            assert not service.book.arrays
            assert await service.submit([]) == []

    asyncio.run(story())
