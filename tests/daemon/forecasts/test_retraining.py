"""Models learned from a history, and forecasts chosen by a backtest."""

import asyncio
import json
from gc import collect
from random import Random
from shutil import copytree
from threading import current_thread, main_thread
from weakref import ref

import pytest
from msgspec.structs import replace

from daemon.forecasts import retraining
from daemon.forecasts.forecaster import (
    ForecastService,
    Predictors,
    WantedForecast,
)
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
from daemon.model.book import JobRecord
from daemon.model.inputs import (
    ModelChanged,
    SetPool,
)
from daemon.model.setup import Setup
from sia.model import Options
from sia.wording import WEEK
from tests.support.daemons.daemons import StillClock, job
from tests.support.daemons.forecast_world import DAY, HOUR, MONDAY, POOLS, World, read_from

pytestmark = pytest.mark.xdist_group("forecasting")  # in one process, which trains one model

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
        await forgotten(kept[0])
        kept.append("ran")
        return 1, "is too short"

    async def forgotten(trace):
        """A thread that has written the log keeps it for a moment after its result is known."""
        async with asyncio.timeout(30):
            while trace() is not None:
                collect()
                await asyncio.sleep(0.01)

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
