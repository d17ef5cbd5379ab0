"""The service: from a client's command to a job that runs, by way of the journal."""

import asyncio
import errno
import gc
import resource
import time
import weakref
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from daemon.backends.local.supervisor import SupervisorOrder
from daemon.backends.local.supervisor_protocol import ended
from daemon.journal.journal import Journal
from daemon.journal.recovery import recover
from daemon.model.errors import JournalError, UnavailableError
from daemon.model.inputs import Cancel, Ended, Hold, Started, Stray, Submit
from daemon.model.job import JobPhase
from daemon.model.limits import MAX_BATCH
from daemon.model.outputs import Accepted
from daemon.runtime.clock import Anchor, Clock, FastClock
from daemon.runtime.gc import GcScheduler
from daemon.service.observer import Observer
from daemon.service.service import Service
from tests.support.daemons.daemons import (
    FakeBackend,
    StillClock,
    forget_snapshots,
    job,
    serving,
    setup,
    submit,
    until,
)


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


def test_a_restarted_service_continues_with_the_same_bytes(tmp_path):
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


def test_running_jobs_continue_and_unsent_effects_are_sent(tmp_path):
    """Killed between a commit and its effects, or between an effect and what was seen of it."""

    async def story():
        backend = FakeBackend(runs=False)
        async with serving(tmp_path / "db", setup(a=9), backend) as service:
            await service.submit([submit(i) for i in ("runs", "unseen", "unstarted", "ends")])
            await until(lambda: len(backend.running) == 4)
            await service.submit([Cancel("ends")])
            await until(lambda: phase(service, "ends").over)
            await service.submit([submit("ending")])
            await until(lambda: "ending" in backend.running)
            backend.stop = None  # it is not told to end any more
            await service.submit([Cancel("ending")])
        again = FakeBackend()
        again.running = {k: v for k, v in backend.running.items() if k != "unstarted"}
        async with serving(tmp_path / "db", setup(a=9), again) as service:
            await until(lambda: phase(service, "ending").over)
            assert again.told[0] == ("start", "unstarted", 1)
            assert again.told[1:] == [("end", "ending", 1)]
            assert phase(service, "ending") is JobPhase.CANCELLED
            again.sink(Stray("ends", 1))
            await until(lambda: again.told[-1] == ("end", "ends", 1))
            told = len(again.told)
            again.sink(Stray("of somebody else", 1))
            await service.submit([submit("later")])
            await until(lambda: "later" in again.running)
            assert again.told[told:] == [("start", "later", 1)]

    asyncio.run(story())


def test_commands_that_arrive_together_form_one_step_and_each_is_answered(tmp_path):
    async def story():
        async with serving(tmp_path / "db", setup(a=4), FakeBackend()) as service:
            asked = [service.submit([submit(f"{i}"), Cancel(f"no{i}")]) for i in range(50)]
            answers = await asyncio.gather(*asked)
            assert all(a == Accepted() and b.status == 404 for a, b in answers)
            assert service.status().steps < 20

    asyncio.run(story())


@contextmanager
def busy(service):
    """Observations come without end, and the disk takes a while."""
    journal = service._writer.journal
    commit = journal.commit

    def slowly(entry, part=None):
        time.sleep(0.003)
        commit(entry, part)

    async def see():
        while True:
            service.observe(Started("nobody", 1))
            await asyncio.sleep(0.0005)

    journal.commit = slowly
    seeing = asyncio.create_task(see())
    try:
        yield
    finally:
        seeing.cancel()


def test_clients_are_served_during_many_reports_of_the_backend(tmp_path):
    """More commands than a step takes, and more seen at once than it takes."""

    async def story():
        async with serving(tmp_path / "db", setup(a=4), FakeBackend()) as service:
            with busy(service):
                await asyncio.sleep(0.02)
                for _ in range(5000):
                    service.observe(Started("nobody", 1))
                many = [submit(f"{i}", hold=True) for i in range(MAX_BATCH + 1)]
                before = service.status().steps
                assert await asyncio.wait_for(service.submit(many), 60) == [Accepted()] * len(many)
                await asyncio.wait_for(service.submit([submit("few", hold=True)]), 60)
                assert service.status().steps - before <= 8, "all that was seen takes ten at least"

    asyncio.run(story())


def test_the_service_stops_while_the_backend_reports(tmp_path):
    async def story():
        service = Service(setup(a=4), FakeBackend(), Journal(tmp_path / "db"), StillClock())
        await service.start()
        with busy(service):
            await asyncio.sleep(0.02)
            asked = asyncio.create_task(service.submit([submit("before")]))
            await asyncio.sleep(0)
            await asyncio.wait_for(service.stop(), 60)
            assert await asked == [Accepted()]

    asyncio.run(story())


def test_a_job_cancelled_before_its_start_reached_the_backend_never_runs(tmp_path):
    """The daemon dies while the backend is slow to start it."""

    async def story():
        async def never(_):
            await asyncio.sleep(99)

        slow = FakeBackend()
        slow.start = never
        service = Service(setup(a=4), slow, Journal(tmp_path / "db"), StillClock())
        await service.start()
        assert await service.submit([submit("x")]) == [Accepted()]
        assert await service.submit([Cancel("x")]) == [Accepted()]
        killed = (service._runner, service._effects._worker)
        for task in killed:
            task.cancel()
        await asyncio.wait(killed)
        service._writer.close()
        again = FakeBackend()
        async with serving(tmp_path / "db", setup(a=4), again) as service:
            await until(lambda: phase(service, "x") is JobPhase.CANCELLED)
        assert again.told == []

    asyncio.run(story())


class ShortBackend(FakeBackend):
    """Of a machine that has no file left, until it has."""

    short = True

    async def start(self, order):
        if self.short:
            self.told.append(("try", order.job, order.attempt))
            raise OSError(errno.EMFILE, "Too many open files")
        await super().start(order)


def test_a_shortage_of_file_descriptors_fails_no_job(tmp_path, monkeypatch):
    monkeypatch.setattr("daemon.service.effects.EFFECT_AGAIN", 0.05)

    async def story():
        backend = ShortBackend()
        async with serving(tmp_path / "db", setup(a=4), backend) as service:
            await service.submit([submit("one"), submit("two")])
            await until(lambda: backend.told.count(("try", "two", 1)) > 1)
            await service.submit([Cancel("two")])
            await until(lambda: phase(service, "two").over)
            backend.short = False
            await until(lambda: phase(service, "one") is JobPhase.RUNNING)
            assert phase(service, "two") is JobPhase.CANCELLED
            backend.end("one")
            await until(lambda: phase(service, "one") is JobPhase.FINISHED)
            assert ("start", "two", 1) not in backend.told

    asyncio.run(story())


def test_too_many_commands_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("daemon.service.inbox.MAX_INBOX", 3)

    async def story():
        async with serving(tmp_path / "db", setup(a=4), FakeBackend()) as service:
            first = asyncio.create_task(service.submit([submit("a"), submit("b")]))
            await asyncio.sleep(0)
            with pytest.raises(UnavailableError) as wrong:
                await service.submit([submit("c"), submit("d")])
            assert wrong.value.status == 429
            assert len(await first) == 2
            assert service.book.job("c") is None

    asyncio.run(story())


def test_subscribers_read_past_notices_and_then_new_ones(tmp_path, monkeypatch):
    monkeypatch.setattr("daemon.service.event_feed.NOTICES_PAGE", 3)
    monkeypatch.setattr("daemon.service.event_feed.NOTICES_LIVE", 8)

    async def story():
        backend = FakeBackend()
        async with serving(tmp_path / "db", setup(a=4), backend) as service:
            await service.submit([submit(f"{i}", hold=True) for i in range(20)])
        async with serving(tmp_path / "db", setup(a=4), backend) as service:
            heard = {0: [], 7: [], 20: []}

            async def follow(after):
                async for notice in service.notices(after):
                    heard[after].append(notice.seq)

            followers = [asyncio.create_task(follow(after)) for after in heard]
            for i in range(20, 60):
                await service.submit([submit(f"{i}", hold=True)])
            await until(lambda: all(seqs and seqs[-1] == 60 for seqs in heard.values()))
            for after, seqs in heard.items():
                assert seqs == list(range(after + 1, 61))
        await asyncio.gather(*followers)  # they end with the service

    asyncio.run(story())


@contextmanager
def disk_full(path, room=100):
    """Files may not grow beyond what the journal has now: writes fail, as on a full disk."""
    wal = path.with_name(path.name + "-wal")
    most = max(path.stat().st_size, wal.stat().st_size) + room
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_refuses_and_loses_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr("daemon.service.service.PROBE_EVERY", 0.02)

    async def story():
        backend = FakeBackend()
        path = tmp_path / "db"
        async with serving(path, setup(a=4), backend) as service:
            await service.submit([submit("runs"), submit("ends")])
            for each in ("runs", "ends"):
                await until(lambda job=each: phase(service, job) is JobPhase.RUNNING)
            await service.submit([submit("third")])  # acknowledged, so what came before is durable
            with disk_full(path):
                big = [submit(f"big{i}", env={"X": "y" * 1000}) for i in range(50)]
                with pytest.raises(UnavailableError) as wrong:
                    await service.submit(big)
                assert wrong.value.status == 503
                assert not service.ready
                assert "disk" in service.status().reason
                with pytest.raises(UnavailableError):
                    await service.submit([submit("other")])
                backend.end("ends")  # it is seen, and will count
                await asyncio.sleep(0.1)
                assert service.book.job("big0") is None, "a false success"
                assert phase(service, "runs") is JobPhase.RUNNING  # reads go on
                assert (await anext(service.notices(0))).job == "runs"
            await until(lambda: service.ready)
            await until(lambda: phase(service, "ends") is JobPhase.FINISHED)
            assert await service.submit(big) == [Accepted()] * 50
            engine = service.engine
            engine.check()
        assert backend.told.count(("start", "runs", 1)) == 1
        assert again(path).dump() == engine.dump()

    asyncio.run(story())


def test_jobs_are_accepted_again_once_1_mb_is_free(tmp_path, monkeypatch):
    """Within a second or two, as it looks each second, and without a restart."""
    monkeypatch.setattr("daemon.service.service.PROBE_EVERY", 0.02)

    async def story():
        path = tmp_path / "db"
        async with serving(path, setup(a=4), FakeBackend()) as service:
            await service.submit([submit("first")])
            big = [submit(f"big{i}", env={"X": "y" * 1000}) for i in range(50)]
            with disk_full(path, 10**6):
                with disk_full(path), pytest.raises(UnavailableError):
                    await service.submit(big)
                await until(lambda: service.ready)
                assert await service.submit(big) == [Accepted()] * 50

    asyncio.run(story())


def again(path):
    """What the journal alone says."""
    forget_snapshots(path)
    journal = Journal(path)
    try:
        return recover(journal, setup())
    finally:
        journal.close()


def test_a_failed_commit_that_turns_out_durable_counts(tmp_path, monkeypatch):
    """SQLite may say that it failed though a reopened file has it."""
    monkeypatch.setattr("daemon.service.service.PROBE_EVERY", 0.02)

    async def story():
        async with serving(tmp_path / "db", setup(a=4), FakeBackend()) as service:
            commit = service._writer.journal.commit

            def fails(entry, part):
                commit(entry, part)
                service._writer.journal.last -= 1
                service._writer.journal.commit = commit
                raise JournalError("a sync failed")

            service._writer.journal.commit = fails
            assert await service.submit([submit("one")]) == [Accepted()]
            await until(lambda: phase(service, "one") is JobPhase.RUNNING)
            await until(lambda: service.ready)

    asyncio.run(story())


def test_a_step_in_doubt_counts_once_the_journal_confirms_it(tmp_path, monkeypatch):
    """The commit fails, is durable all the same, and the file cannot be opened for a while."""
    monkeypatch.setattr("daemon.service.service.PROBE_EVERY", 0.02)
    heard = []

    async def story():
        backend = FakeBackend()
        async with serving(tmp_path / "db", setup(a=4), backend) as service:

            async def follow():
                async for notice in service.notices(0):
                    heard.extend([notice.seq])

            follower = asyncio.create_task(follow())
            await service.submit([submit("before")])
            break_down(service._writer.journal, tries=3)
            with pytest.raises(UnavailableError, match="the outcome is not known yet"):
                await service.submit([submit("one")])
            with pytest.raises(UnavailableError):
                await service.settled()
            await until(lambda: service.ready)
            await until(lambda: phase(service, "one") is JobPhase.RUNNING)
            assert backend.told == [("start", "before", 1), ("start", "one", 1)]
            assert await service.submit([submit("one")]) == [Accepted(new=False)]
            await service.submit([submit("later", hold=True)])
            await until(lambda: heard and heard[-1] == service.last_notice)
        await follower
        assert heard == list(range(1, len(heard) + 1))

    asyncio.run(story())


def break_down(journal, tries=10**6):
    """Have the next commit fail though it is durable, and the file not open so often.

    What mends it at once.
    """
    commit, reopen, left = journal.commit, journal.reopen, [tries]

    def fails(entry, part=None):
        commit(entry, part)
        journal.commit = commit
        raise JournalError("disk I/O error")

    def cannot():
        left[0] -= 1
        if left[0] < 0:
            journal.reopen = reopen
            return reopen()
        raise JournalError("disk I/O error")

    def heal():
        left[0] = 0

    journal.commit, journal.reopen = fails, cannot
    return heal


def test_an_uncertain_commit_is_reported_and_resolved_by_the_next_daemon(tmp_path, monkeypatch):
    monkeypatch.setattr("daemon.service.service.PROBE_EVERY", 0.02)

    async def story():
        backend = FakeBackend()
        path = tmp_path / "db"
        async with serving(path, setup(a=4), backend) as service:
            await service.submit([submit("before")])
            break_down(service._writer.journal, tries=10**6)
            with pytest.raises(UnavailableError, match="not known"):
                await service.submit([submit("one")])
        assert backend.told == [("start", "before", 1)]
        async with serving(path, setup(a=4), backend) as service:
            await until(lambda: ("start", "one", 1) in backend.told)
            service.engine.check()

    asyncio.run(story())


class Broken(Observer):
    def __init__(self):
        self.errors = []

    def broke(self, error, inputs):
        self.errors.append((error, inputs))


class Miscounting(Observer):
    def __init__(self):
        self.errors = []

    def stepped(self, seconds, inputs, step):
        raise LookupError("a count")

    def miscounted(self, error):
        self.errors.append(error)


def test_a_defect_in_an_observer_does_not_end_the_service(tmp_path):
    watch = Miscounting()

    async def story():
        async with serving(tmp_path / "db", setup(a=4), FakeBackend(), watch=watch) as service:
            assert await service.submit([submit("x")]) == [Accepted()]

    asyncio.run(story())
    assert "LookupError('a count')" in watch.errors


def test_an_input_that_causes_a_defect_is_left_out_and_others_continue(tmp_path, monkeypatch):
    watch = Broken()

    async def story():
        async with serving(tmp_path / "db", setup(a=4), FakeBackend(), watch=watch) as service:
            await service.submit([submit("before")])
            real = type(service.engine._jobs)._wrong

            def wrong(self, spec, job):
                if spec.id == "evil":
                    raise LookupError("a defect")
                return real(self, spec, job)

            monkeypatch.setattr("daemon.engine.jobs.Jobs._wrong", wrong)
            asked = [service.submit([submit(i)]) for i in ("good", "evil", "better")]
            good, evil, better = await asyncio.gather(*asked)
            assert good == better == [Accepted()]
            assert evil[0].status == 500
            assert [error for error, _ in watch.errors] == ["LookupError('a defect')"]
            await until(lambda: phase(service, "better") is JobPhase.RUNNING)
            service.engine.check()

    asyncio.run(story())


def test_a_job_that_is_only_in_the_journal_is_recognized(tmp_path, monkeypatch):
    monkeypatch.setattr("daemon.model.book.KEEP_ENDED", 2)
    monkeypatch.setattr("daemon.service.ended_jobs.KEEP_ENDED", 2)

    async def story():
        async with serving(tmp_path / "db", setup(a=4), FakeBackend()) as service:
            for i in range(5):
                await service.submit([submit(f"{i}", hold=True)])
                await service.submit([Cancel(f"{i}")])
            assert service.book.job("0") is None
            same, other, new = await service.submit(
                [submit("0", hold=True), Submit(job("1", gpus=2)), submit("new")]
            )
            assert same == Accepted(new=False)
            assert other.status == 409
            assert new == Accepted()
            twice, held = await service.submit([Cancel("0"), Hold("1")])
            assert twice == Accepted(new=False)
            assert held.status == 409
            assert service.book.job("0") is service.book.job("1") is None

    asyncio.run(story())


def test_clients_retry_while_the_journal_cannot_be_read(tmp_path, monkeypatch):
    monkeypatch.setattr("daemon.model.book.KEEP_ENDED", 1)
    monkeypatch.setattr("daemon.service.ended_jobs.KEEP_ENDED", 1)

    def fails(*_):
        raise JournalError("disk I/O error")

    async def story():
        async with serving(tmp_path / "db", setup(a=4), FakeBackend()) as service:
            for i in range(3):
                await service.submit([submit(f"{i}", hold=True), Cancel(f"{i}")])
            with monkeypatch.context() as broken:
                broken.setattr(service._writer.journal, "jobs", fails)
                with pytest.raises(UnavailableError, match="disk I/O error"):
                    await asyncio.wait_for(service.submit([submit("0", hold=True)]), 60)
            await until(lambda: service.ready)
            assert await service.submit([submit("0", hold=True)]) == [Accepted(new=False)]

    asyncio.run(story())


def test_a_defect_that_ends_the_service_leaves_no_client_waiting(tmp_path):
    def defect(*_):
        raise LookupError("a defect")

    async def story():
        service = Service(setup(a=4), FakeBackend(), Journal(tmp_path / "db"), StillClock())
        await service.start()
        service._durability.step_durable = defect
        with pytest.raises(UnavailableError, match="not known"):
            await asyncio.wait_for(service.submit([submit("x")]), 60)
        with pytest.raises(LookupError):
            await service.stop()

    asyncio.run(story())


def test_an_observation_that_no_journal_can_hold_is_left_out(tmp_path):
    """A name in other bytes than UTF-8, for one: that step fails, not the service."""
    watch = Broken()

    async def story():
        backend = FakeBackend()
        async with serving(tmp_path / "db", setup(a=4), backend, watch=watch) as service:
            await service.submit([submit("x")])
            await until(lambda: phase(service, "x") is JobPhase.RUNNING)
            service.observe(Ended("x", 1, 126, why="cwd: /home/jos\udce9: no such folder"))
            answers = await asyncio.wait_for(service.submit([submit("y")]), 60)
            assert answers == [Accepted()]
            assert phase(service, "x") is JobPhase.RUNNING
            service.engine.check()
        assert len(watch.errors) == 1
        assert "surrogates not allowed" in watch.errors[0][0]

    asyncio.run(story())


def test_reasons_of_backends_can_be_stored(tmp_path):
    order = SupervisorOrder(b"x", b"1", 1.0, b"/home/jos\xe9", [b"run"], {}, [])
    attempt = SimpleNamespace(job="x", number=1, order=order)
    assert ended(attempt, {"failed": "cwd", "errno": "2"}).why.startswith("cwd: /home/jos\\xe9: ")

    async def story():
        backend = FakeBackend()

        async def fails(_):
            raise OSError(2, "No such file", "/home/jos\udce9")

        backend.start = fails
        async with serving(tmp_path / "db", setup(a=4), backend) as service:
            await service.submit([submit("y")])
            await until(lambda: phase(service, "y") is JobPhase.FAILED)
            assert "jos\\udce9" in service.book.job("y").why

    asyncio.run(story())


@pytest.mark.parametrize("readable", [True, False])
def test_a_defect_while_it_stops_is_left_out_of_the_journal(tmp_path, monkeypatch, readable):
    """Nothing is written by an engine that is half changed."""
    path = tmp_path / "db"
    monkeypatch.setattr("daemon.service.service.PROBE_EVERY", 0.02)

    async def story():
        async with serving(path, setup(a=4), FakeBackend()) as service:
            await service.submit([submit("runs")])
            await until(lambda: phase(service, "runs") is JobPhase.RUNNING)
            real = type(service.engine._jobs)._wrong

            def wrong(self, spec, job):
                if spec.id == "evil":
                    raise LookupError("a defect")
                return real(self, spec, job)

            def unreadable(_):
                raise JournalError("disk I/O error")

            monkeypatch.setattr("daemon.engine.jobs.Jobs._wrong", wrong)
            if not readable:
                monkeypatch.setattr(service._writer, "recover", unreadable)
            asked = [
                asyncio.create_task(service.submit([submit(name)]))
                for name in ("good", "evil", "better")
            ]
            stopping = asyncio.create_task(service.stop())
            answers = await asyncio.gather(*asked, return_exceptions=True)
            await stopping
            if readable:
                assert answers[0] == answers[2] == [Accepted()]
                assert answers[1][0].status == 500
            else:
                assert all(isinstance(answer, UnavailableError) for answer in answers)

    asyncio.run(story())
    taken = {"runs", "good", "better"} if readable else {"runs"}
    journal = Journal(path)
    from_snapshot = recover(journal, setup())
    from_snapshot.check()
    journal.close()
    assert set(from_snapshot.book.jobs) == taken
    assert again(path).dump() == from_snapshot.dump()


class Knot:
    """What only the collector finds: it refers to itself."""

    def __init__(self):
        self.itself = self


FREEZE = GcScheduler.freeze


@pytest.fixture
def uncollected(monkeypatch):
    """Python looks for no garbage by itself meanwhile, and services do, unlike in other tests."""
    monkeypatch.setattr(GcScheduler, "freeze", FREEZE)
    gc.disable()
    yield
    gc.enable()
    gc.unfreeze()


@pytest.mark.usefixtures("uncollected")
def test_garbage_is_collected_before_memory_is_frozen(tmp_path):
    """A snapshot has the collector look at nothing again: what is garbage by then goes before."""

    async def story():
        async with serving(tmp_path / "db", setup(a=4), FakeBackend(), snapshot_every=2) as service:
            knot = weakref.ref(Knot())
            await service.submit([submit("x", hold=True), submit("y", hold=True)])
            await until(lambda: len(service._writer.journal.snapshots()) == 2)
            assert knot() is None

    asyncio.run(story())


@pytest.mark.usefixtures("uncollected")
def test_garbage_is_collected_while_no_client_waits(tmp_path, monkeypatch):
    """And not by Python itself, in the middle of an answer."""
    monkeypatch.setattr("daemon.runtime.gc.YOUNG", 1)

    async def story():
        async with serving(tmp_path / "db", setup(a=4), FakeBackend()) as service:
            knot = weakref.ref(Knot())
            await service.submit([submit("x", hold=True)])
            await until(lambda: knot() is None)

    asyncio.run(story())


@pytest.mark.usefixtures("uncollected")
def test_old_garbage_is_collected_occasionally(monkeypatch):
    """Who was alive when it was looked at first, as a stream is, goes with a later look."""
    monkeypatch.setattr("daemon.runtime.gc.YOUNG", 1)
    monkeypatch.setattr("daemon.runtime.gc.FULL", 5)

    garbage = GcScheduler()
    garbage.freeze()
    alive = Knot()
    knot = weakref.ref(alive)
    garbage.tidy()
    del alive
    new = []
    for there in (True, True, True, False):
        new.append([[], []])
        garbage.tidy()
        assert (knot() is not None) is there


def test_a_job_that_is_being_forgotten_does_not_run_again(tmp_path, monkeypatch):
    """The client retries in the same step in which later jobs evict the job from the book."""
    monkeypatch.setattr("daemon.model.book.KEEP_ENDED", 2)
    monkeypatch.setattr("daemon.service.ended_jobs.KEEP_ENDED", 2)

    async def story():
        backend = FakeBackend()
        async with serving(tmp_path / "db", setup(a=4), backend) as service:
            for name in ("runs", "0", "1"):
                await service.submit([submit(name)])
                await until(lambda name=name: phase(service, name) is JobPhase.RUNNING)
            for name in ("0", "1"):
                backend.end(name)
                await until(lambda name=name: phase(service, name).over)
            backend.end("runs")
            await service.submit([submit("2", hold=True), submit("3", hold=True)])
            ends = [Cancel("2"), Cancel("3")]
            *_, first, second = await service.submit([*ends, submit("0"), Cancel("0")])
            answers = first, second
            assert service.book.job("0") is None, "it is not forgotten in that step"
            assert answers[0] == Accepted(new=False)
            assert (answers[1].status, answers[1].title) == (409, "job has ended")
            await asyncio.sleep(0.01)
            assert backend.told.count(("start", "0", 1)) == 1

    asyncio.run(story())


def test_time_limits_do_not_depend_on_the_wall_clock(tmp_path):
    """An hour forwards and back: the job is warned and ended by what has gone by."""
    wall, steady = [1_700_000_000.0], [50.0]

    async def story():
        clock = Clock(wall=lambda: wall[0], steady=lambda: steady[0])
        backend = FakeBackend()
        async with serving(tmp_path / "db", setup(a=4), backend, clock) as service:
            await service.submit([submit("long", time_limit=100.0, warn=20.0)])
            await until(lambda: phase(service, "long") is JobPhase.RUNNING)
            for step in (3600.0, -7200.0, 3600.0):
                wall[0] += step
                steady[0] += 10.0
                wall[0] += 10.0
                await service.submit([submit(f"{step}{steady}", hold=True)])
            assert backend.told == [("start", "long", 1)]
            steady[0] += 55.0
            service._inbox.news.set()
            await until(lambda: ("warn", "long", 1) in backend.told)
            steady[0] += 20.0
            service._inbox.news.set()
            await until(lambda: phase(service, "long").over)
            assert service.book.job("long").why == "time limit"

    asyncio.run(story())


def test_the_clock_continues_while_the_machine_is_not_restarted():
    wall, steady = [1000.0], [10.0]
    clock = Clock(wall=lambda: wall[0], steady=lambda: steady[0])
    steady[0], wall[0] = 20.0, 5000.0
    assert 1010.0 <= clock.now() <= 1010.1  # led by a thousandth
    anchor = clock.anchor()
    steady[0], wall[0] = 30.0, 0.0
    again = Clock(anchor, wall=lambda: wall[0], steady=lambda: steady[0])
    assert again.now() == pytest.approx(anchor.now + 10.0)
    other = Clock(anchor._replace(boot="another"), wall=lambda: 9.0, steady=lambda: 5.0)
    assert other.now() >= anchor.now  # never back
    later = Clock(anchor._replace(boot="another"), wall=lambda: 9999.0, steady=lambda: 5.0)
    assert later.now() == 9999.0


def test_a_fast_clock_is_fast():
    steady = [0.0]
    clock = FastClock(60.0, 1000.0, Anchor("", 0.0, 1500.0), steady=lambda: steady[0])
    assert clock.now() == 1500.0
    steady[0] = 2.0
    assert clock.now() == 1620.0
    assert clock.seconds_until(1680.0) == 1.0
