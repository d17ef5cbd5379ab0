"""What a job is told of its deadline: at submission, and the moment that it changes."""

import pytest
from msgspec.structs import replace

from daemon.engine.engine import Engine
from daemon.model.inputs import (
    Answered,
    Cancel,
    Configured,
    Ended,
    Hold,
    NodeDown,
    Release,
    Started,
    Stopped,
    Tick,
)
from daemon.model.outputs import PreemptEffect, StartEffect
from sia.policies.chronus import promises as promises_of_chronus
from tests.support.daemons.daemons import setup, submit

DEADLINE = 2400.0


def engine_on(*nodes, policy="chronus:profile=0", **quotas):
    return Engine.new(replace(setup(nodes, **quotas), policy=policy))


def promises(step):
    return [(n.kind, n.job, n.data) for n in step.notices if n.kind in ("promised", "rejected")]


def starts(step):
    return [effect.job for effect in step.effects if isinstance(effect, StartEffect)]


def test_a_job_hears_at_once_whether_its_deadline_is_promised():
    engine = engine_on(a=8)
    asked = [
        submit(name, gpus=8, run_time=1000.0, deadline=DEADLINE) for name in ("j1", "j2", "j3")
    ]
    strict = {"deadline": DEADLINE, "step": 0, "by": DEADLINE, "latest": DEADLINE}
    why = "no plan of leases has room for it before its last step"
    assert promises(engine.step(0.0, [*asked, submit("b1", run_time=1000.0)])) == [
        ("promised", "j1", {**strict, "planned": 1000.0}),
        ("promised", "j2", {**strict, "planned": 2200.0}),
        ("rejected", "j3", {"why": why, "soonest": 3400.0}),
    ]
    told = {name: record.promise for name, record in engine.book.jobs.items()}
    assert (told["j2"].guaranteed, told["j2"].latest) == (True, DEADLINE)
    assert (told["j3"].guaranteed, told["j3"].soonest, told["j3"].why) == (False, 3400.0, why)
    assert told["b1"] is None
    (group,) = engine.core.state.groups
    assert engine.core.policy.promised(group) == [(0.0, DEADLINE, 8)]


def test_later_steps_are_told_by_which_one_and_when_at_the_latest():
    engine = engine_on(a=8)
    first, soft = (
        submit("first", gpus=8, run_time=1000.0, deadline=1200.0),
        submit("soft", gpus=8, run_time=1000.0, deadline=2000.0, soft=((1.5, 40.0),)),
    )
    _, told = promises(engine.step(0.0, [first, soft]))
    assert told[2] == {
        "deadline": 2000.0, "step": 1, "by": 3000.0, "latest": 3000.0, "planned": 2200.0,
    }  # fmt: skip


def test_a_job_hears_the_moment_that_it_is_planned_for_another_step():
    """The wide job has only one lease, so the slim one moves to its second step."""
    engine = engine_on(a=8)
    soft = submit("soft", gpus=4, run_time=1000.0, deadline=1200.0, soft=((2.0, 40.0),))
    wide = submit("wide", gpus=8, run_time=1000.0, deadline=1200.0)
    first = engine.step(0.0, [soft, wide])
    then = engine.step(0.1, [Answered(engine.book.solving.request, "error", [])])
    found = [*promises(first), *promises(then)]
    assert [(job, data["step"], data.get("why")) for _, job, data in found] == [
        ("soft", 0, None),
        ("wide", 0, None),
        ("soft", 1, "its leases were moved so that more deadlines can be kept"),
    ]
    assert engine.book.jobs["soft"].promise.step == 1


def test_a_lost_node_breaks_as_few_promises_as_can_be_and_tells_whom_at_once():
    engine = engine_on(8, 8, a=16)
    jobs = [submit(name, gpus=8, run_time=2000.0, deadline=2400.0) for name in ("j1", "j2")]
    step = engine.step(0.0, jobs)
    assert [kind for kind, *_ in promises(step)] == ["promised", "promised"]
    engine.step(1.0, [Started("j1", 1), Started("j2", 1)])
    step = engine.step(600.0, [NodeDown("n1", "lost")])
    why = "GPUs were lost, and no plan of leases has room for it on the others"
    ((kind, job, data),) = promises(step)
    assert (kind, job) == ("rejected", "j2")
    assert (data["why"], data["was_promised"]) == (why, True)
    assert data["soonest"] > 2400.0
    assert not engine.book.jobs["j2"].promise.guaranteed
    assert engine.book.jobs["j1"].promise.guaranteed
    engine.check()


def test_a_deadline_thousands_of_years_ahead_holds_nothing_up():
    engine = engine_on(a=8)
    far = {"gpus": 8, "deadline": 1e11}
    jobs = [
        submit("short", run_time=1000.0, soft=((1e12, 20.0),), **far),
        submit("long", run_time=1e9, **far),
    ]
    first, second = promises(engine.step(0.0, jobs))
    assert (first[0], first[2]["planned"]) == ("promised", 1000.0)
    assert second == ("rejected", "long", {"why": "it would need more than 20,000 leases"})


@pytest.mark.parametrize(
    "soft",
    [
        ((1.0000000000001, 90.0),),
        ((1.1, 80.0), (1.1000000000001, 50.0)),
        ((1.0, 90.0), (1e15, 20.0)),
    ],
)
def test_steps_stay_in_order_when_a_job_is_queued_again(soft):
    """They are counted from then on, where rounding may make two of them one."""
    begin = 1.7e9
    engine = engine_on(a=8)
    job = submit("j", gpus=8, run_time=100.0, deadline=begin + 8000.0, soft=soft, hold=True)
    engine.step(begin, [job])
    ((kind, _, data),) = promises(engine.step(begin + 4000.7, [Release("j")]))
    assert (kind, data["by"]) == ("promised", begin + 8000.0)
    engine.check()


def test_a_job_on_hold_is_promised_nothing_until_it_is_released():
    engine = engine_on(a=8)
    jobs = [submit(name, gpus=8, run_time=1000.0, deadline=DEADLINE) for name in ("j1", "j2")]
    engine.step(0.0, jobs)
    engine.step(1.0, [Hold("j2")])
    assert engine.book.jobs["j2"].promise is None
    assert promises(engine.step(2.0, [Release("j2")]))[0][:2] == ("promised", "j2")


@pytest.mark.parametrize("policy", ["sia", "chronus:profile=0:lease=600"])
def test_another_policy_ends_promises_and_says_so(policy):
    engine = engine_on(a=8)
    jobs = [submit(name, gpus=8, run_time=1000.0, deadline=5000.0) for name in ("j1", "j2")]
    engine.step(0.0, [*jobs, submit("j3", run_time=9000.0, deadline=50.0)])
    engine.step(1.0, [Started("j1", 1)])
    assert promises(engine.step(2.0, [Configured(engine.book.setup)])) == []
    step = engine.step(3.0, [Configured(replace(engine.book.setup, policy=policy))])
    ended = {"why": "the configuration has changed the policy or what it plans by"}
    found = promises(step)
    assert found[:2] == [("rejected", job, {**ended, "was_promised": True}) for job in ("j1", "j2")]
    told = {name: record.promise for name, record in engine.book.jobs.items()}
    assert [told[name].guaranteed for name in ("j1", "j2")] == 2 * [policy != "sia"]
    assert (told["j3"] is None) is (policy == "sia")
    engine.check()


def test_a_running_job_that_asks_anew_is_promised_no_more_than_there_is_room_for():
    """Half of its work is done, so that it needs one lease; the other job waits for its first."""
    engine = engine_on(a=8)
    jobs = [submit(name, gpus=8, run_time=2000.0, deadline=5000.0) for name in ("runs", "waits")]
    engine.step(0.0, jobs)
    engine.step(0.0, [Started("runs", 1)])
    setup = replace(engine.book.setup, policy="chronus:profile=0:lease=1500:be=500")
    engine.step(1000.0, [Configured(setup)])
    told = {name: record.promise for name, record in engine.book.jobs.items()}
    assert told["runs"].guaranteed
    assert told["runs"].planned == 2500.0
    assert not told["waits"].guaranteed


def test_gpus_are_promised_as_the_plan_rounds_them_up():
    engine = engine_on(a=8)
    jobs = [submit(name, gpus=3, run_time=1000.0, deadline=1200.0) for name in ("j1", "j2")]
    engine.step(0.0, jobs)
    (group,) = engine.core.state.groups
    assert engine.core.policy.promised(group) == [(0.0, 1200.0, 8)]


def test_a_job_that_ends_while_a_cycle_is_solved_takes_no_promise_with_it():
    """The answer and the end are heard in one step, before the cycle has given its lease."""
    engine = engine_on(a=8)
    jobs = [
        submit("first", gpus=8, run_time=1000.0, deadline=1200.0),
        submit("wide", gpus=8, run_time=1000.0, deadline=2400.0),
        submit("soft", gpus=4, run_time=1000.0, deadline=2400.0, soft=((2.0, 40.0),)),
    ]
    engine.step(0.0, [*jobs])
    if engine.book.solving is not None:
        engine.step(0.1, [Answered(engine.book.solving.request, "error", [])])
    engine.step(0.2, [Started("first", 1)])
    engine.step(1000.0, [Ended("first", 1, 0)])
    engine.step(1200.0, [Tick()])
    request = engine.book.solving.request
    step = engine.step(1200.5, [Answered(request, "error", []), Cancel("wide")])
    assert "refused" not in {notice.kind for notice in step.notices}
    assert engine.book.jobs["soft"].is_promised
    (group,) = engine.core.state.groups
    assert engine.core.policy.promised(group)
    engine.check()


def played(engine, jobs, *, restart=False, hangs=False):
    """Play jobs on an engine whose solver always fails, or never answers and each step is late.

    Return when each ended, what each was told first, and who lost its promise.
    """
    begun, ended, told, lost = {}, {}, {}, []
    now, inputs = 0.0, [*jobs]
    while len(ended) < len(jobs):
        step = engine.step(now, inputs)
        inputs = []
        if engine.book.solving is not None and not hangs:
            inputs.append(Answered(engine.book.solving.request, "error", []))
        lost += [job for kind, job, data in promises(step) if "was_promised" in data]
        told |= {job: data["latest"] for kind, job, data in promises(step) if kind == "promised"}
        for effect in step.effects:
            if isinstance(effect, StartEffect):
                begun[effect.job] = effect.attempt, now + 1500.0 - effect.done
                inputs.append(Started(effect.job, effect.attempt))
            elif isinstance(effect, PreemptEffect):
                begun.pop(effect.job)
                inputs.append(Stopped(effect.job, effect.attempt))
        if restart:
            engine = Engine.restore(engine.dump())
        if not inputs:
            cycle = (now // 300 + 1) * 300
            cycle = max(now, min(cycle, engine.core.wake)) + (0.004 if hangs else 0.0)
            now = min([cycle, *(end for _, end in begun.values())])
            for job, (attempt, end) in [*begun.items()]:
                if end == now:
                    ended[job] = now
                    inputs.append(Ended(job, attempt, 0))
                    del begun[job]
            inputs = inputs or [Tick()]
    engine.check()
    return ended, told, lost


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("hangs", [False, True])
def test_a_restart_and_a_solver_that_dies_break_no_promise(restart, hangs):
    """Programs are answered with nothing or never, and the engine is restored after each step."""
    due = {"a": 2400, "b": 4800, "c": 4800, "d": 7200, "e": 7200, "f": 9600, "g": 2400, "h": 9600}
    jobs = [
        submit(name, gpus=gpus, run_time=1500.0, deadline=float(time), soft=((1.5, 40.0),))
        for (name, time), gpus in zip(due.items(), (4, 2, 8, 1, 4, 8, 4, 2), strict=True)
    ]
    ended, told, lost = played(engine_on(a=8), jobs, restart=restart, hangs=hangs)
    assert lost == []
    assert len(told) == 8
    assert all(ended[name] <= latest for name, latest in told.items())


def test_a_lease_begins_in_time_although_a_solver_is_asked_and_the_clock_is_late():
    """A step on a busy machine comes some milliseconds after the cycle is due."""
    engine = engine_on(a=16, policy="chronus:profile=0:lease=60:be=30")
    jobs = [
        submit("slim", gpus=8, run_time=180.0, deadline=600.0),
        submit("urgent", gpus=16, run_time=300.0, deadline=365.0),
        submit("long", gpus=16, run_time=1200.0, deadline=1800.0),
    ]
    assert [kind for kind, *_ in promises(engine.step(0.5, jobs))] == ["promised"] * 3
    first = engine.step(60.004, [Tick()])
    assert engine.book.solving is not None
    assert starts(first) == []
    assert engine.core.wake < 60.1
    assert starts(engine.step(engine.core.wake, [Tick()])) == ["urgent"]
    engine.check()


def test_leases_end_in_the_same_order_after_a_restart():
    """Running `long` comes before pending `later`, in a restored engine, too."""
    live = engine_on(a=16)
    jobs = [submit("short", gpus=8, run_time=200.0), submit("long", gpus=8, run_time=9000.0)]
    live.step(0.0, [*jobs, submit("later", gpus=8, run_time=9500.0)])
    restored = Engine.restore(live.dump())
    now_all = submit("all", gpus=16, run_time=600.0, deadline=2000.0)
    for now, given in [
        (0.0, [Started("short", 1), Started("long", 1)]),
        (200.0, [Ended("short", 1, 0)]),
        (300.0, [Tick()]),
        (310.0, [Started("later", 1), now_all]),
        (1200.0, [Tick()]),
    ]:
        steps = [engine.step(now, given) for engine in (live, restored)]
        assert steps[0].decisions == steps[1].decisions
    stops = [effect.job for effect in steps[0].effects if isinstance(effect, PreemptEffect)]
    assert stops == ["long", "later"]


def two_jobs_that_need_all_leases_exactly():
    """The step of each cycle comes a few milliseconds late, as in a real daemon."""
    made = replace(setup(a=8), policy="chronus:profile=0")
    engine = Engine.new(replace(made, options=replace(made.options, owners=True)))
    jobs = [
        submit("j1", gpus=8, run_time=2400.0, deadline=3700.0),
        submit("j2", gpus=8, run_time=1200.0, deadline=4900.0),
    ]
    told = promises(engine.step(100.0, jobs))
    assert [(kind, data["planned"]) for kind, _, data in told] == [
        ("promised", 3600.0),
        ("promised", 4800.0),
    ]
    assert starts(engine.step(1200.05, [Tick()])) == ["j1"]
    engine.step(1200.07, [Started("j1", 1)])
    for late in (2400.01, 3600.02):
        step = engine.step(late, [Tick()])
        assert (promises(step), step.effects) == ([], [])
    return engine


def test_steps_that_come_late_break_no_promise_of_a_job_that_fills_its_leases():
    engine = two_jobs_that_need_all_leases_exactly()
    step = engine.step(3600.07, [Ended("j1", 1, 0)])
    assert (promises(step), starts(step)) == ([], ["j2"])
    engine.step(3600.09, [Started("j2", 1)])
    assert promises(engine.step(4800.01, [Tick()])) == []
    assert promises(engine.step(4800.09, [Ended("j2", 1, 0)])) == []
    engine.check()


def test_a_job_that_does_not_end_about_when_its_leases_end_makes_room():
    engine = two_jobs_that_need_all_leases_exactly()
    engine = Engine.restore(engine.dump())
    assert promises(engine.step(3612.0, [Tick()])) == []
    step = engine.step(3612.1, [Tick()])
    ((kind, job, data),) = promises(step)
    assert (kind, job, data["was_promised"]) == ("rejected", "j1", True)
    assert [e.job for e in step.effects if isinstance(e, PreemptEffect)] == ["j1"]
    step = engine.step(3615.0, [Stopped("j1", 1)])
    assert (promises(step), starts(step)) == ([], ["j2"])
    engine.step(3615.1, [Started("j2", 1)])
    for late in (4800.02, 4815.0):  # j2 keeps its promise, although it started 15 s late
        assert promises(engine.step(late, [Tick()])) == []
    assert promises(engine.step(4815.1, [Ended("j2", 1, 0)])) == []
    engine.check()


def with_an_urgent_job():
    """A job that uses all GPUs and could go on later, and one that must have them after it."""
    made = replace(setup(a=8), policy="chronus:profile=0")
    engine = Engine.new(replace(made, options=replace(made.options, owners=True)))
    engine.step(0.0, [submit("j1", gpus=8, run_time=1200.0, deadline=9000.0)])
    engine.step(0.05, [Started("j1", 1)])
    return engine, submit("j2", gpus=8, run_time=1200.0, deadline=2400.0)


@pytest.mark.parametrize("hard", [False, True])
def test_a_job_that_ends_about_now_is_not_stopped_for_a_later_lease(hard, monkeypatch):
    """j1 could go on after j2; where this is `hard` to find, the solver is asked."""
    engine, urgent = with_an_urgent_job()
    assert [kind for kind, *_ in promises(engine.step(0.1, [urgent]))] == ["promised"]
    for heuristic in ("joined", "rearranged") if hard else ():
        monkeypatch.setattr(promises_of_chronus, heuristic, lambda *_: None)
    for late in (1200.0, 1200.01):
        step = engine.step(late, [Tick()])
        assert (promises(step), step.effects) == ([], [])
    step = engine.step(1200.06, [Ended("j1", 1, 0)])
    assert (promises(step), starts(step)) == ([], ["j2"])


def test_a_job_that_did_not_end_about_when_it_should_gets_a_later_lease():
    engine, urgent = with_an_urgent_job()
    engine.step(0.1, [urgent])
    for late in (1200.0, 1200.01):
        engine.step(late, [Tick()])
    step = engine.step(1212.1, [Tick()])
    assert [e.job for e in step.effects if isinstance(e, PreemptEffect)] == ["j1"]
    assert promises(step) == []
    engine = Engine.restore(engine.dump())
    assert starts(engine.step(1213.0, [Stopped("j1", 1)])) == ["j2"]
    engine.step(1213.1, [Started("j2", 1)])
    assert promises(engine.step(2400.02, [Tick()])) == []
    assert starts(engine.step(2413.2, [Ended("j2", 1, 0)])) == ["j1"]
    assert engine.book.jobs["j1"].promise.guaranteed
    engine.check()


def test_a_job_that_runs_its_last_lease_a_little_late_does_not_close_the_plan_for_others():
    made = replace(setup(a=8), policy="chronus:profile=0")
    engine = Engine.new(replace(made, options=replace(made.options, owners=True)))
    engine.step(100.0, [submit("j1", gpus=4, run_time=1200.0, deadline=2400.0)])
    assert starts(engine.step(1200.05, [Tick()])) == ["j1"]
    others = [submit(f"j{n}", gpus=4, run_time=1200.0, deadline=9000.0) for n in (2, 3)]
    assert [kind for kind, *_ in promises(engine.step(1200.06, others[:1]))] == ["promised"]
    engine.step(1200.07, [Started("j1", 1)])
    assert [kind for kind, *_ in promises(engine.step(1500.0, others[1:]))] == ["promised"]
    assert promises(engine.step(2400.01, [Tick()])) == []
    engine.check()
