"""Nodes that are out, where there are no cells: nobody is lent what owners will have to use."""

from random import Random

import pytest
from msgspec.structs import replace

from daemon.answers.explain.explain import waits
from daemon.answers.explain.wording import needed
from daemon.answers.simulate.futures import facts_of
from daemon.engine.engine import Engine
from daemon.model.inputs import (
    Cancel,
    Configured,
    Drain,
    Ended,
    Foreseen,
    Maintain,
    NodeDown,
    NodeUp,
    Resume,
    SetPool,
    Started,
    Tick,
)
from daemon.model.outputs import Accepted, StartEffect
from daemon.model.setup import Budget, Node, Setup
from sia.events import GpusOut
from sia.explain.explain import explain
from sia.explain.obstacles import Out
from sia.model import Load, Pool, Stream
from tests.support.daemons.daemons import SMALL, setup, submit

THREE = setup([8, 8, 8], vision=8, speech=8, robots=8)
NODES = tuple(Node(f"n{i}", tuple(range(8))) for i in range(4))


def do(engine, now, *inputs):
    step = engine.step(now, inputs)
    assert all(type(answer) is Accepted for answer in step.answers), step.answers
    engine.check()
    return step


def starts(step):
    return [effect.job for effect in step.effects if type(effect) is StartEffect]


def short(job_id, pool, gpus):
    """A job that is gone within the least window."""
    return submit(job_id, pool, gpus, run_time=4.0)


def test_gpus_reserved_for_a_forecast_job_are_free_when_it_arrives():
    engine = Engine.new(THREE)
    foreseen = Foreseen(tuple(Load("speech", window, 8) for window in range(3)))
    do(engine, 1.0, foreseen, short("own", "vision", 8), Drain("n2"))
    assert starts(do(engine, 2.0, short("guest", "vision", 8))) == []
    assert starts(do(engine, 3.0, short("owner", "speech", 8))) == ["owner"]
    assert not engine.book.seatless


def test_a_job_without_a_loan_is_explained_and_starts_when_the_nodes_return():
    engine = Engine.new(THREE)
    do(engine, 1.0, short("own", "vision", 8), Drain("n2", "fan"))
    assert starts(do(engine, 2.0, short("guest", "vision", 8))) == ["guest"]
    assert starts(do(engine, 3.0, short("more", "vision", 1))) == []
    core = engine.core
    said = explain(core, core.state.jobs[engine.book.jobs["more"].core])
    assert [way.obstacles for way in said.ways if way.name == "spare"] == [(Out(8),)]
    words = "8 GPUs on nodes that are out: as many others stay idle for owners (sia nodes)"
    assert any(line.endswith(words) for line in needed(said, 3.0))
    lines = waits(engine.book, core, engine.book.jobs["more"])
    assert any("node n2 is out (operator: fan): sia resume n2" in line for line in lines)
    assert starts(do(engine, 4.0, Resume("n2"))) == ["more"]


def test_jobs_of_a_drained_node_get_gpus_elsewhere():
    """What its owner will have left when it ends nobody was lent."""
    engine = Engine.new(THREE)
    step = do(engine, 1.0, short("own", "vision", 8))
    (node,) = (name for name, _ in step.effects[0].nodes)
    guests = [short("guest", "vision", 8), short("more", "vision", 8)]
    assert starts(do(engine, 2.0, Drain(node), *guests)) == ["guest"]
    step = do(engine, 3.0, Ended("own", 1, 0), Cancel("more"), short("next", "vision", 8))
    assert starts(step) == ["next"]


def test_quotas_that_fit_on_the_remaining_nodes_lose_nothing():
    engine = Engine.new(THREE)
    step = do(engine, 1.0, Drain("n0"))
    assert step.events == [GpusOut(1.0, "robots", 8)]
    assert GpusOut(2.0, "robots", 3) in do(engine, 2.0, SetPool("speech", quota=3)).events
    assert GpusOut(3.0, "robots", 0) in do(engine, 3.0, SetPool("robots", quota=5)).events
    assert not do(engine, 4.0, NodeDown("n0", "lost"), Resume("n0")).events
    assert not do(engine, 5.0, NodeUp("n0")).events


def test_surplus_nodes_replace_nodes_that_are_down():
    engine = Engine.new(setup([8, 8, 8], a=8, b=8))
    assert not do(engine, 1.0, Drain("n0")).events
    assert do(engine, 2.0, Drain("n1")).events == [GpusOut(2.0, "a", 8)]


def in_areas(**areas):
    pools = (Pool("a", 8), Pool("b", 8), Pool("c", 8, share=False))
    return Setup(pools, options=SMALL, nodes=NODES, areas=areas)


def test_nodes_of_one_area_do_not_replace_those_of_another():
    engine = Engine.new(in_areas(a=("n0",), b=("n1", "n2"), c=("n3",)))
    assert do(engine, 1.0, Drain("n0")).events == [GpusOut(1.0, "a", 8)], "n2 is nobody's but b's"
    assert not do(engine, 2.0, Drain("n1")).events, "n2 makes up for it"
    step = do(engine, 3.0, Drain("n2"), Drain("n3"))
    assert step.events == [GpusOut(3.0, "a", 16), GpusOut(3.0, "c", 8)]


def test_areas_with_common_nodes_replace_each_other():
    engine = Engine.new(in_areas(a=("n0", "n1"), b=("n1", "n2"), c=("n3",)))
    assert not do(engine, 1.0, Drain("n0")).events
    assert do(engine, 2.0, Drain("n2")).events == [GpusOut(2.0, "a", 8)]


def test_the_area_with_the_largest_loss_counts():
    """As a whole there are enough; where a's and c's jobs may be there are not."""
    engine = Engine.new(in_areas(a=("n0", "n3"), b=("n1", "n2", "n3"), c=("n0", "n3")))
    assert do(engine, 1.0, Drain("n0")).events == [GpusOut(1.0, "a", 8), GpusOut(1.0, "c", 8)]


def test_running_jobs_beyond_a_lowered_quota_count():
    engine = Engine.new(setup([8, 8, 8], a=16, b=8))
    do(engine, 1.0, short("one", "a", 8), short("two", "a", 8))
    do(engine, 2.0, Drain("n2"), Configured(setup([8, 8, 8], a=8, b=8)))
    assert engine.core.state.groups[0].out == 8
    assert not starts(do(engine, 3.0, short("guest", "a", 8)))
    restored = Engine.restore(engine.dump())
    for each in (engine, restored):
        do(each, 4.0, Ended("one", 1, 0))
        assert do(each, 5.0, Tick()).events[0] == GpusOut(5.0, "a", 0)
    assert engine.dump() == restored.dump()


def test_a_maintenance_due_before_a_new_configuration_takes_its_node_out_first():
    """As after a maintenance began while the daemon was away."""
    engine = Engine.new(THREE)
    foreseen = Foreseen(tuple(Load("speech", window, 8) for window in range(3)))
    do(engine, 1.0, foreseen, short("own", "vision", 8), Maintain("w", "n2", 50.0, 90.0))
    more = replace(THREE, budgets={"vision": Budget(lend_budget_hours=5.0)})
    step = do(engine, 60.0, short("guest", "vision", 8), Configured(more))
    assert not starts(step)
    assert starts(do(engine, 61.0, short("owner", "speech", 8))) == ["owner"]


def test_a_restored_engine_knows_which_nodes_are_down():
    engine = Engine.new(THREE)
    do(engine, 1.0, short("own", "vision", 8), short("guest", "vision", 8), Drain("n2"))
    again = Engine.restore(engine.dump())
    assert not starts(do(again, 2.0, short("more", "vision", 1)))
    another = (*THREE.nodes, Node("n3", tuple(range(8))))
    do(again, 3.0, Configured(replace(THREE, nodes=another)))
    assert again.core.state.pools["vision"].group.out == 0
    assert starts(do(again, 5.0, Tick())) == ["more"]


def test_planned_outages_say_when_nodes_leave_and_return():
    engine = Engine.new(THREE)
    do(engine, 1.0, Maintain("w1", "n0", 50.0, 90.0), Maintain("w2", "n1", 70.0, 100.0))
    facts = facts_of(engine, 1.0)
    told = [(fact.time, fact.gpus) for fact in facts]
    assert told == [(50.0, 8), (70.0, 16), (90.0, 8), (100.0, 0)]
    do(engine, 100.0)
    do(engine, 101.0, Drain("n2"), Maintain("w3", "n2", 150.0, 190.0))
    assert facts_of(engine, 101.0) == [], "it stays out"


@pytest.mark.parametrize("seed", range(60))
def test_planned_outages_equal_those_that_then_happen(seed):
    """Nodes that go for a while, some for good, and quotas that are others for a while."""
    rng = Random(seed)
    engine = Engine.new(setup([8, 8, 4, 4], a=8, b=8, c=8))
    inputs = [
        Maintain(f"w{i}", f"n{i}", *(float(t) for t in sorted(rng.sample(range(2, 99), 2))))
        for i in rng.sample(range(4), rng.randint(0, 4))
    ]
    inputs += [Drain(f"n{i}") for i in range(4) if rng.random() < 0.1]
    inputs += [
        SetPool(pool, quota=rng.randint(0, 8), until=float(rng.randint(2, 99)))
        for pool in "abc" if rng.random() < 0.4
    ]  # fmt: skip
    do(engine, 1.0, *inputs)
    foreseen = [(1.0, engine.core.state.groups[0].out)]
    facts = facts_of(engine, 1.0)
    foreseen += [(fact.time, fact.gpus) for fact in facts if isinstance(fact, GpusOut)]
    for now in range(2, 100):
        engine.step(float(now), [Tick()])
        engine.check()
        assert engine.core.state.groups[0].out == [out for time, out in foreseen if time <= now][-1]


@pytest.mark.parametrize("seed", range(40))
def test_whatever_nodes_fail_guests_leave_owners_their_gpus(seed):
    """As many stay idle as are out, by the engine's count and by one made anew at each step."""
    rng, lent = Random(seed), 0
    engine = Engine.new(setup([8, 8, 4, 4], a=8, b=8, c=4, d=rng.choice([0, 4])))
    now, running = 0.0, []
    for number in range(120):
        now += rng.choice([0.0, 1.0, 3.0])
        inputs = [short(str(number), rng.choice("aaab"), rng.choice([1, 2, 4, 8]))]
        if rng.random() < 0.3:
            inputs.append(rng.choice([Drain, Resume])(f"n{rng.randrange(4)}"))
        for job_id in rng.sample(running, k=rng.randint(0, len(running))):
            running.remove(job_id)
            inputs.append(Ended(job_id, 1, 0))
        step = engine.step(now, inputs)
        engine.check()
        begun = starts(step)
        running += begun
        engine.step(now, [Started(job_id, 1) for job_id in begun])
        group = engine.core.state.groups[0]
        if any(getattr(d, "stream", None) is Stream.SPARE for d in step.decisions):
            lent += group.out > 0
            assert group.idle >= group.out
        owned = sum(max(pool.quota, pool.dedicated) for pool in group.pools)
        out = [len(node.gpus) for node in engine.book.nodes.values() if node.reasons]
        assert group.out == min(sum(out), max(0, owned - 24 + sum(out)))
    assert lent or seed, "or else it shows little"
