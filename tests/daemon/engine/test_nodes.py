"""Nodes that go and come, with numbers alone and in cells; quotas in cells."""

import pytest

from daemon.engine.engine import Engine
from daemon.model.inputs import (
    CancelMaintenance,
    Configured,
    Drain,
    Ended,
    Maintain,
    Resume,
    SetPool,
    Tick,
)
from daemon.model.outputs import Accepted, StartEffect
from daemon.model.setup import Setup
from sia.limits import TICK
from sia.model import Pool
from tests.support.clusters.cells import spec
from tests.support.daemons.daemons import SMALL, setup, submit


def in_cells(bad=()):
    """Two racks of two nodes of eight GPUs; pool a owns two nodes, pool b one."""
    cluster = spec(quotas={"a": {"node": 2}, "b": {"node": 1}}, bad=bad)
    return Engine.new(Setup((Pool("a", 16), Pool("b", 8)), options=SMALL, cells=cluster))


def starts(step):
    return {e.job: {name for name, _ in e.nodes} for e in step.effects if type(e) is StartEffect}


def out(engine):
    return {name for name, node in engine.book.nodes.items() if node.reasons}


def do(engine, now, *inputs):
    step = engine.step(now, inputs)
    assert all(type(answer) is Accepted for answer in step.answers), step.answers
    engine.check()
    return step


@pytest.mark.parametrize("make", [in_cells, lambda: Engine.new(setup([8, 8], a=16))])
def test_a_node_that_is_drained_gets_no_jobs_until_it_is_resumed(make):
    engine = make()
    first = starts(do(engine, 1.0, submit("first", gpus=8)))["first"]
    (node,) = first
    do(engine, 2.0, Drain(node, "fan"), Ended("first", 1, 0))
    step = do(engine, 3.0, submit("second", gpus=8))
    assert starts(step)["second"] != first
    assert do(engine, 4.0, Drain(node)).answers == [Accepted(new=False)]
    again = Engine.restore(engine.dump())
    assert out(again) == first
    step = do(again, 5.0, Resume(node), Drain(node), Resume(node))
    assert [n.kind for n in step.notices] == ["node_back", "node_out", "node_back"]
    assert not out(again)


def test_a_job_waits_for_numbered_gpus_of_a_node_that_is_down():
    engine = Engine.new(setup([4], a=4))
    step = do(engine, 1.0, Drain("n0"), submit("one", gpus=4), submit("two"))
    assert not starts(step)
    assert list(engine.book.seatless) == ["one"]
    step = do(engine, 2.0, Resume("n0"))
    assert starts(step) == {"one": {"n0"}}


def test_a_job_that_waits_for_a_node_that_is_down_blocks_no_other():
    engine = Engine.new(setup([8, 8], a=8, b=8))
    do(engine, 1.0, Drain("n0"), submit("small", "b", 1))
    do(engine, 1.0, submit("wide", "a", 8))
    assert starts(do(engine, 2.0, submit("b0", "b", 1), submit("b1", "b", 1))) == {
        "b0": {"n1"},
        "b1": {"n1"},
    }
    late = do(engine, 4000.0, submit("b2", "b", 1))
    assert not starts(late)  # from now on they are kept for the wide one
    step = do(engine, 4001.0, *(Ended(job_id, 1, 0) for job_id in ("small", "b0", "b1")))
    assert starts(step) == {"wide": {"n1"}}
    assert starts(do(engine, 4002.0, Resume("n0"))) == {"b2": {"n0"}}


def test_nothing_is_reserved_for_a_job_that_needs_more_nodes_than_exist():
    engine = Engine.new(setup([8, 8], a=12, b=4))
    do(engine, 1.0, Drain("n0"), submit("wide", "a", 9))
    step = do(engine, 9000.0, submit("small", "b", 1))
    assert starts(step) == {"small": {"n1"}}


@pytest.mark.parametrize("make", [in_cells, lambda: Engine.new(setup([8, 8], a=16))])
def test_a_node_is_down_during_its_maintenance(make):
    engine = make()
    do(engine, 1.0, Maintain("fans", "n0", 10.0, 20.0, "fans"), Maintain("disk", "n0", 15.0, 30.0))
    assert engine.due <= 10.0
    assert out(engine) == set()
    engine = Engine.restore(engine.dump())
    step = do(engine, 10.0, Tick())
    assert [(n.kind, n.data) for n in step.notices] == [("node_out", {"why": "fans"})]
    do(engine, 16.0, Tick())
    answer = engine.step(17.0, [Resume("n0")]).answers[0]
    assert answer.status == 409
    assert "maintenance fans, maintenance disk" in answer.detail
    engine = Engine.restore(engine.dump())
    do(engine, 20.0, Tick())
    assert out(engine) == {"n0"}  # the other one goes on
    do(engine, 25.0, CancelMaintenance("disk"))
    assert out(engine) == set()
    assert engine.step(26.0, [CancelMaintenance("disk")]).answers[0].status == 404
    assert not engine.book.windows


def test_impossible_maintenance_is_refused():
    engine = in_cells()
    do(engine, 100.0, Maintain("m", "n0", 50.0, 200.0))  # it has begun already
    assert out(engine) == {"n0"}
    wrong = [
        Maintain("m", "n1", 50.0, 200.0),
        Maintain("x", "n1", 300.0, 200.0),
        Maintain("y", "n1", 10.0, 99.0),
        Maintain("z", "nowhere", 300.0, 400.0),
        Drain("nowhere"),
        Resume("nowhere"),
    ]
    before = engine.dump()
    answers = engine.step(100.0, wrong).answers
    assert [answer.status for answer in answers] == [409, 422, 422, 404, 404, 404]
    assert engine.dump() == before
    assert engine.step(100.0, [Maintain("m", "n0", 50.0, 200.0)]).answers == [Accepted(new=False)]


def test_a_node_configured_as_bad_is_down_until_it_is_resumed():
    engine = in_cells(bad=("n1",))
    assert out(engine) == {"n1"}
    do(engine, 1.0, Resume("n1"))
    assert out(engine) == set()


def test_quotas_in_cells_change_completely_or_not_at_all():
    engine = in_cells()
    do(engine, 1.0, submit("one", gpus=8))
    before = engine.dump()
    tried = [
        (SetPool("a", quota=8), "the quota follows from its cells"),
        (SetPool("a", cells={"rack": {"shelf": 1}}), "no such chain or cell type"),
        (SetPool("a", cells={"rack": {"node": 1}}, quota=9), "its cells have 8 GPUs, not 9"),
        (SetPool("a", cells={"rack": {"node": 9}}), "node requested in chain rack"),
        (SetPool("a", cells={"rack": {"node": 0}}), "dedicated jobs of pool a use"),
    ]
    for asked, says in tried:
        answer = engine.step(1.0, [asked]).answers[0]
        assert says in answer.detail, answer
        engine.check()
    assert engine.dump() == before
    step = do(engine, 2.0, SetPool("a", cells={"rack": {"node": 1, "quad": 1}}, until=9.0))
    assert step.answers == [Accepted(version=2)]
    assert engine.core.state.pools["a"].quota == engine.book.pools["a"].quota == 12
    engine = Engine.restore(engine.dump())
    do(engine, 9.0, Tick())
    assert engine.core.state.pools["a"].quota == 16
    assert engine.book.pools["a"].cells == {"rack": {"node": 2}}


def test_an_override_in_cells_waits_until_other_pools_return_the_cells():
    engine = in_cells()
    do(engine, 1.0, SetPool("a", cells={"rack": {"node": 1}}, until=9.0))
    do(engine, 2.0, SetPool("b", cells={"rack": {"node": 3}}))
    step = do(engine, 9.0, Tick())
    assert [n.kind for n in step.notices] == ["refused"]
    do(engine, 10.0, SetPool("b", cells={"rack": {"node": 1}}))
    do(engine, engine.due, Tick())
    while engine.book.pools["a"].override is not None:
        do(engine, engine.due, Tick())
    assert engine.book.pools["a"].quota == 16


def test_an_override_waits_until_other_pools_return_its_gpus():
    engine = Engine.new(setup([8, 8], a=8, b=8))
    do(engine, 0.0, SetPool("a", quota=0, until=100.0), SetPool("b", quota=16))
    step = do(engine, 1e6, Tick())
    assert [(n.kind, n.data["why"]) for n in step.notices] == [
        ("refused", "pool a: all pools together would own 24 GPUs of 16")
    ]
    assert engine.due == 1e6 + TICK
    do(engine, 1e6 + 1.0, SetPool("b", quota=8))
    do(engine, 1e6 + TICK, Tick())
    assert engine.book.pools["a"].quota == 8
    assert engine.book.pools["a"].override is None


def test_an_override_in_cells_that_cannot_end_is_refused_once_at_a_time():
    engine = in_cells()
    do(engine, 1.0, SetPool("a", cells={"rack": {"node": 1}}, until=9.0))
    do(engine, 2.0, SetPool("b", cells={"rack": {"node": 3}}))
    step = do(engine, 7 * 86400.0, Tick())
    assert [n.kind for n in step.notices] == ["refused"]


def test_a_pool_with_other_cells_needs_another_database():
    engine = in_cells()
    other = Setup((Pool("a", 16), Pool("b", 8)), options=SMALL)
    answer = engine.step(1.0, [Configured(other)]).answers[0]
    assert "a new database" in answer.mend
