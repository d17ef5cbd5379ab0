"""Ends of jobs and planned changes, derived from the engine's state, and played by the core."""

from datetime import UTC, datetime

from msgspec.structs import replace

from daemon.answers.simulate.forward import EnginePlayout
from daemon.answers.simulate.futures import ends, estimated, facts_of, is_unknown, overruns
from daemon.engine.engine import Engine
from daemon.model.inputs import (
    Cancel,
    Drain,
    Ended,
    Hold,
    Maintain,
    Reported,
    SetPool,
    Started,
    Stopped,
    Tick,
)
from daemon.model.job import PoolMode
from daemon.model.setup import Budget
from sia.core.playout import play
from sia.decisions import StartJob
from sia.events import TimePassed
from sia.limits import UNKNOWN_RUN_TIME
from tests.daemon.engine.test_stops import stopping
from tests.support.daemons.daemons import setup, submit


def engine_with(*steps, nodes=(), **quotas):
    """An engine after these steps, each a time and its inputs; what starts runs at once."""
    engine = Engine.new(setup(nodes, **quotas))
    for now, *inputs in steps:
        step = engine.step(now, inputs)
        started = [Started(e.job, e.attempt) for e in step.effects if hasattr(e, "spec")]
        if started:
            engine.step(now, started)
    return engine


def forward(engine, now, think=None):
    """Play a copy of the core from the engine's state at `now`."""
    think, jobs = think or estimated(now), engine.book.jobs.values()
    return play(
        engine.core.copy(),
        [],
        facts=facts_of(engine, now),
        running=[(end, record.core) for end, record in ends(jobs, now, think)],
        durations={record.core: think(record) for record in jobs},
    )


def starts(engine, now, think=None):
    """The starts of the next 1,000 s, by core id."""
    found = {}
    for instant in forward(engine, now, think):
        if instant.now > now + 1000.0:
            break
        for decision in instant.decisions:
            if isinstance(decision, StartJob):
                found[decision.job_id] = instant.now
    return found


def test_pending_jobs_start_when_earlier_jobs_end():
    engine = engine_with(
        (0.0, submit("a1", gpus=4, run_time=10.0), submit("a2", gpus=4, run_time=20.0)),
        (3.0, submit("a3", gpus=1, run_time=5.0)),
        a=4,
    )
    before = engine.dump()
    assert starts(engine, 4.0) == {"a2": 10.0, "a3": 30.0}
    assert engine.dump() == before


def test_a_wake_up_that_was_requested_before_the_simulation_happens():
    engine = engine_with((1.0, submit("a1", gpus=4, run_time=100.0), submit("a2")), a=4)
    first = next(forward(engine, 2.0))
    assert first.now == engine.core.wake == 5.0
    assert first.events == [TimePassed(5.0)]


def test_a_job_that_exceeds_its_estimate_runs_twice_as_long_as_so_far():
    engine = engine_with((0.0, submit("a1", gpus=4, run_time=10.0), submit("a2")), a=4)
    assert starts(engine, 9.0) == {"a2": 10.0}
    assert starts(engine, 15.0) == {"a2": 30.0}


def test_the_end_of_a_job_with_progress_reports_follows_from_them():
    engine = engine_with((0.0, submit("a1", gpus=4, run_time=10.0), submit("a2")), a=4)
    engine.step(8.0, [Reported("a1", 1, 0.25)])
    assert starts(engine, 9.0) == {"a2": 32.0}
    engine.step(16.0, [Reported("a1", 1, 0.5, speed=2.0)])
    assert starts(engine, 16.0) == {"a2": 24.0}
    assert starts(engine, 27.0) == {"a2": 30.0}, "3 s late, so it may take as long again"
    assert overruns(engine.book.jobs["a1"], 25.0)
    assert not overruns(engine.book.jobs["a1"], 23.0)


def test_no_job_runs_beyond_its_time_limit():
    slow = submit("a1", gpus=4, run_time=10.0, time_limit=18.0)
    engine = engine_with((0.0, slow, submit("a2")), a=4)
    assert starts(engine, 15.0) == {"a2": 18.0}
    assert starts(engine, 17.9) == {"a2": 18.0}
    assert starts(engine, 25.0) == {"a2": 25.0}, "it should be gone: no end is in the past"


def test_a_job_that_is_ending_has_ended_now():
    engine = engine_with((0.0, submit("a1", gpus=4), submit("a2")), (1.0, Cancel("a1")), a=4)
    assert starts(engine, 2.0) == {"a2": 2.0}


def test_run_times_come_from_the_given_function():
    engine = engine_with((0.0, submit("a1", gpus=4), submit("a2", gpus=4), submit("a3")), a=4)
    assert starts(engine, 1.0, lambda _: 7.0) == {"a2": 7.0, "a3": 14.0}


def test_a_job_that_left_the_core_and_came_back_keeps_its_run_time():
    engine = engine_with(
        (0.0, submit("a1", gpus=4, run_time=10.0), submit("a2", run_time=5.0)),
        (1.0, SetPool("a", state=PoolMode.HOLD)),
        (2.0, SetPool("a", state=PoolMode.OPEN)),
        a=4,
    )
    (found,) = starts(engine, 3.0).items()
    assert found == (engine.book.jobs["a2"].core, 10.0)
    assert found[0] != "a2"


def test_an_override_ends_at_its_time_or_now_if_overdue():
    engine = engine_with(
        (0.0, submit("a1", run_time=100.0), submit("a2", run_time=100.0)),
        (0.0, SetPool("a", quota=1, until=50.0)),
        a=1,
    )
    engine.step(1.0, [SetPool("a", quota=1), SetPool("a", quota=3, until=30.0)])
    assert [fact.time for fact in facts_of(engine, 2.0)] == [30.0]
    assert facts_of(engine, 40.0)[0].time == 40.0


def lending_too_much(now):
    """Of `b`, which has lent more than it may this month; `a` has one that waits."""
    cluster = replace(setup(a=2, b=4), policy="gssf", budgets={"b": Budget(0.001, None)})
    engine = Engine.new(cluster)
    for time, *inputs in (
        (now - 101.0, submit("full", gpus=2, run_time=1e6)),
        (now - 100.0, submit("guest", gpus=2)),
        (now - 99.0, Started("full", 1), Started("guest", 1)),
        (now - 50.0, Ended("guest", 1, 0)),
        (now - 1.0, Tick()),
        (now, submit("waits", gpus=2)),
    ):
        engine.step(time, inputs)
    assert engine.book.pools["b"].kept.keys() == {"hours"}
    return engine


def test_a_pool_with_a_spent_budget_lends_again_next_month():
    month = datetime(2026, 7, 1, tzinfo=UTC).timestamp()
    engine = lending_too_much(month - 500.0)
    assert starts(engine, month - 500.0) == {"waits": month}


def test_the_end_of_an_override_does_not_lift_a_lending_ban():
    month = datetime(2026, 7, 1, tzinfo=UTC).timestamp()
    engine = lending_too_much(month - 500.0)
    engine.step(month - 499.0, [SetPool("b", quota=3, until=month - 300.0)])
    engine.step(month - 498.0, [SetPool("b", lend_limit=2, until=month - 200.0)])
    assert starts(engine, month - 498.0) == {"waits": month}


def test_a_lending_ban_without_a_known_end_does_not_end():
    engine = lending_too_much(1e6)
    engine.book.pools["b"].told["drift"] = "forecasts are wrong"
    assert starts(engine, 1e6) == {}


def test_held_jobs_and_pools_on_hold_stay_as_they_are():
    engine = engine_with(
        (0.0, submit("a1"), submit("a2", gpus=4), submit("b1", "b", 2), submit("b2", "b", 2, 1e9)),
        (1.0, Hold("a2"), Maintain("m", "n0", 5.0, 6.0)),
        (2.0, SetPool("b", state=PoolMode.HOLD, until=9.0), Drain("n0")),
        (2.5, Ended("b1", 1, 0)),
        nodes=(8,),
        a=4,
        b=2,
    )
    assert starts(engine, 3.0) == {}


def test_a_job_without_estimate_and_limit_runs_for_the_unknown_run_time():
    engine = engine_with(
        (0.0, submit("a1", run_time=0.0), submit("a2", run_time=0.0, time_limit=5.0)), a=1
    )
    assert is_unknown(engine.book.jobs["a1"])
    assert not is_unknown(engine.book.jobs["a2"])
    assert estimated(1.0)(engine.book.jobs["a1"]) == UNKNOWN_RUN_TIME
    assert starts(engine, 1.0) == {}


def test_a_job_that_stops_goes_on_with_the_work_that_it_keeps():
    story = stopping()  # it has run for 100 of 1000 s, and a job of 10 s takes its GPUs
    ahead = EnginePlayout(Engine.restore(story.engine.dump()), 110.0, estimated(110.0))
    found = {each.job: (each.start, each.end) for each in ahead.play(1e6, 10).starts}
    assert found == {"short": (110.0, 120.0), "long": (120.0, 1010.0)}
    story.at(120.0, Stopped("long", 1))
    story.at(120.0, Started("short", 1))
    ahead = EnginePlayout(Engine.restore(story.engine.dump()), 125.0, estimated(125.0))
    (found,) = ahead.play(1e6, 10).starts
    assert (found.job, found.start, found.end) == ("long", 130.0, 1010.0)


def test_a_time_limit_counts_what_earlier_attempts_ran():
    story = stopping(time_limit=300.0)
    story.at(120.0, Stopped("long", 1))
    assert estimated(120.0)(story.record("long")) == 180.0
