"""What if the policy had other options: which jobs would end at another time."""

from random import Random

import pytest
from msgspec.structs import replace

from daemon.answers.whatif.compare import compare
from daemon.answers.whatif.whatif import Question, play, play_changed
from daemon.backends.simulated.config import SimulatedConfig
from daemon.engine.engine import Engine
from daemon.model.inputs import SetPolicy, Started
from daemon.model.outputs import StartEffect
from daemon.wire.whatif import WhatIf
from predictors.perfect import PerfectRunTimes
from sia import Core, Job, Options, Pool
from sia.core import playout
from sia.core.playout import Arrival
from sia.core.snapshot import plain_params
from sia.events import JobFinished, PolicyTuned
from sia.policies import make
from tests.support.daemons.daemons import setup, submit
from tests.support.daemons.doors import asked, door, job_in, story
from tests.support.servers.browsers import browser, seal_in, seen, sent

FIFO = "wfq:weights=1:zeta=0"
APART = "wfq:sizes=100:weights=1+1:zeta=0"
GPUS = 5
COST = 2.0
CHANGED = 7.0
"""When the options would change; no job has ended by then."""


def engine_with(jobs, label, *, resizes):
    base = setup([GPUS], a=GPUS)
    options = replace(base.options, resume_cost=COST)
    engine = Engine.new(replace(base, policy=label, resizes=resizes, options=options))
    step = engine.step(1.0, jobs)
    started = [Started(e.job, e.attempt) for e in step.effects if isinstance(e, StartEffect)]
    engine.step(1.0, started)
    return engine


def core_ends(jobs, label, other, gpus=GPUS):
    """The end of each job in a core that hears of the other options."""
    arrivals = [
        Arrival(Job(s.spec.id, "a", 1.0, s.spec.gpus, min_width=s.spec.min_width or 0), s.run_time)
        for s in jobs
    ]
    core = Core([Pool("a", gpus)], make(label), Options(resume_cost=COST))
    facts = [PolicyTuned(CHANGED, plain_params(make(other)))] if other else []
    run_times = PerfectRunTimes({a.job.id: a.duration for a in arrivals})
    instants = playout.play(core, arrivals, run_times=run_times, facts=facts)
    return {
        event.job_id: instant.now
        for instant in instants
        for event in instant.events
        if type(event) is JobFinished
    }


@pytest.mark.parametrize("seed", range(12))
def test_jobs_would_end_as_in_a_core_that_hears_of_the_change(seed):
    rng = Random(seed)
    jobs = [
        submit(f"j{i}", "a", width := rng.randint(1, GPUS), rng.uniform(20, 200),
               min_width=rng.choice([1, width]))
        for i in range(rng.randint(3, 9))
    ]  # fmt: skip
    label, other = rng.choice([(FIFO, APART), (APART, FIFO), ("wfq:sizes=300:weights=3+1", APART)])
    engine = engine_with(jobs, label, resizes=rng.random() < 0.5)
    question = Question(WhatIf(policy=other, horizon=5000.0), (), lambda now, spec: 0.0)
    as_is = play(Engine.restore(engine.dump()), CHANGED, question)
    changed = play_changed(Engine.restore(engine.dump()), CHANGED, question)
    before, after = core_ends(jobs, label, None), core_ends(jobs, label, other)
    assert as_is.played.ends == pytest.approx(before)
    assert changed.played.ends == pytest.approx(after)
    said = compare(engine.book, CHANGED, question, as_is, changed, lambda pool: True)
    assert said.compared == "end"
    moved = {each.job: (each.now, each.then) for each in (*said.earlier, *said.later)}
    assert moved.keys() == {job for job in before if abs(before[job] - after[job]) > 1e-3}
    for job, times in moved.items():
        assert times == pytest.approx((before[job], after[job]))


def test_options_that_cannot_be_set_are_refused_as_the_real_change_would_be():
    engine = engine_with([submit("j", "a", 1)], FIFO, resizes=True)
    for label in ("sia", "wfq:T=-1"):
        question = Question(WhatIf(policy=label), (), lambda now, spec: 0.0)
        refused = play_changed(Engine.restore(engine.dump()), CHANGED, question).refused
        assert [refused] == engine.step(CHANGED, [SetPolicy(label)]).answers


@story
async def test_the_page_asks_what_a_point_would_change(folder):
    settings = {"policy": FIFO, "forecast": "none+stated", "backend": SimulatedConfig(1.0)}
    async with door(folder, **settings) as client, browser(client) as visitor:
        for name, span in (("long", 90_000.0), ("short", 600.0)):
            body = {"id": name, "pool": "speech", "gpus": 4, "run_time": span, "min_width": 1}
            await asked(client, "POST", "/v1/jobs", body, status=201)
        await job_in(client, "long", "running")
        other = "wfq:sizes=3600:weights=1+1:zeta=0"
        said = await asked(client, "POST", "/v1/whatif", {"policy": other, "horizon": 1e6})
        assert [each["job"] for each in said["earlier"]] == ["short"]
        assert [each["job"] for each in said["later"]] == ["long"]
        assert (await asked(client, "GET", "/v1/policy"))["policy"] == FIFO
        form = seal_in(await seen(visitor, "/ui/whatif"))
        status, page = await sent(visitor, "/ui/whatif", form=form, policy=other, horizon="7d")
        assert status == 200
        assert "short" in page
        refused = await asked(client, "POST", "/v1/whatif", {"policy": "sia"}, status=409)
        assert (
            refused["mend"] == "give options of wfq, or change daemon.policy in the configuration"
        )
