"""What the engine says where something cannot be, and what it makes of odd wishes."""

from daemon.engine.engine import Engine
from daemon.model.inputs import Drain, Ended, Hold, Maintain, Resume, SetPool, SetPriority, Started
from daemon.model.outputs import Refused
from daemon.model.setup import Setup
from sia.model import Pool
from tests.support.clusters.cells import spec
from tests.support.daemons.daemons import SMALL, setup, submit


def in_cells(**quota):
    """Pool a owns such cells; node n1 is bad."""
    cluster = spec(quotas={"a": quota}, bad=("n1",))
    owned = cluster_gpus(quota)
    return Engine.new(Setup((Pool("a", owned),), options=SMALL, cells=cluster))


def cluster_gpus(quota):
    size = {"node": 8, "quad": 4, "pair": 2, "gpu": 1}
    return sum(size[kind] * count for kind, count in quota.items())


def answers(engine, now, *inputs):
    step = engine.step(now, inputs)
    engine.check()
    return step.answers


def test_a_job_that_has_ended_is_not_reported_as_pending():
    engine = Engine.new(setup(a=1))
    answers(engine, 0.0, submit("j"))
    answers(engine, 1.0, Started("j", 1))
    held = answers(engine, 2.0, Hold("j"))[0]
    assert held.mend == "only pending jobs can be held or reordered; cancel the job instead"
    answers(engine, 3.0, Ended("j", 1, code=0))
    for wish in (Hold("j"), SetPriority("j", 3)):
        over = answers(engine, 4.0, wish)[0]
        assert (over.status, over.detail) == (409, "job j is finished")
        assert "cancel" not in over.mend


def test_times_are_printed_for_people():
    engine = Engine.new(setup([2], a=2))
    answers(engine, 100.0, SetPool("a", quota=1, until=3700.0))
    again = answers(engine, 100.0, SetPool("a", quota=2, until=5000.0))[0]
    assert again.detail == "the override of pool a lasts another 1 h"
    late = answers(engine, 101.0, Maintain("w", "n0", 10.0, 50.0))[0]
    assert late.detail == "maintenance w would end in the past"
    turned = answers(engine, 102.0, Maintain("w", "n0", 900.0, 800.0))[0]
    assert turned.detail == "maintenance w would end before it begins"


def test_a_bad_node_is_still_bad_after_drain_and_resume():
    engine = in_cells(node=2)
    node = engine.book.nodes["n1"]
    answers(engine, 0.0, Drain("n1", "a look at it"))
    answers(engine, 1.0, Resume("n1"))
    assert node.reasons == {"config": "bad"}
    answers(engine, 2.0, Resume("n1"))  # it is well again, says the operator
    assert node.reasons == {}


def test_a_width_that_no_cell_has_is_named_as_the_reason():
    engine = in_cells(node=1, quad=1)
    refusal = answers(engine, 0.0, submit("wide", gpus=9))[0]
    assert isinstance(refusal, Refused)
    assert refusal.detail == "no cell of pool a has 9 GPUs"
    assert "request 1 to" not in refusal.mend


def test_no_job_is_warned_before_half_of_its_time_limit():
    engine = Engine.new(setup(a=1))
    answers(engine, 0.0, submit("j", time_limit=60.0))  # and to be warned 60 seconds before
    answers(engine, 10.0, Started("j", 1))
    assert engine.due == 40.0
    step = engine.step(40.0, [])
    assert [effect.kind for effect in step.effects] == ["warn"]


def test_the_place_of_a_job_is_printed_for_people():
    engine = Engine.new(setup([2], a=2))
    answers(engine, 0.0, submit("j", gpus=2))
    notices = engine.step(1.0, [Started("j", 1)]).notices
    assert [notice.data["nodes"] for notice in notices if notice.kind == "running"] == [
        (("n0", (0, 1)),)
    ]
