"""`jvu` in a daemon: kills for deadlines, what a submission is told, and solvers that fail."""

import asyncio
import sys
from itertools import pairwise

import pytest
from msgspec.structs import replace

from daemon.answers.explain.planned import _jobs_are, deadline_words, planned_of
from daemon.engine.engine import Engine
from daemon.model.book import job_of
from daemon.model.inputs import Answered, Started, Stopped, Tick
from daemon.model.job import JobPhase
from daemon.model.outputs import PreemptEffect, StartEffect
from sia.contract.solvers import answer
from sia.explain.glance import jobs_ahead
from tests.support.daemons.daemons import FakeBackend, StillClock, serving, setup, submit, until
from tests.support.daemons.doors import asked, door, job_in, story

LIVE = replace(setup(a=4), policy="jvu:greedy")
NONSENSE = [
    sys.executable, "-c", "import sys; sys.stdin.buffer.read(8); print('nonsense, and more of it')"
]  # fmt: skip


def started(step):
    return [each.job for each in step.effects if isinstance(each, StartEffect)]


def told(engine, job):
    record = engine.book.jobs[job]
    planned = planned_of(engine.book, engine.core, record)
    return planned, deadline_words(record.spec, planned, engine.core.state.now)


def test_a_job_is_killed_for_a_deadline_after_its_grace_time_and_goes_on_from_nothing():
    engine = Engine.new(LIVE)
    assert started(engine.step(0.0, [submit("best", gpus=4, run_time=600.0)])) == ["best"]
    engine.step(0.0, [Started("best", 1)])
    engine.step(2.0, [submit("slo", gpus=4, run_time=60.0, deadline=100.0)])
    planned, words = told(engine, "slo")
    assert (planned.start, planned.end, planned.in_time) == (5.0, 65.0, True)
    (line,) = words
    assert line.startswith("by the present plan it ends in 1 m 3 s, 35 s before its deadline (no")
    step = engine.step(5.0, [Tick()])
    assert [each.job for each in step.effects if isinstance(each, PreemptEffect)] == ["best"]
    assert engine.book.jobs["best"].phase is JobPhase.STOPPING, "it has its grace time to save"
    assert not started(step)
    assert started(engine.step(6.0, [Stopped("best", 1)])) == ["slo"]
    assert engine.book.jobs["best"].done == 0.0
    engine.check()


def test_a_submission_is_told_that_its_deadline_will_be_missed():
    engine = Engine.new(LIVE)
    engine.step(0.0, [submit("first", gpus=4, run_time=900.0, deadline=1200.0)])
    engine.step(0.0, [Started("first", 1)])
    engine.step(1.0, [submit("late", gpus=4, run_time=60.0, deadline=100.0)])
    planned, words = told(engine, "late")
    assert (planned.start, planned.in_time) == (None, False)
    (line,) = words
    assert line.startswith("by the present plan it misses its deadline, which is in 1 m 39 s (")
    engine.step(1.0, [submit("later", gpus=4, run_time=60.0, deadline=1e4)])
    (line,) = told(engine, "later")[1]
    assert line.endswith(
        "no start for it yet, and may still meet its deadline, which is in 2 h 47 m"
    )
    engine.step(1.0, [submit("best", gpus=1, run_time=10.0)])
    planned, words = told(engine, "best")
    assert planned.start is None
    assert words == []


def test_a_job_whose_estimate_is_too_long_hears_so():
    engine = Engine.new(LIVE)
    engine.step(1.0, [submit("long", gpus=4, run_time=600.0, deadline=201.0)])
    planned, (line,) = told(engine, "long")
    assert (planned.start, planned.in_time, planned.late) == (None, False, 400.0)
    assert line == (
        "by the present plan it misses its deadline, which is in 3 m 20 s (no promise: plans "
        "change): by its estimate it would end 6 m 40 s after it, even if it started now"
    )
    early = Engine.new(replace(LIVE, policy="jvu:early:greedy"))
    early.step(1.0, [submit("long", gpus=4, run_time=600.0, deadline=201.0)])
    assert started(early.step(5.0, [Tick()])) == ["long"]


def test_jobs_of_one_cycle_are_told_of_each_other():
    engine = Engine.new(LIVE)
    slo = [submit(f"slo{i}", gpus=4, run_time=50.0, deadline=1e4) for i in range(10)]
    engine.step(1.0, [submit("best", gpus=4, run_time=60.0), *slo])
    found = [told(engine, f"slo{i}")[0] for i in range(10)]
    assert found[0].start == 5.0
    assert all(b.start >= a.end for a, b in pairwise(found[:9])), "none gets the GPUs of another"
    assert found[9].start is None, "it is behind more than are fitted in"
    (line,) = told(engine, "slo9")[1]
    assert line.startswith("the present plan has no start for it yet, and may still meet"), line
    best = engine.core.state.jobs[engine.book.jobs["best"].core]
    second = engine.core.state.jobs[engine.book.jobs["slo1"].core]
    assert [job_of(each.job.id) for each in jobs_ahead(engine.core.policy, second)] == ["slo0"]
    assert len(jobs_ahead(engine.core.policy, best)) == 10, "deadlines come first"
    assert started(engine.step(5.0, [Tick()])) == ["slo0"]
    engine.step(5.0, [Started("slo0", 1)])
    assert told(engine, "slo1")[0].start == 55.0


def test_jobs_that_came_since_the_last_plan_are_told_of_each_other_also_after_a_restart():
    engine = Engine.new(replace(LIVE, policy="jvu:greedy:starts=120"))
    engine.step(0.0, [submit("best", gpus=4, run_time=600.0)])
    engine.step(0.0, [Started("best", 1)])
    engine.step(1.0, [submit("slo0", gpus=4, run_time=60.0, deadline=100.0)])
    engine.step(5.0, [Tick()])  # it plans, and kills
    for i in range(1, 4):
        engine.step(6.0, [submit(f"slo{i}", gpus=4, run_time=60.0, deadline=1e4)])
        assert told(engine, f"slo{i}")[0].start == 5.0 + 60.0 * i
    engine.step(10.0, [Tick()])
    engine.step(11.0, [submit("slo4", gpus=4, run_time=60.0, deadline=1e4)])
    again = Engine.restore(engine.dump())
    assert again.dump() == engine.dump()
    for i in range(5):
        assert told(again, f"slo{i}") == told(engine, f"slo{i}")
        assert told(again, f"slo{i}")[0].start == 5.0 + 60.0 * i


def test_two_jobs_of_one_cycle_are_not_told_to_kill_the_same_job():
    engine = Engine.new(LIVE)
    engine.step(0.0, [submit("best", gpus=4, run_time=600.0)])
    engine.step(0.0, [Started("best", 1)])
    engine.step(1.0, [submit(f"slo{i}", gpus=4, run_time=50.0, deadline=200.0) for i in range(2)])
    first, second = (engine.core.policy.foretell(engine.core.state.jobs[engine.book.jobs[i].core])
                     for i in ("slo0", "slo1"))  # fmt: skip
    assert (first.start, len(first.kills), first.before) == (5.0, 1, ())
    assert (second.start, second.kills, len(second.before)) == (55.0, (), 1)


def test_a_job_is_told_of_the_kill_of_a_job_of_its_own_pool():
    live = replace(setup(a=6, b=2), policy="jvu:greedy")
    engine = Engine.new(replace(live, options=replace(live.options, owners=True)))
    engine.step(0.0, [submit("best", gpus=4, run_time=600.0)])
    engine.step(0.0, [Started("best", 1)])
    engine.step(1.0, [submit("slo", gpus=4, run_time=60.0, deadline=200.0)])
    run = engine.core.policy.foretell(engine.core.state.jobs[engine.book.jobs["slo"].core])
    assert (run.start, run.end, [job_of(each) for each in run.kills]) == (5.0, 65.0, ["best"])
    step = engine.step(5.0, [Tick()])
    assert [each.job for each in step.effects if isinstance(each, PreemptEffect)] == ["best"]


def test_a_job_of_unknown_run_time_does_not_wait_for_its_deadline_on_idle_gpus():
    engine = Engine.new(LIVE)
    assert started(engine.step(0.0, [submit("slo", gpus=4, run_time=0.0, deadline=1e6)])) == ["slo"]
    assert told(engine, "slo")[1] == [
        "its run time is unknown, so its deadline cannot be planned for: give an estimate"
    ]


def test_a_job_that_must_not_be_stopped_is_not_killed():
    engine = Engine.new(LIVE)
    engine.step(0.0, [submit("best", gpus=4, run_time=600.0, preemptible="never")])
    engine.step(0.0, [Started("best", 1)])
    engine.step(2.0, [submit("slo", gpus=4, run_time=60.0, deadline=100.0)])
    assert not engine.step(5.0, [Tick()]).effects


def test_a_restart_in_the_middle_of_a_solve_changes_nothing():
    def play(*, restart):
        engine = Engine.new(replace(LIVE, policy="jvu"))
        engine.step(0.0, [submit("best", gpus=3, run_time=600.0)])
        engine.step(0.0, [Started("best", 1)])
        engine.step(1.0, [submit(f"slo{i}", gpus=2, run_time=40.0, deadline=95.0 + i)
                          for i in range(4)])  # fmt: skip
        engine.step(5.0, [Tick()])
        request = engine.book.solving
        assert request is not None
        found = answer(7.0, request, timed=False).event
        if restart:
            engine = engine.restore(engine.dump())
        return engine.step(7.0, [Answered(request.request, found.status, found.values)]).decisions

    assert play(restart=True) == play(restart=False) != []


@pytest.mark.parametrize("command", [NONSENSE, ["/nowhere/solver"]])
def test_jobs_start_by_the_greedy_plan_when_the_solver_is_gone_or_answers_nonsense(
    tmp_path, monkeypatch, command
):
    async def play():
        backend = FakeBackend()
        planned = replace(LIVE, policy="jvu")
        async with serving(tmp_path / "db", planned, backend, StillClock()) as service:
            service._solver.command = command
            both = [submit(each, gpus=3, run_time=60.0, deadline=1e4) for each in ("one", "two")]
            await service.submit(both)
            await until(lambda: backend.told)
            assert [job for _, job, _ in backend.told] == ["one"]
            assert [part.name for part in service.parts.all() if not part.ok] == ["solver"]

    asyncio.run(play())


@story
async def test_the_answer_to_a_submission_and_why_name_the_planned_branch(folder):
    async with door(folder, speed=1.0, policy="jvu:greedy") as client:
        best = {"id": "best", "pool": "vision", "gpus": 4, "duration": 1e6, "run_time": 1e4}
        await asked(client, "POST", "/v1/jobs", best, status=201)
        await job_in(client, "best", "running")
        now = client.service.clock.now()
        slo = {"id": "slo", "pool": "vision", "gpus": 1, "duration": 1e6, "run_time": 60.0}
        slo["deadline"] = now + 200.0
        found = await asked(client, "POST", "/v1/jobs", slo, status=201)
        assert found["planned"]["in_time"]
        assert "by the present plan it ends in" in found["notes"][0]
        why = await asked(client, "GET", "/v1/jobs/slo/why")
        assert why["planned"]["start"] >= now
        lines = await asked(client, "POST", "/v1/jobs", {"jobs": [{**slo, "id": "more"}]})
        assert "by the present plan" in lines["jobs"][0]["notes"][0]
        array = {**slo, "id": "many", "array": 4}
        found = await asked(client, "POST", "/v1/jobs", array, status=201)
        assert not {"planned", "notes"} & found.keys(), "what is true of one is not true of all"
        lines = await asked(client, "POST", "/v1/jobs", {"jobs": [{**array, "id": "more-of-them"}]})
        assert "notes" not in lines["jobs"][0]


def test_one_job_is_and_several_jobs_are_planned_before_another():
    assert f"{_jobs_are(['a'])} planned to start before it" == "job a is planned to start before it"
    assert _jobs_are(["a", "b"]) == "jobs a, b are"
