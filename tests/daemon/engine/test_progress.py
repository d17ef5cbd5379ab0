"""Reports of progress: what the core hears of them, which are refused, and restarts."""

from math import inf, nan
from random import Random

import pytest
from msgspec import json
from msgspec.structs import replace

from daemon.engine.engine import Engine
from daemon.model.inputs import (
    Answered,
    Cancel,
    Ended,
    Lending,
    Lost,
    Reported,
    Started,
    Stopped,
    Tick,
)
from daemon.model.job import JobPhase
from daemon.model.outputs import Accepted, StartEffect
from sia.contract.solvers import answer
from sia.events import JobProgressed
from sia.limits import MAX_REGIME, MAX_SPEED, MIN_SPEED, UNKNOWN_RUN_TIME
from sia.model import Regime
from tests.support.daemons.daemons import setup, submit


class Story:
    """One pool of one GPU; a step for each line of the story."""

    def __init__(self, policy="fcfs", **more):
        self.engine = Engine.new(replace(setup([1], a=1), policy=policy))
        self.step(0.0, submit("j", run_time=50.0, **more))

    def step(self, now, *inputs):
        self.last = self.engine.step(now, inputs)
        self.engine.check()
        return self.last.answers[0]

    def runs(self, now, attempt=1):
        assert self.step(now, Started("j", attempt)) == Accepted()
        return self

    def reports(self, now, done, speed=None, regime=None, attempt=1, job="j"):
        return self.step(now, Reported(job, attempt, done, speed, regime))

    @property
    def told(self):
        """The progress that the core was told in the last step, without the time and the job."""
        (event,) = (e for e in self.last.events if isinstance(e, JobProgressed))
        return event.done, event.speed, event.run_time, event.regime

    @property
    def record(self):
        return self.engine.book.jobs["j"]

    @property
    def core(self):
        return self.engine.core.state.jobs[self.record.core]


def test_the_run_time_follows_from_a_reported_share():
    story = Story().runs(0.0)
    assert story.reports(100.0, 0.4) == Accepted()
    assert story.told == (100.0, 1.0, pytest.approx(250.0), None)
    assert story.core.end(story.core.run_time) == pytest.approx(250.0)
    assert story.record.progress.end == pytest.approx(250.0)
    (notice,) = story.last.notices
    assert (notice.kind, notice.job, notice.pool) == ("progress", "j", "a")
    assert notice.data["done"] == 0.4
    assert notice.data["end"] == pytest.approx(250.0)


def test_a_reported_speed_counts_from_the_report_on():
    story = Story().runs(0.0)
    story.reports(0.0, 0.0, speed=2.0, regime=3)
    assert story.told == (0.0, 2.0, 50.0, 3)  # nothing is known of the whole but the estimate
    story.reports(10.0, 0.1)
    assert story.told == (20.0, 2.0, pytest.approx(200.0), 3)  # speed and regime stay
    assert story.record.progress.end == pytest.approx(10.0 + 180.0 / 2)
    story.reports(100.0, 1.0, speed=1.0)
    assert story.record.progress.end == 100.0


def test_the_clock_counts_from_when_the_job_was_seen_running():
    story = Story().runs(60.0)  # an hour passes between order and start on some clusters
    story.reports(160.0, 0.5)
    assert story.told[0] == 100.0
    assert story.core.end(story.core.run_time) == pytest.approx(260.0)


def test_the_speed_of_a_job_whose_start_was_not_yet_seen_is_accepted():
    story = Story()
    assert story.reports(5.0, 0.5, speed=2.0) == Accepted()
    assert story.told == (0.0, 2.0, 50.0, None)


def test_a_job_that_reports_no_work_done_has_all_of_it_left():
    story = Story().runs(0.0)
    story.reports(30.0, 0.0)
    assert story.core.end(story.core.run_time) == 80.0


def test_no_estimate_exceeds_the_time_limit():
    story = Story(time_limit=150.0).runs(0.0)
    story.reports(100.0, 0.1)
    assert story.told == (100.0, 1.0, 150.0, None)
    assert story.record.whole == pytest.approx(1000.0)


def test_the_next_attempt_may_begin_before_or_after_the_last_report():
    story = Story(requeue=True).runs(0.0)
    story.reports(100.0, 0.5)
    story.step(110.0, Lost("j", 1, "its node died"))
    assert story.record.progress is None
    assert story.core.run_time == 200.0  # what it has reported is the best estimate
    story.runs(110.0, attempt=2)
    assert story.reports(120.0, 0.25, attempt=2) == Accepted()  # its last checkpoint was older
    assert story.told == (50.0, 1.0, 200.0, None)
    assert story.record.progress.end == 270.0
    story.reports(145.0, 0.375, attempt=2)
    assert story.told == (75.0, 1.0, pytest.approx(200.0), None)


def test_a_further_attempt_of_a_job_that_never_reported_counts_against_its_estimate():
    story = Story(requeue=True).runs(0.0)
    story.step(10.0, Lost("j", 1, "its node died"))
    story.runs(10.0, attempt=2)
    story.reports(12.0, 0.4, attempt=2)
    assert story.told == (20.0, 1.0, 50.0, None)


@pytest.mark.parametrize(
    ("asked", "status", "words"),
    [
        (Reported("k", 1, 0.5), 404, "no job 'k'"),
        (Reported("j", 2, 0.5), 409, "is in attempt 1, not in 2"),
        (Reported("j", 1, 0.3), 409, "has reported 0.4 done, and now 0.3"),
        (Reported("j", 1, nan), 422, "done must be 0 to 1"),
        (Reported("j", 1, 1.01), 422, "done must be 0 to 1"),
        (Reported("j", 1, -0.1), 422, "done must be 0 to 1"),
        (Reported("j", 1, 0.5, 0.0), 422, "speed must be"),
        (Reported("j", 1, 0.5, nan), 422, "speed must be"),
        (Reported("j", 1, 0.5, inf), 422, "speed must be"),
        (Reported("j", 1, 0.5, MIN_SPEED / 2), 422, "speed must be"),
        (Reported("j", 1, 0.5, MAX_SPEED * 2), 422, "speed must be"),
        (Reported("j", 1, 0.5, 1.0, -1), 422, "regime must be"),
        (Reported("j", 1, 0.5, 1.0, MAX_REGIME + 1), 422, "regime must be"),
    ],
)
def test_a_wrong_report_is_refused_and_the_job_goes_on(asked, status, words):
    story = Story().runs(0.0)
    story.reports(100.0, 0.4)
    refused = story.step(102.0, asked)
    assert refused.status == status
    assert words in refused.detail
    assert refused.mend
    assert "\n" not in refused.detail + refused.mend
    assert not story.last.events
    assert story.record.phase is JobPhase.RUNNING
    assert story.record.progress.at == 100.0
    assert story.reports(103.0, 0.4) == Accepted()  # no progress is no mistake


def test_too_many_reports_are_refused_with_a_time_to_retry():
    story = Story().runs(0.0)
    story.reports(100.0, 0.4)
    refused = story.reports(100.25, 0.5)
    assert (refused.status, refused.retry_after) == (429, 0.75)
    first, second = story.engine.step(101.0, [Reported("j", 1, 0.5)] * 2).answers
    assert first == Accepted()
    assert second.status == 429


def test_a_job_that_does_not_run_reports_nothing():
    story = Story()
    story.step(1.0, submit("waits"))
    assert story.reports(2.0, 0.5, job="waits", attempt=0).status == 409
    story.step(3.0, Ended("j", 1, 0))
    refused = story.reports(4.0, 0.5)
    assert (refused.status, refused.title) == (409, "job does not run")
    assert "finished" in refused.detail


def test_a_job_that_is_being_ended_still_reports():
    story = Story().runs(0.0)
    story.step(5.0, Cancel("j"))
    assert story.reports(6.0, 0.5) == Accepted()


def test_progress_reported_during_a_stop_is_the_work_that_the_job_keeps():
    story = Story("srtf").runs(0.0)
    story.step(10.0, submit("short", run_time=5.0))
    assert story.record.phase is JobPhase.STOPPING
    assert story.reports(12.0, 0.5, speed=0.1) == Accepted()  # it has written a checkpoint
    story.step(14.0, Stopped("j", 1))
    assert story.core.done == pytest.approx(12.0 + 2 * 0.1)
    story.step(14.0, Started("short", 1))
    story.step(19.0, Ended("short", 1, 0))
    assert story.record.attempt == 2


def some_input(rng, engine):
    placed = [r for r in engine.book.jobs.values() if r.placed]
    if not placed or rng.random() < 0.3:
        return submit(f"j{rng.randrange(30)}", rng.choice("ab"), rng.randint(1, 2), requeue=True)
    record = rng.choice(placed)
    key = record.spec.id, record.attempt
    if record.phase is JobPhase.STOPPING and rng.random() < 0.5:
        return Stopped(*key)
    return rng.choice(
        [Started(*key)] * 2
        + [Ended(*key, 0), Lost(*key, "gone")]
        + [Reported(*key, rng.random(), rng.choice([None, 0.5, 2.0]), rng.choice([None, 1]))] * 4
    )


@pytest.mark.parametrize("policy", ["sia", "easy", "sjf", "themis", "srtf", "las"])
@pytest.mark.parametrize("seed", range(3))
def test_whatever_jobs_report_a_restored_engine_decides_the_same(policy, seed):
    rng, now, taken = Random(seed), 0.0, 0
    engine = Engine.new(replace(setup([3, 2], a=3, b=2), policy=policy))
    for _ in range(150):
        now += rng.choice([0.0, 0.5, 2.0, 30.0])
        inputs = [some_input(rng, engine) for _ in range(rng.randint(1, 3))]
        again = Engine.restore(engine.dump())
        before = {job: record.progress for job, record in engine.book.jobs.items()}
        step = engine.step(now, inputs)
        assert again.step(now, inputs) == step
        assert again.dump() == engine.dump()
        engine.check()
        taken += sum(isinstance(e, JobProgressed) for e in step.events)
        restarted = {e.job for e in step.effects if isinstance(e, StartEffect)}
        for job_id, record in engine.book.jobs.items():
            last, said = before.get(job_id), record.progress
            if said is not None:
                assert 0 <= said.done <= 1
                assert said.end is None or said.at <= said.end < inf
                if last is not None and job_id not in restarted:
                    assert said.done >= last.done
    assert taken > 20


def test_shadow_lending_receives_progress_of_jobs_that_run_in_both_cores():
    story = Story()
    story.step(1.0, Lending(on=False, shadow=True))
    story.runs(1.0)
    story.reports(101.0, 0.5)
    story.step(102.0, Tick())
    story.engine.settle_accounts()
    kept = Engine.restore(story.engine.dump())
    shadow = json.decode(kept.dump())["shadow"]
    (job,) = shadow["jobs"]
    assert job["done"] == 100.0
    assert not kept.book.shadow.renewed


def test_a_report_that_comes_with_the_start_reaches_the_core():
    story = Story("srtf")
    story.step(60.0, Reported("j", 1, 0.5, 2.0, 3), Started("j", 1))
    assert story.last.answers == [Accepted(), Accepted()]
    assert story.told == (0.0, 2.0, 50.0, 3)
    assert story.core.regime == 3


def test_a_start_that_is_seen_after_a_report_changes_nothing():
    story = Story("srtf")
    story.reports(10.0, 0.5, speed=2.0)
    story.runs(60.0)
    assert story.core.work(70.0) == story.record.work(70.0) == 120.0


REGIMES = (Regime("32", 10.0, 4.0), Regime("64", 10.0, 2.0))
"""As stated: 20 epochs, at twice the speed from the eleventh on, in 60 s."""


def test_a_job_with_regimes_says_which_one_it_is_in_and_how_many_epochs_are_done():
    story = Story(mode="gns", regimes=REGIMES)
    assert story.record.expected == 50.0, "a stated estimate comes before the regimes"
    story.runs(0.0)
    assert story.reports(20.0, 0.25, regime=0) == Accepted()
    # 5 epochs of 4 s; 15 are left, of which the first regime gets 5 and the other one 10
    assert story.told == (20.0, 1.0, pytest.approx(60.0), 0)
    story.reports(28.0, 0.35, regime=1)
    # it has changed after 7 epochs already, so that 13 epochs of 2 s are left
    assert story.told == (28.0, 1.0, pytest.approx(54.0), 1)
    assert story.core.begun == (28.0,)
    story.reports(30.0, 0.5)
    # its epochs count, not the clock: three more epochs of 2 s are done
    assert story.told == (34.0, 1.0, pytest.approx(54.0), 1)
    assert story.record.progress.end == pytest.approx(30.0 + 20.0)
    back = story.reports(40.0, 0.6, regime=0)
    assert (back.status, back.title) == (409, "regime goes back")
    story.reports(41.0, 0.8, regime=3)
    assert story.core.begun == (28.0, 46.0, 46.0), "it has skipped a regime"


def test_without_a_report_of_its_regime_a_job_passes_through_those_that_it_states():
    story = Story(regimes=REGIMES).runs(0.0)
    story.reports(40.0, 0.75)
    assert story.told == (50.0, 1.0, pytest.approx(60.0), None)


def test_a_job_that_states_regimes_is_expected_to_run_as_long():
    story = Story(regimes=REGIMES)
    story.step(1.0, submit("k", run_time=0.0, regimes=REGIMES))
    assert story.engine.book.jobs["k"].expected == 60.0


@pytest.mark.parametrize(("seconds", "fits"), [(60.0, True), (60.01, True), (60.02, False)])
def test_regimes_that_miss_the_duration_of_a_job_are_refused(seconds, fits):
    story = Story()
    answer = story.step(1.0, submit("k", regimes=REGIMES, duration=seconds))
    assert (answer == Accepted()) is fits
    if not fits:
        assert (answer.status, answer.title) == (422, "invalid")
        assert answer.detail == "the regimes take 60 s, but the job 60.02 s"
        assert answer.mend == "make epochs · seconds of all regimes add up to duration"


def test_regimes_that_take_longer_than_any_run_time_count_as_unknown():
    story = Story(regimes=(Regime("32", 1e15, 1e15), Regime("64", 1e-9, 1e-9)))
    story.step(1.0, submit("k", run_time=0.0, regimes=(Regime("32", 1e15, 1e15),)))
    assert story.engine.book.jobs["k"].expected == UNKNOWN_RUN_TIME
    story.runs(2.0)
    assert story.reports(20.0, 1e-18, regime=0) == Accepted()
    assert story.record.progress.left is None
    assert story.record.progress.end is None
    assert story.record.expected == UNKNOWN_RUN_TIME
    assert story.reports(40.0, 1.0, regime=1) == Accepted()
    assert story.told[0] <= UNKNOWN_RUN_TIME


def test_a_restored_engine_knows_when_regimes_began():
    story = Story(policy="mst", regimes=REGIMES)
    story.runs(0.0)
    story.reports(28.0, 0.35, regime=1)
    state = Engine.restore(story.engine.dump())
    assert state.core.state.jobs["j"].begun == (28.0,)


def solved(engine):
    """What a solver answers to the question that the engine has asked."""
    event = answer(engine.core.state.now, engine.book.solving, timed=False).event
    return Answered(event.request, event.status, event.values, event.bound)


def test_a_reported_change_is_planned_for_and_a_restart_in_mid_solve_plans_the_same():
    engine = Engine.new(replace(setup([1], a=1), policy="shockwave"))
    for name in "jk":
        engine.step(0.0, [submit(name, run_time=0.0, mode="gns", regimes=REGIMES * 40)])
    (start,) = engine.step(0.0, [solved(engine)]).effects
    engine.step(1.0, [Started(start.job, 1)])
    engine.step(60.0, [Reported(start.job, 1, 0.02, None, 1)])
    engine.step(engine.due, [Tick()])
    reason = engine.book.jobs[start.job].reason
    assert "fairness is 1.00, its weight 1; after" in reason
    assert reason.endswith("it is expected to run 2 times as fast")
    assert engine.book.solving is not None, "what it reported made the plan stale"
    again = Engine.restore(engine.dump())
    found = solved(engine)
    first, second = (each.step(each.core.state.now, [found]) for each in (engine, again))
    assert (first.effects, first.decisions) == (second.effects, second.decisions)
    assert engine.dump() == again.dump()


@pytest.mark.parametrize("policy", ["shockwave", "ftf", "filter:f=1"])
def test_wrong_words_of_a_job_in_regimes_stop_neither_it_nor_the_next_rounds(policy):
    story = Story(policy=policy, mode="gns", regimes=REGIMES)
    engine = story.engine

    def goes_on(now, *inputs):
        step = engine.step(now, inputs)
        while engine.book.solving is not None:
            step = engine.step(now, [solved(engine)])
        engine.check()
        return step

    goes_on(0.0)
    story.runs(0.0)
    assert story.reports(20.0, 0.5, regime=1) == Accepted()
    assert story.reports(20.5, 0.5, regime=1).status == 429, "twice within a second"
    assert story.reports(21.0, 0.5, regime=1) == Accepted(), "twice"
    assert story.reports(22.0, 0.4).status == 409
    assert story.reports(22.0, 0.6, regime=0).status == 409
    assert story.reports(23.0, float("nan")).status == 422
    assert story.reports(24.0, 1.5).status == 422
    assert story.reports(25.0, 1.0, regime=9) == Accepted(), "more regimes than stated, at its end"
    goes_on(30.0, submit("k", run_time=50.0, mode="gns", regimes=REGIMES))
    for now in (120.0, 240.0, 360.0):
        goes_on(now, Tick())
    assert story.reports(400.0, 1.0, regime=9) == Accepted(), "past its end, and it still runs"
    assert story.record.phase.value in ("running", "stopping")
    goes_on(480.0, Tick())
