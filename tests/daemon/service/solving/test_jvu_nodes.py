"""`jvu` and `prio` in a daemon whose nodes differ: `prefers`, `slowdown`, nodes that are out."""

from random import Random

import pytest
from msgspec.structs import replace

from daemon.answers.explain.placement import preference_reason
from daemon.answers.explain.planned import planned_of
from daemon.engine.engine import Engine
from daemon.model.inputs import (
    Answered,
    Configured,
    Drain,
    Ended,
    Resume,
    Started,
    Stopped,
    Tick,
)  # fmt: skip
from daemon.model.job import JobPhase
from daemon.model.outputs import PreemptEffect, Refused, StartEffect
from daemon.model.setup import Node
from sia.contract.solvers import answer
from tests.support.daemons.daemons import setup, submit

RACKS = tuple(
    Node(f"m{i}", (0, 1), (f"rack:r{i // 2}", *(["gpu"] if i < 2 else []))) for i in range(4)
)
LIVE = replace(setup(a=8), policy="jvu:greedy", nodes=RACKS)


def starts(step):
    return {each.job: each for each in step.effects if isinstance(each, StartEffect)}


def places(step):
    return {job: {node for node, _ in each.nodes} for job, each in starts(step).items()}


def test_jobs_get_the_nodes_that_they_prefer_and_are_slower_elsewhere():
    engine = Engine.new(LIVE)
    first = submit("first", gpus=3, run_time=60.0, prefers="gpu", slowdown=2.0)
    assert places(engine.step(0.0, [first])) == {"first": {"m0", "m1"}}
    engine.step(0.0, [Started("first", 1)])
    begun = starts(engine.step(5.0, [
        submit("late", gpus=2, run_time=60.0, prefers="gpu", slowdown=1.5, deadline=100.0),
        submit("rack", gpus=2, run_time=10.0, prefers="same:rack"),
    ]))  # fmt: skip
    assert begun["late"].speed == 1 / 1.5, "it meets its deadline on other nodes, too"
    assert {node for node, _ in begun["rack"].nodes} == {"m3"} or {
        node for node, _ in begun["rack"].nodes
    } == {"m2"}
    engine.check()
    again = Engine.restore(engine.dump())
    again.check()
    assert again.dump() == engine.dump()


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"gpus": 5, "prefers": "gpu"}, "the nodes that gpu asks for have 4 GPUs, not 5, and"),
        ({"prefers": "fast"}, "the nodes that fast asks for have 0 GPUs, not 1, and it runs"),
        ({"prefers": "same:zone"}, "the nodes that same:zone asks for have 0 GPUs, not 1"),
        ({"gpus": 2, "nodes": 2}, "the policy chooses nodes by what jobs prefer, not 2 of them"),
    ],
)  # fmt: skip
def test_a_job_that_could_run_nowhere_is_refused(more, said):
    (found,) = Engine.new(LIVE).step(0.0, [submit("job", **more)]).answers
    assert isinstance(found, Refused)
    assert found.detail.startswith(said)


def test_no_job_is_planned_on_a_node_that_is_out():
    engine = Engine.new(LIVE)
    engine.step(0.0, [Drain("m0", "broken")])
    only = submit("only", gpus=3, run_time=60.0, prefers="gpu")
    assert not starts(engine.step(0.0, [only]))
    other = submit("other", gpus=2, run_time=60.0, prefers="gpu", slowdown=2.0)
    assert places(engine.step(5.0, [other])) == {"other": {"m1"}}
    engine.step(5.0, [Started("other", 1)])
    engine.check()
    engine.step(30.0, [Ended("other", 1, 0)])
    assert places(engine.step(35.0, [Resume("m0")])) == {"only": {"m0", "m1"}}
    engine.check()


def test_a_job_gets_the_nodes_that_its_strl_names_and_is_refused_if_there_are_none():
    engine = Engine.new(LIVE)
    text = "(max (nck (m3) 2 0 60 9) (nck gpu 2 0 90 9))"
    first = submit("first", gpus=2, run_time=60.0, strl=text)
    assert places(engine.step(0.0, [first])) == {"first": {"m3"}}
    begun = starts(engine.step(5.0, [
        Started("first", 1),
        submit("second", gpus=2, run_time=60.0, strl=text.replace("90", "66")),
    ]))  # fmt: skip
    assert begun["second"].speed == pytest.approx(60 / 66)
    (found,) = engine.step(6.0, [submit("none", gpus=2, strl="(nck (m9) 2 0 60 9)")]).answers
    assert isinstance(found, Refused)
    assert found.detail == "the nodes that its STRL names have 0 GPUs, not 2"
    again = Engine.restore(engine.dump())
    assert again.dump() == engine.dump()


def test_a_job_of_one_node_never_gets_parts_of_several():
    """As jobs are that were submitted to Slurm or Kubernetes with one node or pod."""
    engine = Engine.new(LIVE)
    busy = [submit(f"busy{i}", gpus=1, run_time=600.0, strl=f"(nck (m{i}) 1 0 600 9)")
            for i in (0, 2)]  # fmt: skip
    engine.step(0.0, busy)
    engine.step(0.0, [Started("busy0", 1), Started("busy2", 1)])
    begun = starts(engine.step(5.0, [
        submit("one", gpus=2, nodes=1, run_time=60.0, prefers="gpu", slowdown=2.0),
        submit("two", gpus=2, nodes=1, run_time=60.0),
        submit("third", gpus=2, nodes=1, run_time=60.0),
    ]))  # fmt: skip
    assert begun["one"].nodes == (("m1", (0, 1)),)
    assert begun["two"].nodes == (("m3", (0, 1)),)
    assert "third" not in begun, "two GPUs are free, but of two nodes"
    engine.check()
    nowhere = submit("nowhere", gpus=2, nodes=1, strl="(nck (m9) 2 0 60 9)")
    (found,) = engine.step(6.0, [nowhere]).answers
    assert isinstance(found, Refused)
    assert found.detail == "no node on which it may run has 2 GPUs"
    again = Engine.restore(engine.dump())
    assert again.dump() == engine.dump()


def test_a_job_of_one_node_finds_the_free_one_of_many():
    """Plans consider few single nodes, those with room among them."""
    many = tuple(Node(f"m{i}", (0, 1), ("gpu",)) for i in range(50))
    engine = Engine.new(replace(setup(a=100), policy="jvu:greedy", nodes=many))
    busy = [submit(f"b{i}", gpus=2, run_time=600.0, strl=f"(nck (m{i}) 2 0 600 9)")
            for i in range(50) if i != 37]  # fmt: skip
    begun = starts(engine.step(0.0, busy))
    engine.step(0.0, [Started(name, 1) for name in begun])
    found = starts(engine.step(5.0, [submit("job", gpus=2, nodes=1, run_time=60.0)]))
    assert found["job"].nodes == (("m37", (0, 1)),)


@pytest.mark.parametrize("again", [False, True])
def test_a_start_that_waits_for_gpus_of_a_node_that_goes_out_is_taken_back(again):
    engine = Engine.new(LIVE)
    engine.step(0.0, [submit("guest", gpus=4, run_time=600.0, prefers="gpu")])
    engine.step(0.0, [Started("guest", 1)])
    urgent = submit("urgent", gpus=4, run_time=60.0, prefers="gpu", deadline=120.0)
    killed = engine.step(5.0, [urgent])
    assert [each.job for each in killed.effects if isinstance(each, PreemptEffect)] == ["guest"]
    assert engine.book.seatless == {"urgent": None}
    if again:
        engine.step(6.0, [Stopped("guest", 1), Drain("m1", "broken")])
    else:
        engine.step(6.0, [Drain("m1", "broken")])
        assert not starts(engine.step(7.0, [Stopped("guest", 1)]))
    engine.check()
    record = engine.book.jobs["urgent"]
    assert (record.phase, record.attempt) == (JobPhase.PENDING, 0)
    assert engine.core.state.jobs[record.core].runs == 0
    assert not engine.core.state.nodes.held(record.core)
    begun = starts(engine.step(10.0, [Resume("m1")]))
    assert {node for node, _ in begun["urgent"].nodes} == {"m0", "m1"}
    engine.check()


def test_attributes_and_policies_change_while_jobs_run():
    engine = Engine.new(replace(LIVE, policy="fcfs"))
    assert starts(engine.step(0.0, [submit("one", gpus=3, run_time=600.0, prefers="gpu")]))
    engine.step(0.0, [Started("one", 1)])
    assert engine.core.state.nodes is None
    (done,) = engine.step(1.0, [Configured(LIVE, 0)]).answers
    assert not isinstance(done, Refused), done
    engine.check()
    assert engine.core.state.nodes is not None
    found = engine.step(5.0, [submit("two", gpus=2, run_time=60.0, prefers="gpu", slowdown=2.0)])
    assert not places(found).get("two", set()) & {"m0"}
    nodes = tuple(Node(node.name, node.gpus, ("gpu",)) for node in RACKS)
    engine.step(6.0, [Started("two", 1), Configured(replace(LIVE, nodes=nodes), 0)])
    engine.check()
    engine.step(7.0, [Configured(replace(LIVE, policy="fcfs"), 0)])
    engine.check()
    assert engine.core.state.nodes is None


def test_a_job_is_told_of_those_that_are_planned_on_the_nodes_that_it_prefers():
    engine = Engine.new(replace(LIVE, policy="jvu:greedy:starts=120"))
    engine.step(0.0, [submit("first", gpus=4, run_time=50.0, prefers="gpu", deadline=80.0)])
    engine.step(0.0, [Started("first", 1)])
    second = submit("second", gpus=4, run_time=60.0, prefers="gpu", deadline=200.0)
    engine.step(5.0, [second])  # it is planned
    engine.step(6.0, [
        submit("third", gpus=4, run_time=60.0, prefers="gpu", deadline=300.0),
        submit("free", gpus=4, run_time=60.0, deadline=300.0),
    ])  # fmt: skip
    found = {name: planned_of(engine.book, engine.core, engine.book.jobs[name]).start
             for name in ("second", "third", "free")}  # fmt: skip
    assert found == {"second": 50.0, "third": 110.0, "free": 10.0}


def test_why_names_the_preferred_nodes_that_are_in_use():
    engine = Engine.new(LIVE)
    engine.step(0.0, [submit("first", gpus=3, run_time=600.0, prefers="gpu")])
    waits = {
        "only": {"prefers": "gpu"},
        "slow": {"prefers": "same:rack", "slowdown": 2.0},
        "fits": {"prefers": "rack:r1"},
        "any": {},
    }
    engine.step(1.0, [submit(name, gpus=4, **more) for name, more in waits.items()])
    jobs = {name: engine.core.state.jobs[engine.book.jobs[name].core] for name in waits}
    words = {name: preference_reason(engine.core, jobs[name]) for name in waits}
    assert words == {
        "only": ["the nodes of gpu have 1 free GPU, and it needs 4; it runs nowhere else"],
        "slow": [],
        "fits": [],
        "any": [],
    }
    engine.step(5.0, [Tick()])
    slow = preference_reason(engine.core, jobs["slow"])
    assert not slow or slow[0].endswith("elsewhere it takes 2 times as long")


@pytest.mark.parametrize("policy", ["jvu:greedy", "jvu:ahead=60", "prio:kill"])
def test_random_stories_keep_engine_and_core_agreed(policy):
    for seed in range(4):
        play(Random(seed), policy)


def step(engine, now, inputs):
    """Make a step, and answer what the policy asks for; return all effects."""
    effects = [*engine.step(now, inputs).effects]
    while (request := engine.book.solving) is not None:
        event = answer(now, request, timed=False).event
        told = Answered(request.request, event.status, event.values)
        effects += engine.step(now, [told]).effects
    return effects


def play(rnd, policy):
    """Play a random story with kills, drains and restarts; check the engine after each step."""
    engine, now, seen = Engine.new(replace(LIVE, policy=policy)), 0.0, []
    for number in range(25):
        now += rnd.choice([0.5, 2.0, 5.0])
        inputs = [each for _, each in seen]
        seen = []
        if rnd.random() < 0.6:
            prefers = rnd.choice(["", "gpu", "same:rack"])
            slowdown = rnd.choice([None, 1.0, 2.0]) if prefers else None
            deadline = {"deadline": now + 90.0} if rnd.random() < 0.5 else {}
            inputs.append(submit(f"j{number}", gpus=rnd.choice([1, 2, 4]), run_time=40.0,
                                 prefers=prefers, slowdown=slowdown, **deadline))  # fmt: skip
        if rnd.random() < 0.2:
            node = f"m{rnd.randrange(4)}"
            inputs.append(Drain(node, "why") if rnd.random() < 0.5 else Resume(node))
        running = [r for r in engine.book.jobs.values() if r.phase is JobPhase.RUNNING]
        if running and rnd.random() < 0.4:
            inputs.append(Ended(running[0].spec.id, running[0].attempt, 0))
        effects = step(engine, now, [*inputs, Tick()])
        engine.check()
        for each in engine.book.jobs.values():
            planned_of(engine.book, engine.core, each)
        for effect in effects:
            if isinstance(effect, StartEffect):
                seen.append((now, Started(effect.job, effect.attempt)))
            elif isinstance(effect, PreemptEffect):
                seen.append((now, Stopped(effect.job, effect.attempt)))
        if rnd.random() < 0.3:
            again = Engine.restore(engine.dump())
            assert again.dump() == engine.dump()
            engine = again
