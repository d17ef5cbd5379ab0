"""What a daemon foresees: asked before a step, told after it, and told the past after a restart."""

import asyncio
from threading import Event

import pytest
from msgspec.structs import replace

from daemon.engine.engine import Step
from daemon.forecasts.forecaster import (
    ForecastService,
    Predictors,
    ended_between,
)
from daemon.forecasts.history import said_to
from daemon.forecasts.predictors import Forecaster
from daemon.journal.journal import Journal
from daemon.model.errors import JournalError
from daemon.model.inputs import (
    Cancel,
    Estimated,
    Foreseen,
    Hold,
    ModelChanged,
    Release,
    Reported,
    Submit,
)
from daemon.model.outputs import Accepted
from daemon.model.setup import Setup
from daemon.service.observer import Observer
from daemon.service.service import Service
from sia.events import JobProgressed
from sia.forecasts import Loads, RunTimes
from sia.limits import MAX_GROUP, UNKNOWN_RUN_TIME
from sia.model import Options, Pool, Stream
from tests.support.daemons.daemons import FakeBackend, StillClock, job, submit, until
from tests.support.daemons.forecast_world import DAY, HOUR, MONDAY, POOLS, SETUP, World, read_from


def test_a_submitted_job_has_an_estimate_from_similar_jobs():
    world = World()
    world.begin()
    world.live(hours=48)

    world.step(Submit(job("new", "a", user="short")), Submit(job("newer", "a", user="long")))
    book = world.engine.book

    assert book.jobs["new"].run_time == 300.0
    assert book.jobs["newer"].run_time == 12 * HOUR


def test_a_tag_replaces_the_name():
    world = World()
    world.begin()
    tags = {"experiment": "sweep"}
    for i in range(40):
        world.step(Submit(job(f"like{i}", "b", user="u", tags=tags, duration=100.0)))
        world.step(Submit(job(f"other{i}", "b", user="u", name="train", duration=7 * HOUR)))
        world.wait(world.now + 8 * HOUR)

    world.step(Submit(job("new", "b", user="u", tags=tags)))
    world.step(Submit(job("named", "b", user="u", name="train", tags=tags)))

    assert world.engine.book.job("new").run_time == 300.0
    assert world.engine.book.job("named").run_time == 12 * HOUR


def test_without_history_run_times_are_unknown():
    world = World()
    world.begin()

    world.step(Submit(job("first")))

    assert world.engine.book.jobs["first"].run_time == UNKNOWN_RUN_TIME


def test_a_predictor_of_run_times_hears_what_jobs_report():
    class Listener(RunTimes):
        said = ()

        def run_time(self, job):
            return 50.0

        def progressed(self, now, job, done, speed, overhead=0.0):
            self.said = (*self.said, (now, job.id, done, speed, overhead))

    world, listener = World(), Listener()
    world.forecaster = Forecaster(listener, None, updates=False)
    world.step(submit("j"))
    world.now += 100.0
    world.step(Reported("j", 1, 0.5, 2.0), Reported("j", 2, 0.5))
    assert listener.said == ((MONDAY + 100.0, "j", 100.0, 2.0, 0.0),)

    late = JobProgressed(world.now, "j", 100.0, 1.0, overhead=30.0)  # it still loads its work
    world.forecaster.after(world.now, Step([], (), (), (), (late,), ()))
    assert listener.said[1:] == ((MONDAY + 100.0, "j", 100.0, 1.0, 30.0),)


def test_a_stated_short_run_time_counts_until_jobs_of_the_owner_are_known():
    world = World()
    world.begin()
    book = world.engine.book

    world.step(Submit(job("first", "b", user="long", run_time=60.0, duration=60.0)))
    assert book.jobs["first"].run_time == 60.0

    world.live(hours=48)
    world.step(Submit(job("known", user="long", run_time=60.0)))
    world.step(Submit(job("exact", user="long", run_time=3 * HOUR)))
    world.step(Submit(job("stranger", user="ann", run_time=60.0)))

    assert book.jobs["known"].run_time == 12 * HOUR
    assert book.jobs["exact"].run_time == 3 * HOUR, "it falls into the window that is expected"
    assert book.jobs["stranger"].run_time == 60.0


def test_without_history_srtf_ranks_jobs_by_what_their_owners_expect():
    world = World(Setup((Pool("a", 2),), policy="srtf"))
    world.begin()
    for name, seconds in (("first", 60.0), ("long", 900.0), ("short", 300.0), ("middle", 600.0)):
        world.step(Submit(job(name, gpus=2, run_time=seconds, duration=seconds)))
    world.wait(world.now + HOUR)

    assert sorted(world.over, key=lambda each: each.started) == world.over
    assert [each.spec.id for each in world.over] == ["first", "short", "middle", "long"]


def test_no_job_is_thought_to_run_beyond_its_limit():
    world = World()
    world.begin()

    world.step(Submit(job("first", time_limit=120.0)))

    assert world.engine.book.jobs["first"].run_time == 120.0


def test_the_core_receives_the_loads_of_the_predictor():
    world = World()
    world.begin()
    world.live(hours=48)

    twin = world.predictors.make(world.story(), None, None)
    said = [i for i in twin.before(world.now, [], world.engine.book) if type(i) is Foreseen]

    told = {(load.pool, load.window): load.gpus for load in said[0].loads if load.gpus}
    assert told == {(x.pool, x.window): x.gpus for x in said_to(world.engine.core.state) if x.gpus}
    assert len(told) >= 4


@pytest.mark.parametrize("seed", range(5))
def test_predictors_that_are_given_the_past_agree_with_those_that_saw_it(seed):
    world = World(seed=seed)
    world.begin()
    world.live(hours=30)
    heard = world.predictors.make(world.story(), None, None)
    heard.correct(said_to(world.engine.core.state))
    heard.before(world.now, [], world.engine.book)
    lived = world.forecaster
    book = world.engine.book
    asked = [Submit(job(f"n{i}", pool, user=user)) for i, (pool, user) in
             enumerate((p, u) for p in "ab" for u in ("short", "long", "new"))]  # fmt: skip

    world.now += 600.0
    by_lived, by_heard = (each.before(world.now, asked, book) for each in (lived, heard))

    assert [i.run_time for i in by_lived if type(i) is Submit] == [
        i.run_time for i in by_heard if type(i) is Submit
    ]
    assert [i for i in by_lived if type(i) is Foreseen] == [
        i for i in by_heard if type(i) is Foreseen
    ]


class Silence(Loads):
    """Nothing will come."""

    def changes(self, now):
        return ()


def test_loads_of_an_earlier_forecaster_are_withdrawn():
    world = World()
    world.begin()
    world.live(hours=48)
    assert any(load.gpus for load in said_to(world.engine.core.state))
    silent = Forecaster(None, Silence(), updates=False)
    silent.correct(said_to(world.engine.core.state))

    world.forecaster = silent
    world.step()

    assert not any(load.gpus for load in said_to(world.engine.core.state))


def test_refused_and_held_jobs_leave_nothing_in_the_predictors():
    world = World()
    world.begin()

    world.step(
        Submit(job("wide", gpus=99)), Submit(job("held", hold=True)), Submit(job("ok", duration=60))
    )
    world.wait(world.now + HOUR)
    run_times = world.forecaster._run_times

    assert world.engine.book.job("wide") is None
    assert not run_times._waiting
    assert not run_times._running
    assert not world.forecaster._jobs


def test_a_job_that_was_held_in_between_is_one_job():
    world = World()
    world.begin()
    world.step(Submit(job("full", gpus=8, duration=DAY)))
    world.step(Submit(job("x")))
    world.step(Hold("x"))
    world.step(Release("x"))
    world.step(Cancel("x"))

    assert list(world.forecaster._jobs) == ["full"]
    assert not world.forecaster._run_times._waiting


def test_waiting_jobs_are_considered_again():
    world = World()
    world.begin()
    world.step(Submit(job("wide", gpus=7, duration=3 * DAY)))
    for i in range(8):
        world.wait(world.now + 900.0)
        world.step(Submit(job(f"like{i}", user="short", duration=100.0)))
    world.wait(world.now + 900.0)
    world.step(Submit(job("narrow", duration=3 * DAY)), Submit(job("waits", user="short")))
    assert world.engine.book.jobs["waits"].run_time == UNKNOWN_RUN_TIME  # of so few

    for i in range(8):
        world.wait(world.now + 900.0)
        world.step(Submit(job(f"other{i}", "b", user="short", duration=100.0)))

    assert any(type(i) is Estimated for i in world.taken)
    waited = world.engine.book.job("waits")
    assert waited.run_time == 300.0
    assert waited.stream is Stream.SPARE  # which lends it a GPU of b


def test_the_past_is_read_page_by_page(monkeypatch):
    monkeypatch.setattr("daemon.forecasts.forecaster.PAGE", 7)
    world = World()
    world.live(hours=24)
    since = MONDAY + 12 * HOUR

    found = asyncio.run(ended_between(read_from(world.over), since, world.now))

    assert found == [r for r in world.over if since <= r.ended <= world.now]
    assert 7 < len(found) < len(world.over)


def test_steps_made_while_the_history_is_read_are_observed_too():
    world = World()
    world.live(hours=30)  # nobody listens
    foresight = ForecastService(world.predictors)

    async def play():
        foresight.begin(world.engine, world.now, read_from(world.over))
        assert not foresight.ready
        world.forecaster = foresight
        world.step(Submit(job("while", "a", user="short", duration=DAY)))
        await foresight.heard()
        assert foresight.ready
        return foresight._forecaster

    forecaster = asyncio.run(play())

    assert "while" in forecaster._jobs


def served(tmp_path, story, **more):
    """A story of a service that foresees, and its foresight."""

    async def play():
        foresight = ForecastService(Predictors(SETUP, "peaks+survival"))
        path = tmp_path / "db"
        service = Service(
            SETUP, FakeBackend(), Journal(path), StillClock(MONDAY), foresight=foresight, **more
        )
        await story(service, foresight)
        await service.stop()

    asyncio.run(play())


class Blind(Observer):
    def __init__(self):
        self.errors = []

    def blind(self, why):
        self.errors.append(why)


def test_an_unreadable_history_is_read_again_later(tmp_path, monkeypatch):
    monkeypatch.setattr("daemon.forecasts.forecaster.HEAR_AGAIN", 0.05)
    watch = Blind()

    async def story(service, foresight):
        def fails(*_):
            raise JournalError("disk I/O error")

        with monkeypatch.context() as broken:
            broken.setattr(service._writer.journal, "history", fails)
            await service.start()
            await foresight.heard()
            assert not foresight.ready
        assert await service.submit([Submit(job("x", gpus=8))]) == [Accepted()]
        await until(lambda: foresight.ready)
        assert list(foresight._forecaster._jobs) == ["x"]

    served(tmp_path, story, watch=watch)
    assert len(watch.errors) == 1
    assert "disk I/O error" in watch.errors[0]


@pytest.mark.parametrize("method", ["before", "after"])
def test_a_predictor_that_raises_is_paused_and_tried_again(tmp_path, monkeypatch, method):
    monkeypatch.setattr("daemon.forecasts.forecaster.HEAR_AGAIN", 0.05)
    watch = Blind()

    async def story(service, foresight):
        def fails(*_):
            raise ZeroDivisionError("of a predictor")

        await service.start()
        await foresight.heard()
        with monkeypatch.context() as broken:
            broken.setattr(Forecaster, method, fails)
            assert await service.submit([Submit(job("x", gpus=8))]) == [Accepted()]
            await until(lambda: watch.errors)
            assert not foresight.ready
        await until(lambda: foresight.ready)
        assert list(foresight._forecaster._jobs) == ["x"]

    served(tmp_path, story, watch=watch)
    assert "of a predictor" in watch.errors[0]


def test_a_model_whose_forecaster_fails_at_once_is_not_said_to_be_in_use(tmp_path, monkeypatch):
    """The next forecaster is of the model that the journal names."""
    monkeypatch.setattr("daemon.forecasts.forecaster.HEAR_AGAIN", 0.05)
    watch = Blind()

    async def story(service, foresight):
        def fails(*_):
            raise ZeroDivisionError("of the new model")

        await service.start()
        await foresight.heard()
        with monkeypatch.context() as broken:
            broken.setattr(Forecaster, "before", fails)
            foresight._news.append(ModelChanged("loads", "new", "better"))
            assert await service.submit([Submit(job("x", gpus=8))]) == [Accepted()]
            await until(lambda: watch.errors)
        await until(lambda: foresight.ready)
        assert await service.submit([Submit(job("y", gpus=8))]) == [Accepted()]
        assert service.book.model == ""

    served(tmp_path, story, watch=watch)


def test_a_model_adopted_while_a_step_is_written_observes_it_once(tmp_path, monkeypatch):
    heard = []
    real = Forecaster._submitted

    def counted(self, now, event):
        heard.append((event.job.id, event.job.id in self._jobs))
        real(self, now, event)

    monkeypatch.setattr(Forecaster, "_submitted", counted)

    async def story(service, foresight):
        await service.start()
        await foresight.heard()
        journal, loop, begun = service._writer.journal, asyncio.get_running_loop(), Event()
        commit = journal.commit

        def slowly(entry, part=None):
            loop.call_soon_threadsafe(learned)
            begun.wait(5.0)
            commit(entry, part)

        def learned():  # as `Retraining.once` does
            foresight.want(None, "better")
            begun.set()

        journal.commit = slowly
        await service.submit([Submit(job("x", gpus=8))])
        journal.commit = commit
        before = foresight._forecaster
        await until(lambda: foresight._forecaster is not before)
        assert list(foresight._forecaster._jobs) == ["x"]

    served(tmp_path, story)
    assert heard == [("x", False)]  # by the first; the second has it from the story


@pytest.mark.parametrize("ready", [False, True])
def test_no_pool_lends_before_it_was_observed(tmp_path, ready):
    """A pool lends only once a forecast has observed it, also right after the daemon's start."""

    async def story(service, foresight):
        await service.start()
        if ready:
            await foresight.heard()
        jobs = Submit(job("own", gpus=8)), Submit(job("guest", gpus=8, time_limit=60.0))
        await service.submit([*jobs])
        await foresight.heard()

        async def phase_after(seconds):
            service.clock.time = MONDAY + seconds
            await service.submit([Submit(job(f"after {seconds}", "b", gpus=1, hold=True))])
            return service.book.job("guest").phase.value

        assert await phase_after(1.0) == "pending"
        assert await phase_after(600.0) == "pending", "other pools need one GPU of eight so soon"
        assert await phase_after(20 * HOUR) == "starting", "b never had a job"

    served(tmp_path, story)


@pytest.mark.parametrize("anew", ["a pool", "windows"])
def test_a_new_pool_lends_nothing_while_the_history_cannot_be_read(tmp_path, monkeypatch, anew):
    """The other pools have loads from before: they do not say that somebody was listening."""
    more, windows = (*POOLS, Pool("c", 8)), Options(windows=(120.0, HOUR, 12 * HOUR))
    other = replace(SETUP, pools=more) if anew == "a pool" else replace(SETUP, options=windows)

    def fails(*_):
        raise JournalError("disk I/O error")

    async def life(settings, asked):
        foresight, journal = ForecastService(Predictors(settings, "peaks+survival")), Journal(path)
        monkeypatch.setattr(journal, "history", fails)
        clock = StillClock(MONDAY)
        service = Service(settings, FakeBackend(), journal, clock, foresight=foresight)
        await service.start()
        await service.submit([*map(Submit, asked)])
        loads = {load.gpus for load in said_to(service.engine.core.state)}
        phase = service.book.job("guest").phase.value
        await service.stop()
        return phase, loads

    path = tmp_path / "db"
    jobs = job("own", gpus=8), job("guest", gpus=8, time_limit=60.0)
    assert asyncio.run(life(SETUP, jobs)) == ("pending", {MAX_GROUP})
    assert asyncio.run(life(other, [job("later")])) == ("pending", {MAX_GROUP})
