"""Forecasts that drift: a pool lends nothing while they are wrong too often, and then again."""

import asyncio

import pytest
from msgspec.structs import replace

from daemon.engine.engine import Step
from daemon.forecasts.drift import LEAST_WINDOWS, SLICES, SPAN, Drift
from daemon.forecasts.forecaster import ForecastService, Predictors
from daemon.model.inputs import ForecastHealth, ModelChanged, SetPool, Tick
from daemon.model.job import LendingMode
from sia.events import JobFinished, JobSubmitted, TimePassed
from sia.model import Job
from tests.support.daemons.daemons import FakeBackend, serving, setup, until
from tests.support.daemons.doors import POOLS, asked, door, story

HOUR = 3600.0


def burst(now, n, gpus=3, pool="b"):
    """Submit and end jobs that are wider than the forecast."""
    job = Job(f"{pool}{n}", pool, now, gpus)
    return [JobSubmitted(now, job, 10.0), JobFinished(now + 1.0, job.id)]


def watched(**more):
    return Drift(0.0, (HOUR,), {"a": (0,), "b": (2,)}, **more)


def test_a_pool_drifts_by_its_own_misses_and_recovers_once_they_are_few():
    drift = watched()
    for hour in range(LEAST_WINDOWS):
        now = hour * HOUR + 10.0
        drift.hear(burst(now, hour, gpus=2))  # as foreseen
    assert drift.why == {}
    for hour in range(LEAST_WINDOWS, LEAST_WINDOWS + 8):
        drift.hear(burst(hour * HOUR + 10.0, hour))
    assert list(drift.why) == ["b"]
    assert drift.why["b"].endswith("forecasts for 1 h fell short in 24 h")
    said = drift.why["b"]
    hour = LEAST_WINDOWS + 8
    while drift.why:
        assert drift.why == {"b": said}
        drift.hear([TimePassed(hour * HOUR + 10.0)])
        hour += 1
    # Of the last day's windows one in twenty at most was missed.
    assert hour > LEAST_WINDOWS + SLICES - 2


def test_a_bolder_quantile_may_be_missed_more_often():
    """Every third forecast is too low: by chance for the quantile 0.8, and not for 0.95."""
    careful, bold = watched(), watched(designed=0.2)
    for hour in range(2 * SLICES):
        events = burst(hour * HOUR + 10.0, hour, gpus=2 if hour % 3 else 3)
        careful.hear(events)
        bold.hear(events)
    assert (list(careful.why), list(bold.why)) == (["b"], [])
    for hour in range(2 * SLICES, 4 * SLICES):
        bold.hear(burst(hour * HOUR + 10.0, hour))
    assert list(bold.why) == ["b"]


def test_a_single_bad_morning_is_not_drift():
    drift = Drift(0.0, (300.0,), {"b": (2,)})
    for n in range(11 * 12):  # eleven hours of windows of five minutes, all missed
        drift.hear(burst(n * 300.0 + 10.0, n))
    assert drift.record("b")[0][1] > LEAST_WINDOWS
    assert drift.why == {}
    for n in range(11 * 12, 12 * 12 + 1):
        drift.hear(burst(n * 300.0 + 10.0, n))
    assert list(drift.why) == ["b"]


def test_forecast_errors_are_reported_by_pool():
    drift = watched()
    for hour in range(6):
        drift.hear(burst(hour * HOUR + 10.0, hour, gpus=3 if hour < 2 else 2))
    drift.hear([TimePassed(6 * HOUR + 10.0)])
    assert drift.record("a") == [(6, 0)]
    assert drift.record("b") == [(6, 2)]
    assert drift.record("gone") == []


def test_few_misses_do_not_count_and_old_ones_are_forgotten():
    drift = watched()
    for day in range(5):
        for n in range(2):
            drift.hear(burst(day * 1.1 * SPAN + n * HOUR + 10.0, f"{day}-{n}"))
    assert drift.why == {}


def test_drift_lasts_through_a_restart_until_forecasts_are_reliable():
    drift = watched(why={"b": "before"})
    for hour in range(LEAST_WINDOWS + 2):
        assert bool(drift.why) is (hour <= LEAST_WINDOWS), hour
        drift.hear([TimePassed(hour * HOUR + 10.0)])


async def none(before, limit):
    return []


def hear(foresight, engine, now):
    """Let it read a history without ended jobs."""

    async def story():
        foresight.begin(engine, now, none)
        await foresight.heard()
        foresight.end()

    asyncio.run(story())


def foresight_of(cluster, drift="keep", label="peaks+survival"):
    from daemon.engine.engine import Engine  # noqa: PLC0415

    foresight, engine = ForecastService(Predictors(cluster, label)), Engine.new(cluster)
    foresight.drift = drift
    hear(foresight, engine, 1000.0)
    return foresight, engine


def test_drift_is_one_input_of_the_next_step_and_an_unhealthy_component():
    foresight, engine = foresight_of(setup(a=2, b=4))
    said = []
    foresight.unwell = lambda *words: said.append(words)
    foresight._drift.why["b"] = "7 of 20"
    inputs = foresight.before(2000.0, [], engine.book)
    assert inputs[0] == ForecastHealth({"b": "7 of 20"}, since={"b": 2000.0 - SPAN})
    assert said[0][0] == "forecasts are wrong too often: b: 7 of 20"
    engine.step(2000.0, inputs)
    assert engine.core.state.pools["b"].lend_limit == 0
    assert not any(isinstance(e, ForecastHealth) for e in foresight.before(2001.0, [], engine.book))
    del foresight._drift.why["b"]
    inputs = foresight.before(2002.0, [], engine.book)
    assert inputs[0] == ForecastHealth({})
    assert said[-1] == ("", "")
    engine.step(2002.0, inputs)
    assert engine.core.state.pools["b"].lend_limit > 0
    assert isinstance(Step, type)
    assert engine.book.mode is LendingMode.ON


def test_drift_that_is_only_reported_stops_no_lending():
    foresight, engine = foresight_of(setup(a=2, b=4), "say")
    said = []
    foresight.unwell = lambda *words: said.append(words)
    foresight._drift.why["b"] = "7 of 20"
    inputs = foresight.before(2000.0, [], engine.book)
    assert inputs[0] == ForecastHealth({"b": "7 of 20"}, lend=True, since={"b": 2000.0 - SPAN})
    engine.step(2000.0, inputs)
    assert engine.core.state.pools["b"].lend_limit > 0
    assert not any(isinstance(e, ForecastHealth) for e in foresight.before(2001.0, [], engine.book))
    assert said[-1][0] == "forecasts are wrong too often: b: 7 of 20"
    assert "only the last day" in said[-1][1]
    assert "with drift =" in said[-1][1]


def test_of_a_forecast_that_forgets_nothing_it_is_not_said_that_it_does():
    foresight, engine = foresight_of(setup(a=2, b=4), "say", "sliding-max+survival")
    said = []
    foresight.unwell = lambda *words: said.append(words)
    foresight._drift.why["b"] = "7 of 20"
    inputs = foresight.before(2000.0, [], engine.book)
    assert inputs[0] == ForecastHealth({"b": "7 of 20"}, lend=True)
    assert "does not change at once" in said[-1][1]
    assert "last day" not in said[-1][1]


@pytest.mark.parametrize("drift", ["say", "keep"])
def test_after_a_restart_a_forecast_forgets_what_it_had_forgotten_and_no_more(drift):
    foresight, engine = foresight_of(setup(a=2, b=4), drift)
    engine.step(1000.0, [Tick()])
    begun = 1000.0 + 480 * HOUR
    foresight._forecaster.before(begun, [], engine.book)
    foresight._drift.why["b"] = "7 of 20"
    step = engine.step(begun + 1.0, foresight.before(begun + 1.0, [], engine.book))
    foresight.after(begun + 1.0, step)
    now = begun + 72 * HOUR
    foresight.before(now, [], engine.book)

    def own():
        return [past._own.tolist() for past in foresight._forecaster._loads._past]

    before = own()
    assert 288 * 4 - 20 < before[0][1] < 288 * 4 < before[0][0], "the day before, and three since"
    foresight = ForecastService(Predictors(engine.book.setup, "peaks+survival"))
    foresight.drift = drift
    hear(foresight, engine, now)
    assert own() == before
    assert foresight._drift.why == {"b": "7 of 20"}
    assert not any(
        isinstance(e, ForecastHealth) for e in foresight.before(now + 1.0, [], engine.book)
    )
    assert own() == before


def test_a_pool_that_drifts_while_the_history_is_read_is_forgotten_in_the_new_forecast_too():
    foresight, engine = foresight_of(setup(a=2, b=4))
    engine.step(1000.0, [Tick()])
    now = 1000.0 + 480 * HOUR
    make = foresight.predictors.make

    class Meanwhile(Predictors):
        def make(self, *args):
            made = make(*args)
            engine.step(now, [ForecastHealth({"b": "7 of 20"}, since={"b": now - SPAN})])
            return made

    foresight.predictors = Meanwhile(*foresight.predictors)
    hear(foresight, engine, now)
    own = foresight._forecaster._loads._past[0]._own.tolist()
    assert own[1] <= 288 < own[0]


def test_forecasts_go_by_the_quotas_in_force():
    foresight, engine = foresight_of(setup(a=2, b=4))

    def quotas():
        return foresight._forecaster._loads._quotas.tolist()

    assert quotas() == [2, 4]
    foresight.after(2000.0, engine.step(2000.0, [SetPool("b", quota=7)]))
    assert quotas() == [2, 7]
    assert foresight.curious
    foresight = ForecastService(Predictors(engine.book.setup, "peaks+survival"))
    hear(foresight, engine, 3000.0)
    assert quotas() == [2, 7]


def test_the_first_step_takes_the_forecasts_that_were_made_with_the_history():
    """Outside the event loop: of many pools they take long."""
    foresight, engine = foresight_of(setup(a=2, b=4))
    loads = foresight._forecaster._loads
    assert not len(loads._due(loads._asked))
    (foreseen,) = foresight.before(1000.0, [], engine.book)
    assert {(each.pool, each.window) for each in foreseen.loads} == {
        (pool, window) for pool in "ab" for window in range(len(engine.core.state.options.windows))
    }


def test_a_predictor_that_cannot_forget_is_paused():
    foresight, engine = foresight_of(setup(a=2, b=4))
    failed = []
    foresight.failed = failed.append

    def fails(*_):
        raise ZeroDivisionError("of a predictor")

    async def story():
        foresight._forecaster._loads.forget = fails
        foresight._drift.why["b"] = "7 of 20"
        assert foresight.before(2000.0, [Tick()], engine.book) == [Tick()]
        foresight.end()

    asyncio.run(story())
    assert "of a predictor" in failed[0]
    assert not foresight.ready


def test_a_forecast_is_adopted_although_its_first_step_does_not_commit():
    cluster = setup(a=2, b=4)
    foresight, engine = foresight_of(cluster)
    foresight.predictors = foresight.predictors._replace(chosen_by_backtest=True)
    other = "sliding-max+survival"

    async def story():
        foresight.want(None, "better", other)
        foresight.begin_anew(engine, 2000.0, none)
        await foresight.heard()
        assert foresight.before(2000.0, [], engine.book)[0] == ModelChanged(
            "loads", "", "better", other
        )
        foresight.forget()  # the step is not in the journal
        foresight.begin_anew(engine, 3000.0, none)
        await foresight.heard()
        inputs = foresight.before(3000.0, [], engine.book)
        assert inputs[0] == ModelChanged("loads", "", "better", other)
        foresight.after(3000.0, engine.step(3000.0, inputs))
        foresight.begin_anew(engine, 4000.0, none)
        await foresight.heard()
        assert not any(
            isinstance(e, ModelChanged) for e in foresight.before(4000.0, [], engine.book)
        )
        foresight.end()

    asyncio.run(story())
    assert engine.book.adopted == other


@pytest.mark.parametrize("drift", ["say", "keep"])
def test_a_pool_whose_forecasts_drift_is_forecast_from_the_last_day_on(drift):
    foresight, engine = foresight_of(setup(a=2, b=4), drift)
    now = 1000.0 + 480 * HOUR
    foresight._forecaster.before(now, [], engine.book)
    remembered = foresight._forecaster._loads._past
    hours = remembered[1]._own.tolist()
    assert hours == [hours[0]] * 2 > [500] * 2, "three weeks without jobs"
    foresight._drift.why["b"] = "7 of 20"
    foresight.before(now + 1.0, [], engine.book)
    assert foresight.curious, "the next step asks for the forecasts again"
    assert remembered[1]._own[0] == hours[0], "a does not drift"
    assert remembered[1]._own[1] <= 288 < hours[0], "windows of the last day"
    foresight._forecaster._loads.forget = None  # it forgets once
    foresight.before(now + 2.0, [], engine.book)
    foresight.before(now + 3.0, [], engine.book)
    assert foresight.ready


def test_a_forecast_is_adopted_although_the_one_before_fails_meanwhile():
    foresight, engine = foresight_of(setup(a=2, b=4))
    foresight.predictors = foresight.predictors._replace(chosen_by_backtest=True)
    other = "sliding-max+survival"

    def fails(*_):
        raise ZeroDivisionError("of a predictor")

    async def story():
        foresight.want(None, "better", other)
        foresight.begin_anew(engine, 2000.0, none)
        foresight._forecaster.before = fails
        assert foresight.before(2000.0, [], engine.book) == []
        foresight.begin_anew(engine, 3000.0, none)
        await foresight.heard()
        inputs = foresight.before(3000.0, [], engine.book)
        assert inputs[0] == ModelChanged("loads", "", "better", other)
        foresight.end()

    asyncio.run(story())


@pytest.mark.parametrize("drift", ["say", "off"])
def test_a_pool_lends_again_once_drift_no_longer_stops_lending_by_configuration(drift):
    foresight, engine = foresight_of(setup(a=2, b=4), drift)
    engine.step(1500.0, [ForecastHealth({"b": "7 of 20"})])
    if drift == "say":
        assert foresight._drift is not None
        foresight._drift.why.clear()
    inputs = foresight.before(2000.0, [], engine.book)
    assert inputs[0] == ForecastHealth({})
    engine.step(2000.0, inputs)
    assert engine.core.state.pools["b"].lend_limit > 0


def test_without_load_forecasts_no_pool_is_kept_from_lending():
    """Under a policy that asks for none, or with none to be had, whatever was asked for."""
    foresight, engine = foresight_of(replace(setup(a=2, b=4), policy="sjf"))
    assert foresight._drift is None
    engine.step(1500.0, [ForecastHealth({"b": "7 of 20"})])
    assert foresight.before(2000.0, [], engine.book) == [ForecastHealth()]


@story
async def test_without_any_forecasts_a_pool_lends_again_at_the_next_start(folder):
    cluster = setup(a=2, b=4)
    async with serving(folder / "db", cluster, FakeBackend()) as service:
        service.observe(
            ForecastHealth({"b": "7 of 20"})
        )  # as the forecasts said that there were then
        await until(lambda: service.book.pools["b"].kept)
    async with serving(folder / "db", cluster, FakeBackend()) as service:
        await until(lambda: not service.book.pools["b"].kept)
        assert service.engine.core.state.pools["b"].lend_limit > 0


@story
async def test_budgets_are_shown_and_changed_over_http(folder):
    async with door(folder, pools=POOLS) as client:
        body = {"lend_budget_hours": 10.0, "slowed_budget_pct": 100.0}
        said = await asked(client, "PATCH", "/v1/pools/vision", body)
        assert (said["lend_budget_hours"], said["slowed_budget_pct"]) == (10.0, 100.0)
        assert said["kept"] == {}
        said = await asked(client, "PATCH", "/v1/pools/vision", {"lend_budget_hours": 0.0})
        assert list(said["kept"]) == ["hours"]
        text = await (await client.get("/metrics")).text()
        assert 'sia_pool_kept{pool="vision",reason="hours"} 1.0' in text
        said = await asked(client, "PATCH", "/v1/pools/vision", {"slowed_budget_minutes": 0.0})
        assert (said["slowed_budget_minutes"], said["delayed_minutes"]) == (0.0, 0.0)
        assert list(said["kept"]) == ["hours", "minutes"]
        page = await (await client.get("/ui/pools/vision")).text()
        assert "0.00 of 0.00 min" in page
        text = await (await client.get("/metrics")).text()
        assert 'sia_pool_kept{pool="vision",reason="minutes"} 1.0' in text
        body = {"lend_budget_hours": None, "slowed_budget_pct": None, "slowed_budget_minutes": None}
        said = await asked(client, "PATCH", "/v1/pools/vision", body)
        assert (said["lend_budget_hours"], said["slowed_budget_pct"]) == (None, None)
        assert said["kept"] == {}
        for wrong in (
            {"slowed_budget_pct": 101},
            {"lend_budget_hours": -1},
            {"slowed_budget_minutes": -1},
        ):
            await asked(client, "PATCH", "/v1/pools/vision", wrong, status=422)
