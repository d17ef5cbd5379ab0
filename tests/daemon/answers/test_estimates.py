"""Estimates by themselves: worlds played forward, days drawn, corrections. No service."""

from math import inf
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from daemon.answers.estimates.at_submission import new_job
from daemon.answers.estimates.calibration import Calibration, Given, StatedMoment
from daemon.answers.estimates.observations import EstimateInputs
from daemon.answers.estimates.predict import EstimateContext
from daemon.answers.estimates.predict import estimate as estimate_of
from daemon.answers.estimates.recent_arrivals import BLOCK, DAY, RecentArrivals
from daemon.answers.estimates.worlds import (
    JobOutcomes,
    MomentQuantiles,
    Outlook,
    Times,
    outlook,
    plain_job,
    queue_of,
    spread,
)
from daemon.answers.whatif.compare import compare
from daemon.answers.whatif.whatif import Question, play, play_changed
from daemon.engine.engine import Engine
from daemon.model.inputs import Cancel, Ended, Hold, Lost, SetPool, Started, Submit
from daemon.model.outputs import StartEffect
from daemon.wire.whatif import JobWhatIf, WhatIf
from sia.model import Job, Options
from tests.support.daemons.daemons import job, setup, submit


class Told:
    """An engine, and those who hear of it."""

    def __init__(self, now=1e6, policy="sia", **quotas):
        # Its ticks are minutes apart.
        cluster = replace(setup(**quotas), options=Options(), policy=policy)
        self.engine, self.heard, self.now = Engine.new(cluster), EstimateInputs(), now

    def step(self, now, *inputs):
        self.now = now
        step = self.engine.step(now, inputs)
        for notice in step.notices:
            self.heard.hear(notice, self.engine.book.job(notice.job))
        starts = [e for e in step.effects if isinstance(e, StartEffect)]
        if starts:
            self.step(now, *(Started(e.job, e.attempt) for e in starts))
        return step

    def ran(self, count, seconds, pool="a"):
        """So many jobs, one after the other, each of so many seconds."""
        for i in range(count):
            name = f"before-{pool}-{seconds:g}-{i}"
            self.step(self.now + 400, submit(name, pool))
            self.step(self.now + seconds, Ended(name, 1, 0))

    def look(self, after=0.0):
        heard = self.heard
        heard.lasting.advance(self.now + after)
        return outlook(self.engine, heard.lasting, heard.lately, self.now + after)


def test_a_queue_starts_when_those_before_it_are_over():
    told = Told(a=1)
    told.ran(60, 1000.0)
    told.heard.lately = RecentArrivals()  # nobody comes
    told.step(told.now + 500, *(submit(f"j{i}") for i in range(4)))
    now, said = told.now, told.look()
    for i in (1, 2, 3):
        times = said.times(f"j{i}")
        assert times.start.p50 - now == pytest.approx(1000 * i, rel=0.4)
        assert times.start.p50 <= times.start.p90 < now + 2500 * i
        assert times.end.p50 - times.start.p50 == pytest.approx(1000, rel=0.5)


def test_a_start_more_than_a_week_away_has_no_time():
    told = Told(policy="gssf", a=1)  # which has no ticks: what comes next comes in weeks
    told.ran(30, 20 * DAY)
    told.heard.lately = RecentArrivals()  # nobody comes
    told.step(told.now + 500, submit("runs"), submit("waits"))
    times = told.look(after=DAY).times("waits")
    assert (times.start.p50, times.start.p90) == (inf, inf)


def test_an_override_that_ends_on_a_quiet_second_day_is_part_of_the_simulation():
    told = Told(policy="gssf", a=2)
    told.ran(30, 3 * DAY)
    told.heard.lately = RecentArrivals()  # nobody comes
    ends = told.now + 1.5 * DAY
    told.step(told.now + 500, SetPool("a", quota=1, until=ends), submit("runs"), submit("waits"))
    assert told.look().times("waits").start.p50 == ends


def test_the_same_state_gives_the_same_answer_and_is_not_changed():
    told = Told(a=2, b=1)
    told.ran(30, 200.0)
    told.step(told.now + 500, *(submit(f"j{i}", "ab"[i % 2]) for i in range(9)))
    before = told.engine.dump()
    said = told.look(50)
    assert told.look(50).encode() == said.encode()
    assert told.engine.dump() == before
    assert Outlook.decode(said.encode()).times("j5") == said.times("j5")


def asked_of(told, *new, **question):
    """What a what-if says of these jobs, of a copy."""
    known = EstimateContext(told.heard, told.look(), worlds=19)
    asked = Question(WhatIf(**question), new, lambda *_: 43_200.0, known)
    as_is, changed = (
        do(Engine.restore(told.engine.dump()), told.now, asked) for do in (play, play_changed)
    )
    return compare(told.engine.book, told.now, asked, as_is, changed, lambda _: True)


def queued(windows=43_200.0):
    """Three jobs wait for one GPU; jobs like them last 1000 s, and the scheduler says 12 hours."""
    told = Told(a=1)
    told.ran(60, 1000.0)
    told.heard.lately = RecentArrivals()  # nobody comes
    told.step(told.now + 500, *(Submit(job(f"j{i}"), windows) for i in range(4)))
    return told


def test_the_prediction_for_a_new_job_equals_its_estimate_after_submission():
    """Not by the windows that its run time and those before it are rounded up to."""
    told = queued()
    (new,) = asked_of(told, job("new")).jobs
    told.step(told.now, Submit(job("new"), 43_200.0))
    given = estimate_of(told.heard, told.look(), told.engine.book.job("new"), told.now)
    wait, said = new.then.start - told.now, given.start.p50 - told.now
    assert 3000 < wait < 6000
    assert wait == pytest.approx(said, rel=0.25)
    assert new.then.start_p90 - told.now == pytest.approx(given.start.p90 - told.now, rel=0.25)
    assert new.then.end_p90 - told.now == pytest.approx(given.end.p90 - told.now, rel=0.25)
    assert new.then.by == given.by == "playout"


def test_a_changed_job_is_estimated_in_both_futures():
    told = queued()
    (last,) = asked_of(told, jobs=[JobWhatIf("j3", priority=5)]).jobs
    assert last.then.start - told.now == pytest.approx(1000, rel=0.6)
    assert last.now.start - told.now == pytest.approx(3000, rel=0.6)
    (gone,) = asked_of(told, jobs=[JobWhatIf("j1", cancel=True)]).jobs
    assert gone.then is None
    assert gone.now.start_p90 >= gone.now.start


def test_the_end_of_a_job_that_would_start_at_once_follows_from_similar_jobs():
    told = Told(a=2)
    told.ran(60, 1000.0)
    (new,) = asked_of(told, job("new")).jobs
    assert (new.then.start, new.then.start_p90) == (told.now, told.now)
    assert new.then.end - told.now == pytest.approx(1000, rel=0.5)


def test_the_newest_playout_answers_when_too_many_are_queued():
    told = queued()
    known = EstimateContext(told.heard, told.look(), worlds=0)
    asked = Question(WhatIf(), (job("new"),), lambda *_: 0.0, known)
    said = play_changed(Engine.restore(told.engine.dump()), told.now, asked)
    assert said.times["new"].by == "queue"
    assert said.times["new"].times.start == known.outlook.times("j3").start


def test_estimated_starts_vary_with_the_run_times_of_similar_jobs():
    told = queued()
    said = asked_of(told, job("new", priority=3))
    assert {move.job for move in said.later} == {"j1", "j2", "j3"}
    assert all(move.by == pytest.approx(1000, rel=0.5) for move in said.later)


def test_worlds_in_which_a_pending_job_should_have_started_are_dropped():
    runs = JobOutcomes([float(200 + i) for i in range(19)], [float(100 + i) for i in range(19)])
    assert runs.times(0.0, 0.0).start.p50 == 109
    assert runs.times(0.0, 110.0).start == spread(range(111, 119))
    late = runs.times(0.0, 500.0)  # longer than in any of them
    assert (late.start.p50, late.start.p90) == (pytest.approx(950, rel=0.1), 500 + 500 * 17 / 2)
    assert late.end.p50 - late.start.p50 == pytest.approx(100)


def test_times_more_than_a_week_away_have_no_estimate():
    far = MomentQuantiles(6 * DAY, 6.9 * DAY, 6 * DAY)
    calibration = Calibration()
    end, start = calibration.corrected(
        "a", 0.0, Times(MomentQuantiles(8 * DAY, 9 * DAY, 8 * DAY), far)
    )
    assert start.p50 == pytest.approx(6 * DAY)
    assert (start.p90, end.p50, end.p90) == (None, None, None)


def test_a_job_is_never_stated_to_end_sooner_after_its_start_than_it_can_run():
    starts = [300.0 + world for world in range(19)]
    raw = JobOutcomes([start + 120 for start in starts], starts).times(0.0, 0.0)
    end, start = Calibration().corrected("a", 0.0, raw)
    assert start.p90 > raw.start.p90  # wide, at a new site
    assert end.p90 - start.p90 == pytest.approx(120)
    assert end.p50 - start.p50 >= 120


def test_at_a_new_site_the_p90_of_a_start_is_wide_until_outcomes_narrow_it():
    calibration, now = Calibration(), 0.0

    def raw(now):
        end, start = (
            MomentQuantiles(now + 9e3, now + 9e4, now),
            MomentQuantiles(now + 400, now + 800, now),
        )
        return Times(end, start)

    _, first = calibration.corrected("a", now, raw(now))
    assert first.p90 - first.p50 > 2 * 400
    for i in range(200):
        now += 1e5
        end, start = calibration.corrected("a", now, raw(now))
        calibration.give(Given(f"j{i}", "a", now, now, end, start))
        calibration.started(f"j{i}", now + 100.0)
    _, last = calibration.corrected("a", now, raw(now))
    assert last.p90 - now < (first.p90 - 0.0) / 1.5
    assert last.p50 - now < 400 / 1.5, "p50 is corrected, too, and soon"


def test_estimates_respect_time_limits_and_a_job_that_cannot_start_is_beyond_the_horizon():
    told = Told(a=2)
    told.ran(40, 5000.0)
    told.step(told.now + 1, submit("x", time_limit=600.0), submit("y", time_limit=700.0))
    told.step(told.now + 1, submit("wide", gpus=2), submit("short", time_limit=60.0))
    said, now = told.look(), told.now
    assert said.times("wide").start.p90 <= now + 700
    assert said.times("short").end.p90 <= said.times("short").start.p90 + 60
    told.step(told.now + 1, Hold("short"))
    assert told.look().times("short") is None


def test_jobs_on_gpus_end_by_how_long_they_have_run():
    told = Told(a=1)
    told.ran(60, 1000.0)
    told.step(told.now + 500, submit("x"))
    record = told.engine.book.job("x")
    early = new_job(Outlook(told.now), told.heard.lasting, record, told.now + 10)
    late = new_job(Outlook(told.now), told.heard.lasting, record, told.now + 900)
    assert early.start is None
    assert told.now + 900 <= late.end.p50 <= early.end.p90 + 900
    assert early.end.p50 - told.now == pytest.approx(1000, rel=0.5)


def test_a_job_submitted_after_the_playout_starts_with_the_last_of_its_queue():
    told = Told(a=1)
    told.ran(60, 1000.0)
    told.step(told.now + 500, *(submit(f"j{i}") for i in range(3)))
    said = told.look()
    told.step(told.now + 5, submit("new"))
    record = told.engine.book.job("new")
    times = new_job(said, told.heard.lasting, record, told.now)
    assert times.start == said.times("j2").start
    assert times.end.p50 > times.start.p50
    told.step(told.now + 5, submit("held", hold=True))
    held = told.engine.book.job("held")
    assert new_job(said, told.heard.lasting, held, told.now) is None
    assert new_job(Outlook(told.now), told.heard.lasting, record, told.now) is None


def test_under_a_policy_with_queues_it_starts_with_the_last_of_its_own():
    told = Told(policy="wfq:sizes=1000:weights=1+1:zeta=0", a=2)
    told.ran(60, 1000.0)
    short = [submit(f"short-{i}", run_time=50.0) for i in range(2)]
    long = [submit(f"long-{i}", run_time=9000.0) for i in range(4)]
    told.step(told.now + 500, *short, *long)
    said = told.look()
    told.step(told.now + 5, submit("new", run_time=50.0))
    record = told.engine.book.job("new")
    queue = queue_of(told.engine.core, record.core)
    start = new_job(said, told.heard.lasting, record, told.now, queue).start
    assert start == said.times("short-1").start
    assert start != said.times("long-3").start


def test_the_end_of_an_elastic_job_that_runs_counts_the_gpus_that_it_will_get():
    told = Told(policy="wfq:sizes=1000:weights=1+1:zeta=0", a=4)
    told.ran(60, 1000.0)
    stated = {"short": 50.0, "long": 9000.0}
    told.step(
        told.now + 500,
        *(Submit(job(i, "a", 4, min_width=1, run_time=t), t) for i, t in stated.items()),
    )
    record = told.engine.book.job("long")
    assert told.engine.core.state.jobs[record.core].width == 2  # until the short one has ended
    said = told.look()
    later = estimate_of(told.heard, said, record, told.now, resizes=True)
    alone = estimate_of(told.heard, said, record, told.now)
    assert later.end.p50 - told.now < 0.7 * (alone.end.p50 - told.now)
    assert said.times("long", told.now + 1e9, runs=True) is None  # it should have ended long ago


def test_simulated_arrivals_repeat_another_day_at_the_same_hours():
    lately = RecentArrivals()
    for day in range(10):
        for i in range(5):
            lately.submitted(Job(f"{day}-{i}", "a", day * DAY + 9 * 3600 + 60 * i, 1), 50.0)
            lately.ended(f"{day}-{i}", 10.0 + i)
    now = 10 * DAY + 3 * 3600
    for world in range(5):
        came = [*lately.next(world, now, now + DAY, now)]
        assert [time - 10 * DAY for time, _ in came] == [9 * 3600 + 60 * i for i in range(5)]
        assert [each.ran for _, each in came] == [10.0, 11.0, 12.0, 13.0, 14.0]
        assert came == [*lately.next(world, now, now + DAY, now)]


def test_without_history_no_arrivals_are_simulated():
    lately = RecentArrivals()
    assert [*lately.next(0, 0.0, DAY, 0.0)] == []
    lately.submitted(Job("x", "a", 0.0, 1), 50.0)
    assert [*lately.next(0, 10.0, DAY, 10.0)] == []
    assert len([*lately.next(0, BLOCK, 3 * BLOCK, BLOCK + 1)]) <= 2


@given(st.integers(0, 2**32), st.integers(1, 200))
@settings(max_examples=30, deadline=None)
def test_drawn_arrivals_repeat_earlier_jobs_within_the_period(seed, count):
    rng, lately, now = Random(seed), RecentArrivals(), 0.0
    for i in range(count):
        now += rng.expovariate(1 / 3000)
        lately.submitted(Job(str(i), rng.choice("abc"), now, 1), 1.0)
    for time, came in lately.next(seed % 19, now, now + DAY, now):
        assert now <= time < now + DAY
        assert came.job.submit <= now
        assert time - came.job.submit >= 0


def estimate(job_id, made, p50, p90, pool="a"):
    said = StatedMoment(made + p50, made + p90, None, (made + p50, made + p90))
    return Given(job_id, pool, made, made, said)


def test_short_estimates_are_corrected_until_they_are_calibrated():
    rng, calibration, held = Random(1), Calibration(), []
    for i in range(1500):
        now = i * 10_000.0
        raw = Times(MomentQuantiles(now + 400, now + 800, now + 400))  # in truth a median of 1000
        end, _ = calibration.corrected("a", now, raw)
        calibration.give(Given(f"j{i}", "a", now, now, end))
        took = rng.lognormvariate(6.9, 1.0)
        calibration.ended(f"j{i}", now + took)
        held.append(now + took <= end.p90)
    assert sum(held[500:]) / 1000 == pytest.approx(0.9, abs=0.03)
    tally = calibration.tallies["end", "a", 1]
    assert (tally.count, tally.judged) == (1500, [1500, 1500])
    assert tally.covered[1] == sum(held)


def test_a_miss_counts_when_the_time_has_come_and_not_when_the_job_ends():
    calibration = Calibration()
    calibration.give(estimate("x", 0.0, 10.0, 100.0))
    calibration.advance(50.0)
    tally = calibration.tallies["end", "a", 0]
    assert (tally.judged, tally.covered, tally.count) == ([1, 0], [0, 0], 0)
    calibration.ended("x", 60.0)
    assert (tally.judged, tally.covered, tally.count) == ([1, 1], [0, 1], 1)
    assert [*tally.errors] == [50.0]
    assert [*tally.pred_errors] == [5.0]
    assert [*tally.widths] == [90.0]


def test_estimates_given_under_other_options_of_the_policy_are_judged_apart():
    calibration = Calibration()
    calibration.give(estimate("old", 0.0, 10.0, 100.0))
    calibration.retuned(5.0)
    late = replace(estimate("late", 6.0, 10.0, 100.0), tuned=0.0)  # made before it was heard of
    calibration.give(late)
    calibration.give(replace(estimate("new", 6.0, 10.0, 100.0), tuned=5.0))
    moved = [calibration.shift(("end", "a", 0), share) for share in (0.5, 0.9)]
    calibration.ended("old", 500.0)
    calibration.ended("late", 500.0)
    apart, own = calibration.apart["end", "a", 0], calibration.tallies["end", "a", 0]
    assert (apart.count, apart.judged, apart.covered) == (2, [2, 2], [0, 0])
    assert (own.count, own.judged) == (0, [1, 1])
    calibration.ended("new", 501.0)
    assert own.count == 1
    alone = Calibration()
    alone.give(estimate("new", 6.0, 10.0, 100.0))
    alone.ended("new", 501.0)
    shifts = [[each.shift(("end", "a", 0), share) for share in (0.5, 0.9)]
              for each in (calibration, alone)]  # fmt: skip
    assert shifts[0] == shifts[1] != moved, "only the estimate under the present options corrects"


def test_a_restart_judges_estimates_as_before():
    given = [
        estimate("old", 10.0, 10.0, 100.0),
        replace(estimate("new", 60.0, 10.0, 100.0), tuned=50.0),
    ]
    again = EstimateInputs()
    again.learn([*again.events([], given), *again.changes(given, 50.0)])
    for name in ("old", "new"):
        again.calibration.ended(name, 500.0)
    assert again.tuned == 50.0
    assert again.calibration.apart["end", "a", 0].count == 1
    assert again.calibration.tallies["end", "a", 0].count == 1


def test_withdrawn_and_held_jobs_do_not_change_the_calibration():
    told = Told(a=1)
    told.step(told.now + 1, submit("runs"), submit("x"), submit("y"))
    for name in "xy":
        said = StatedMoment(told.now + 50, told.now + 90, None, (told.now + 50, told.now + 90))
        told.heard.calibration.give(Given(name, "a", told.now, told.now, said, said))
    told.step(told.now + 1, Cancel("x"), Hold("y"))
    told.heard.calibration.advance(told.now + 1000)
    assert told.heard.calibration.tallies == {}


@given(st.lists(st.tuples(st.floats(0, 1e6), st.floats(0, 1e6), st.floats(0, 1e6)), max_size=60))
@settings(max_examples=50, deadline=None)
def test_stated_times_are_ordered_and_never_in_the_past(outcomes):
    calibration, now = Calibration(), 0.0
    for i, (wait, more, took) in enumerate(outcomes):
        now += 1e7
        start = MomentQuantiles(now + wait, now + 2 * wait, now + wait)
        raw = Times(MomentQuantiles(start.p50 + more, inf, inf), start)
        end, begin = calibration.corrected("a", now, raw)
        p50, p90 = (inf if moment is None else moment for moment in (begin.p50, begin.p90))
        assert now <= p50 <= p90
        assert p90 >= start.p50
        assert p50 <= (inf if end.p50 is None else end.p50)
        assert end.p90 is None
        calibration.give(Given(str(i), "a", now, now, end, begin))
        calibration.started(str(i), now + took)
        calibration.ended(str(i), now + took + 1)
    for tally in calibration.tallies.values():
        assert all(hits <= count for hits, count in zip(tally.covered, tally.judged, strict=True))


def test_reading_the_history_at_once_gives_the_same_estimates_as_living_it():
    told = Told(a=2)
    told.ran(30, 300.0)
    told.step(told.now + 500, *(submit(f"j{i}") for i in range(5)))
    ended = [*told.engine.book.ended.values()]
    again = EstimateInputs()
    again.learn(again.events([*ended, *told.engine.book.jobs.values()]))
    now = told.now + 100
    for heard in (told.heard, again):
        heard.lasting.advance(now)
    one, other = (
        outlook(told.engine, heard.lasting, heard.lately, now) for heard in (told.heard, again)
    )
    assert one.encode() == other.encode()


def test_a_job_that_is_submitted_again_after_a_loss_has_an_estimate_again():
    told = Told(a=1)
    told.ran(20, 300.0)
    told.step(told.now + 1, Submit(job("x", requeue=True), 50.0))
    told.step(told.now + 100, Lost("x", 1, "node"))
    told.step(told.now + 300, Ended("x", 2, 0))
    assert told.engine.book.job("x").ended is not None
    assert plain_job(told.engine.book.job("x")).id not in told.heard.lasting._running


def test_a_job_without_any_estimate_costs_no_simulation(monkeypatch):
    """Where a playout has not seen 50,000 waiting jobs, a submission would cost twice as much."""
    told = Told(a=1)
    told.ran(60, 1000.0)
    told.step(told.now + 500, submit("runs"))
    told.step(told.now + 5, submit("waits"))
    record = told.engine.book.job("waits")
    monkeypatch.setattr(told.heard.lasting, "chances", lambda *_: pytest.fail("it is asked for"))
    assert new_job(Outlook(told.now), told.heard.lasting, record, told.now) is None
