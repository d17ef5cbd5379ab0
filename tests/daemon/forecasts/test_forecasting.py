"""What a daemon foresees: asked before a step, told after it, and told the past after a restart."""

import asyncio
import json
from gc import collect
from heapq import heappop, heappush
from random import Random
from shutil import copytree
from threading import Event, current_thread, main_thread
from weakref import ref

import pytest
from msgspec.structs import replace

from daemon.engine.engine import Engine, Step
from daemon.forecasts import retraining
from daemon.forecasts.forecaster import (
    ForecastService,
    Predictors,
    WantedForecast,
    ended_between,
)
from daemon.forecasts.history import JournalHistory, said_to
from daemon.forecasts.predictors import Forecaster
from daemon.forecasts.retraining import (
    CANDIDATES,
    LOOK,
    Models,
    Retraining,
    RetrainingResult,
    best,
    log_between,
    trace_of,
)
from daemon.journal.journal import Journal
from daemon.model.book import JobRecord
from daemon.model.errors import JournalError
from daemon.model.inputs import (
    Cancel,
    Ended,
    Estimated,
    Foreseen,
    Hold,
    ModelChanged,
    Release,
    Reported,
    SetPool,
    Started,
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
from sia.wording import WEEK
from tests.support.daemons.daemons import FakeBackend, StillClock, job, submit, until

HOUR, DAY = 3600.0, 86400.0
pytestmark = pytest.mark.xdist_group("forecasting")  # in one process, which trains one model

MONDAY = 1_700_000_400.0
"""Some time since the epoch, a multiple of a tick."""

POOLS = (Pool("a", 8), Pool("b", 8))
SETUP = Setup(POOLS, policy="sia")


class World:
    """An engine, its jobs and its forecaster; virtual time, each job ends by itself."""

    def __init__(self, setup=SETUP, label="peaks+survival", seed=0):
        self.engine = Engine.new(setup)
        self.setup = setup
        self.random = Random(seed)
        self.predictors = Predictors(setup, label)
        self.forecaster = None
        self.ends = []
        self.over = []
        self.now = MONDAY
        self.taken = []  # all inputs of all steps

    def begin(self):
        story = JournalHistory(self.now, self.now)
        self.forecaster = self.predictors.make(story, None, None)

    def step(self, *inputs):
        if self.forecaster is not None:
            inputs = self.forecaster.before(self.now, inputs, self.engine.book)
        step = self.engine.step(self.now, inputs)
        self.taken += inputs
        self.over += step.over
        if self.forecaster is not None:
            self.forecaster.after(self.now, step)
        started = []
        for effect in step.effects:
            record = self.engine.book.jobs[effect.job]
            end = self.now + (record.spec.duration or 60.0)
            heappush(self.ends, (end, effect.job, effect.attempt))
            started.append(Started(effect.job, effect.attempt))
        if started:
            self.step(*started)
        return step

    def wait(self, until):
        """Advance the time: jobs end, and the forecaster gets its ticks."""
        while True:
            due = min(
                self.ends[0][0] if self.ends else until,
                max(self.now, self.forecaster.due) if self.forecaster else until,
                max(self.now, self.engine.due),
            )
            if due >= until:
                break
            self.now = due
            ended = []
            while self.ends and self.ends[0][0] <= self.now:
                _, job_id, attempt = heappop(self.ends)
                ended.append(Ended(job_id, attempt, code=0))
            self.step(*ended)
        self.now = until

    def live(self, hours):
        """Jobs of two users come at random; those of `short` last minutes, of `long` hours."""
        end = self.now + hours * HOUR
        count = len(self.taken)
        while True:
            gap = self.random.expovariate(1 / 900)
            if self.now + gap >= end:
                break
            self.wait(self.now + gap)
            count += 1
            user = self.random.choice(("short", "long"))
            seconds = self.random.uniform(60, 240) if user == "short" else 2.5 * HOUR
            spec = job(f"j{count}", self.random.choice("ab"), 1, user=user, duration=seconds)
            self.step(Submit(spec))
        self.wait(end)

    def story(self):
        """What the journal and the book know of it."""
        story = JournalHistory(MONDAY, self.now)
        story.add_alive(self.engine.book.jobs.values())
        story.add_ended(self.over)
        return story


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


def read_from(records):
    """As the journal reads: newest first, in pages."""

    async def read(before, limit):
        numbered = list(enumerate(records, 1))
        older = [(n, r) for n, r in numbered if not before or n < before]
        return older[::-1][:limit]

    return read


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


LEARNING = Setup(POOLS, "sia", Options((HOUR,)))
"""One window: each takes as long to learn as all else that a child does."""


def busy_weeks(days):
    """Jobs that have ended: each weekday morning some come to a, at night some to b."""
    random, records = Random(1), []
    for day in range(days):
        for hour, pool in ((9, "a"), (10, "a"), (22, "b")):
            for i in range(3):
                begin = MONDAY + day * DAY + hour * HOUR + random.uniform(0, 1800)
                spec = job(f"{day}-{hour}-{i}", pool, random.choice((1, 2)), user="u")
                record = JobRecord(spec, begin, 60.0)
                record.decided, record.ended = begin, begin + random.uniform(300, 3000)
                records.append(record)
    return sorted(records, key=lambda record: record.ended)


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    """The first model, which a child learned from fifteen days; its folder of models."""
    models = Models(tmp_path_factory.mktemp("learned") / "models")
    return models, asyncio.run(models.learn(trace_of(busy_weeks(9)), LEARNING, ""))


def test_a_model_is_learned_from_history_and_taken_only_where_it_is_better(first):
    models, first = first
    assert first.why == "first model", first.why
    assert models.read(first.model.checksum, LEARNING.options.windows) is not None

    same = asyncio.run(models.learn(trace_of(busy_weeks(18)), LEARNING, first.model.checksum))
    assert same.why in (
        "better than the previous model on the newest days",
        "not better than the current model on the newest days",
    )
    assert (same.model is None) == ("not better" in same.why)
    assert not list(models.folder.glob("learning-*"))


def test_too_short_a_history_is_no_error(tmp_path):
    models = Models(tmp_path)

    assert asyncio.run(models.learn(trace_of([]), LEARNING, "")).why == "no job has ended yet"
    short = asyncio.run(models.learn(trace_of(busy_weeks(1)[:3]), LEARNING, ""))

    assert short.model is None
    assert "too short" in short.why
    assert not short.mend


def test_a_better_model_makes_the_forecasts_from_then_on(first):
    models, (model, *_) = first
    ended = busy_weeks(9)
    world = World(LEARNING, "learned+survival")
    world.now = ended[-1].ended + 1.0
    foresight = ForecastService(
        world.predictors, lambda sum_: models.read(sum_, LEARNING.options.windows)
    )

    async def swap():
        foresight.begin(world.engine, world.now, read_from(ended))
        await foresight.heard()
        by_peaks = type(foresight._forecaster._loads).__name__
        wanted = WantedForecast(model, "better")
        foresight.begin(world.engine, world.now, read_from(ended), wanted)
        await foresight.heard()
        return by_peaks, type(foresight._forecaster._loads._loads).__name__

    assert asyncio.run(swap()) == ("PeakLoads", "LearnedLoads")
    world.forecaster = foresight
    world.step()
    changed = [i for i in world.taken if type(i) is ModelChanged]
    assert changed == [ModelChanged("loads", model.checksum, "better")]
    assert world.engine.book.model == model.checksum


USUAL = "peaks+survival"


@pytest.mark.parametrize(
    ("gains", "label"),
    [
        ({USUAL: (0.4, 0), "x": (0.5, 0), "y": (0.6, 1)}, "x"),
        ({USUAL: (0.4, 1), "x": (0.5, 0), "y": (0.6, 1)}, "y"),
        ({USUAL: (0.4, 0), "x": (0.41, 0)}, USUAL),
        ({USUAL: (0.0, 0), "x": (0.0, 0)}, USUAL),
        ({USUAL: (0.0, 0), "x": (0.01, 0)}, "x"),
        ({USUAL: (-0.1, 0), "x": (-0.05, 0)}, USUAL),
    ],
)
def test_the_forecast_that_gains_most_without_more_delayed_jobs_is_chosen(gains, label):
    assert best(gains, USUAL) == label


def crowded_weeks():
    """Ended jobs of 24 days, each as wide as its pool: they wait where no other pool lends."""
    random, records = Random(1), []
    for day in range(24):
        for hour, pool in ((9, "a"), (21, "b")):
            for i in range(3):
                begin = MONDAY + day * DAY + hour * HOUR + random.uniform(0, 1800)
                record = JobRecord(job(f"{day}-{hour}-{i}", pool, 8, user="u"), begin, 60.0)
                record.decided, record.ended = begin, begin + random.uniform(900, 3000)
                records.append(record)
    return sorted(records, key=lambda record: record.ended)


def test_a_history_of_weeks_chooses_the_forecast_and_a_shorter_one_does_not(tmp_path, monkeypatch):
    models, codes, seen = Models(tmp_path), [], []
    short = asyncio.run(models.choose(trace_of(busy_weeks(9)), LEARNING, USUAL))
    assert (short.label, short.mend) == (None, "")
    assert "a history of 3w is needed" in short.why

    async def watched(work, asked, real=retraining._run):
        result = await real(work, asked)
        codes.append((asked[0], result[0]))
        return result

    def choice(gains, usual):
        seen.append(gains)
        assert best(gains, usual) in (usual, *CANDIDATES)
        return "learned:0.95+survival"

    monkeypatch.setattr(retraining, "_run", watched)
    monkeypatch.setattr(retraining, "best", choice)
    chosen = asyncio.run(models.choose(trace_of(crowded_weeks()), LEARNING, USUAL))
    assert codes == [("forecast", 0), ("replay", 0)], chosen
    assert {*seen[0]} == {USUAL, *CANDIDATES}
    assert any(gain > 0 for gain, _ in seen[0].values()), "jobs wait, so that lending gains"
    assert chosen.label == "learned:0.95+survival"
    assert models.read(chosen.model.checksum, LEARNING.options.windows) is not None
    assert [path.name for path in tmp_path.iterdir()] == [chosen.model.checksum]
    assert chosen.why.startswith("learned:0.95+survival: mean speed-up ")
    assert "on the newest" in chosen.why


class Children:
    """Children that do not run: a training copies a model, a backtest has these results."""

    def __init__(self, monkeypatch, model=None, trained=(0, ""), replayed=(0, ""), gains=None):
        self.asked, self.model, self.gains = [], model, gains or {}
        self.trained, self.replayed, self.files = trained, replayed, {}
        monkeypatch.setattr(retraining, "_run", self.run)

    async def run(self, work, asked):
        self.asked.append([*asked])
        self.files = {name: (work / name).read_text() for name in ("trace.csv", "pools.csv")}
        if asked[0] == "forecast":
            if not self.trained[0]:
                copytree(self.model, work / "model")
            return self.trained
        (work / "out").mkdir()
        found = {}
        for label in asked[asked.index("--policy") + 1].split(","):
            gain, slowed = self.gains.get(label.partition("@")[2], (1.2, 0))
            found[label] = {"speedup_geomean": gain, "slowed": slowed, "measured": 9}
        (work / "out" / "summary.json").write_text(json.dumps({"policies": found}))
        return self.replayed


def test_the_children_replay_what_is_in_force_and_the_winner_is_adopted(
    tmp_path, monkeypatch, first
):
    """The quotas that a command has set, the daemon's policy, slack and resume cost."""
    monkeypatch.setattr("daemon.forecasts.forecaster.SPAN", HOUR)  # a learned one is slow to hear
    readers, read = [], retraining.read_model

    def reads(*asked):
        readers.append(current_thread())
        return read(*asked)

    monkeypatch.setattr(retraining, "read_model", reads)
    folder = first[0].folder / first[1].model.checksum
    children = Children(monkeypatch, folder, gains={"learned:0.95+survival": (1.5, 0)})
    options = replace(LEARNING.options, slack=1.5, resume_cost=60.0)
    setup = Setup(POOLS, policy="sia-reclaim", options=options, preemptible=300.0)
    world, models = World(setup), Models(tmp_path / "models")
    foresight = ForecastService(
        Predictors(setup, USUAL, chosen_by_backtest=True),
        lambda sum_: models.read(sum_, options.windows),
    )
    world.forecaster, ended = foresight, crowded_weeks()
    world.now = ended[-1].ended + 1.0
    world.step(SetPool("b", quota=12))

    async def story():
        foresight.begin(world.engine, world.now, read_from([]))
        retrains = Retraining(models, foresight, StillClock(world.now), setup, 60.0)
        await foresight.heard()
        learned = await retrains.once(lambda: world.engine, read_from(ended))
        foresight.begin_anew(world.engine, world.now, read_from([]))
        await foresight.heard()
        foresight.end()
        return learned

    learned = asyncio.run(story())
    trace = trace_of(ended)
    begin = trace.arrivals[0].job.submit // WEEK * WEEK
    until = f"{trace.arrivals[-1].job.submit - WEEK - begin!r}s"
    asked = ["--trace", "trace.csv", "--pools", "pools.csv", "--windows", "1h"]
    labels = ",".join(f"sia-reclaim@{each}" for each in (USUAL, *CANDIDATES))
    assert children.asked == [
        ["forecast", "train", *asked, "--until", until, "--out", "model", "--json"],
        [
            "replay", *asked, "--policy", labels, "--warmup", until, "--slack", "1.5",
            "--resume-cost", "60.0s", "--forecast", "model", "--no-report", "--json", "--out",
            "out",
        ],
    ]  # fmt: skip
    assert children.files["pools.csv"].splitlines() == ["pool,quota", "a,8", "b,12"]
    assert children.files["trace.csv"].count(",300.0") == len(ended), "what each stop costs"
    means = "mean speed-up 1.500, with peaks+survival 1.200, on the newest 9 jobs"
    assert learned.why == f"learned:0.95+survival: {means}"
    assert learned.mend == ""
    assert main_thread() not in readers, "importing xgboost holds the event loop"
    world.step()
    assert world.engine.book.adopted == "learned:0.95+survival"
    assert world.engine.book.model == first[1].model.checksum
    assert [path.name for path in models.folder.iterdir()] == [first[1].model.checksum]


@pytest.mark.parametrize(
    ("output", "mend"),
    [("sia: trace.csv: is too short to train a window of 12h", ""), ("MemoryError", LOOK)],
)
def test_a_failed_training_leaves_the_other_candidates_and_is_reported(
    tmp_path, monkeypatch, output, mend
):
    children = Children(monkeypatch, trained=(1, output), gains={"peaks+boosted": (1.4, 0)})
    chosen = asyncio.run(Models(tmp_path).choose(trace_of(crowded_weeks()), LEARNING, USUAL))
    assert (chosen.label, chosen.mend) == ("peaks+boosted", mend)
    assert (output in chosen.why) == bool(mend)
    assert "learned" not in " ".join(children.asked[1])


def test_what_a_killed_daemon_left_of_a_training_is_removed(tmp_path, monkeypatch):
    (tmp_path / "learning-before" / "model").mkdir(parents=True)
    Children(monkeypatch, trained=(2, "is too short"))
    asyncio.run(Models(tmp_path).choose(trace_of(crowded_weeks()), LEARNING, USUAL))
    assert not [*tmp_path.iterdir()]


def test_a_failed_backtest_is_reported(tmp_path, monkeypatch):
    Children(monkeypatch, trained=(2, "is too short"), replayed=(1, "MemoryError"))
    chosen = asyncio.run(Models(tmp_path).choose(trace_of(crowded_weeks()), LEARNING, USUAL))
    assert chosen == (None, f"{USUAL}: a backtest failed: MemoryError", None, LOOK)


def test_a_history_of_too_many_jobs_for_three_weeks_is_said_to_be_that(tmp_path, monkeypatch):
    monkeypatch.setattr(retraining, "MOST_JOBS", 50)
    monkeypatch.setattr(retraining, "PAGE", 20)
    ended = crowded_weeks()
    now = ended[-1].ended

    async def story():
        trace = await log_between(read_from(ended), now - 5 * WEEK, now, LEARNING, 50)
        return trace, await Models(tmp_path).choose(trace, LEARNING, USUAL)

    trace, chosen = asyncio.run(story())
    assert trace.arrivals == trace_of(ended[-60:]).arrivals, "whole pages"
    assert "the newest 60 jobs, the most that are read, span 9.5 days" in chosen.why
    assert chosen.mend == f'write forecast = "{USUAL}" in [daemon]'


def test_the_log_of_a_history_is_in_no_memory_while_children_run(tmp_path, monkeypatch):
    """It is in files then. Pages become rows as they are read."""
    kept = []
    real = retraining.Trace

    def traced(*args):
        trace = real(*args)
        kept.append(ref(trace))
        return trace

    async def run(work, asked):
        collect()
        assert [each() for each in kept[:1]] == [None]
        kept.append("ran")
        return 1, "is too short"

    monkeypatch.setattr(retraining, "Trace", traced)
    monkeypatch.setattr(retraining, "_run", run)
    ended = crowded_weeks()
    world, clock = World(LEARNING), StillClock(ended[-1].ended)
    for label, backtest in ((USUAL, True), ("learned+survival", False)):
        foresight = ForecastService(Predictors(LEARNING, label, chosen_by_backtest=backtest))
        retrains = Retraining(Models(tmp_path), foresight, clock, LEARNING, 60.0)
        kept.clear()
        asyncio.run(retrains.once(lambda: world.engine, read_from(ended)))
        assert "ran" in kept


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("failure", ["an error of the child", "no space", "a timeout"])
def test_a_training_that_fails_is_said_by_the_component(
    tmp_path, monkeypatch, first, known, failure
):
    async def run(work, asked):
        if failure == "no space":
            raise OSError(failure)
        if failure == "a timeout":
            raise TimeoutError
        return 1, failure

    monkeypatch.setattr(retraining, "_run", run)
    models = first[0]
    world, ended = World(LEARNING), busy_weeks(2)
    world.engine.book.model = first[1].model.checksum if known else ""
    foresight = ForecastService(Predictors(LEARNING, "learned+survival"))
    clock = StillClock(ended[-1].ended)
    retrains = Retraining(models, foresight, clock, LEARNING, 60.0)
    learned = asyncio.run(retrains.once(lambda: world.engine, read_from(ended)))
    assert learned.mend == LOOK
    assert "a training failed: " in learned.why
    assert (known or failure != "an error of the child") != ("no model of loads" in learned.why)


def test_without_xgboost_a_daemon_with_history_says_what_is_missing(tmp_path, monkeypatch):
    monkeypatch.setattr("daemon.forecasts.retraining.find_spec", lambda _: None)
    missing = asyncio.run(Models(tmp_path).choose(trace_of(busy_weeks(24)), LEARNING, USUAL))
    assert missing.label is None
    assert "xgboost, which is not installed; peaks+survival is used" in missing.why
    assert "[learn]" in missing.mend


def test_a_forecast_that_a_backtest_has_chosen_is_journaled_and_used(tmp_path):
    world = World(LEARNING)
    chooses = Predictors(LEARNING, USUAL, chosen_by_backtest=True)
    foresight = ForecastService(chooses)
    world.forecaster, said = foresight, []

    class Chosen(Models):
        async def choose(self, trace, setup, usual):
            return RetrainingResult(None, "gains more", "peaks:0.9+history")

    async def story():
        foresight.begin(world.engine, 0.0, read_from([]))
        retraining = Retraining(Chosen(tmp_path), foresight, None, LEARNING, 60.0)
        retraining._clock = StillClock(0.0)
        await foresight.heard()
        await retraining.once(lambda: world.engine, read_from([]))
        assert foresight.wants
        foresight.begin_anew(world.engine, 0.0, read_from([]))
        await foresight.heard()
        foresight.end()
        said.append(type(foresight._forecaster._run_times).__name__)

    asyncio.run(story())
    assert said == ["HistoryRunTimes"]
    world.step()
    assert world.engine.book.adopted == "peaks:0.9+history"
    assert chooses.adopting(world.engine.book.adopted).label == "peaks:0.9+history"
    fixed = Predictors(LEARNING, "peaks+survival")
    assert fixed.adopting("peaks:0.9+history") == fixed, "the configuration names one"
    assert chooses.adopting("peaks+gone").label == USUAL, "a plugin that is gone"


def test_the_log_of_a_history_has_the_jobs_that_ran():
    records = busy_weeks(2)
    never = JobRecord(job("never"), MONDAY, 60.0)
    never.ended = MONDAY + 5.0

    trace = trace_of([*records, never])

    assert sorted(a.job.id for a in trace.arrivals) == sorted(r.spec.id for r in records)
    assert [a.job.submit for a in trace.arrivals] == sorted(a.job.submit for a in trace.arrivals)
    assert all(a.duration >= 300.0 for a in trace.arrivals)


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
