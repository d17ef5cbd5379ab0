"""Starts within one part of a cluster: as a look at every node would place them."""

from random import Random

import pytest

from daemon.engine.engine import Engine
from daemon.engine.placement import AreaPlacement
from daemon.model.book import JobRecord
from daemon.model.inputs import (
    Cancel,
    Drain,
    Ended,
    Estimated,
    Limited,
    NodeDown,
    NodeUp,
    Release,
    Requeued,
    Resume,
    Started,
)
from daemon.model.setup import Node, Setup
from sia.model import Pool
from tests.support.daemons.daemons import SMALL, job, submit


def fits(free, out, members, gpus, nodes):
    """Whether these nodes have as many, looked at one by one."""
    sizes = [len(free[name]) for name in members if name not in out]
    if nodes is None:
        return sum(sizes) >= gpus
    return gpus % nodes == 0 and sum(size >= gpus // nodes for size in sizes) >= nodes


@pytest.mark.parametrize("seed", range(20))
def test_placement_agrees_with_a_search_of_all_nodes(seed):
    rng = Random(seed)
    nodes = [Node(f"n{i}", tuple(range(rng.randint(1, 8)))) for i in range(rng.randint(2, 6))]
    names = [node.name for node in nodes]
    parts = {p: tuple(rng.sample(names, rng.randint(1, len(names)))) for p in "abc"}
    areas, free = AreaPlacement(nodes, parts), {node.name: set(node.gpus) for node in nodes}
    out, given, seen = set(), [], set()
    for step in range(200):
        turn, node = rng.random(), rng.choice(names)
        if turn < 0.1:
            areas.out(node)
            out.add(node)
        elif turn < 0.2:
            areas.back(node)
            out.discard(node)
        elif turn < 0.5 and given:
            gone = given.pop(rng.randrange(len(given)))
            areas.free(gone)
            for name, gpus in gone:
                free[name] |= set(gpus)
        else:
            width = rng.choice([1, 2, 4, 6, 12])
            spec = job(str(step), gpus=width, nodes=rng.choice([None, None, 1, 2]))
            order = rng.sample("abc", 3)
            found = areas.find(JobRecord(spec, 0.0, 0.0), order)
            right = [a for a in order if fits(free, out, parts[a], width, spec.nodes)]
            assert (found and found[0]) == (right[0] if right else None)
            seen.add(found is None)
            if found:
                area, where = found
                assert {name for name, _ in where} <= set(parts[area]) - out
                assert sum(len(gpus) for _, gpus in where) == width
                if spec.nodes is not None:
                    assert {len(gpus) for _, gpus in where} == {width // spec.nodes}
                for name, gpus in where:
                    assert free[name] >= set(gpus)
                    free[name] -= set(gpus)
                areas.take(where)
                given.append(where)
        areas.check({node.name: node.gpus for node in nodes}, given)


def cluster(**more):
    """Two pools of eight GPUs, each with a node of its own."""
    nodes = (Node("n1", tuple(range(8))), Node("n2", tuple(range(8))))
    return Setup(
        (Pool("a", 8), Pool("b", 8)), "fcfs", options=SMALL, nodes=nodes,
        areas={"a": ("n1",), "b": ("n2",)}, **more,
    )  # fmt: skip


def lenders(*, share=True):
    """As above, with SIA, which asks how long a job runs before it lends to it."""
    pools = (Pool("a", 8, share=share), Pool("b", 8, share=share))
    return Setup(pools, "sia", options=SMALL, nodes=(Node("n1", tuple(range(16))),))


def starts(step):
    return [(effect.job, effect.area, effect.nodes) for effect in step.effects]


def test_a_job_is_on_its_pools_nodes():
    engine = Engine.new(cluster())
    step = engine.step(1.0, [submit("x", "b", 4), submit("y", "a", 8)])
    assert [(j, area, [n for n, _ in nodes]) for j, area, nodes in starts(step)] == [
        ("y", "a", ["n1"]), ("x", "b", ["n2"]),
    ]  # fmt: skip
    again = Engine.restore(engine.dump())
    again.check()
    assert again.book.jobs["x"].area == "b"


def test_a_job_that_fits_in_no_area_is_refused():
    engine = Engine.new(cluster())
    wide = submit("x", "a", 8, nodes=2)
    (answer,) = engine.step(1.0, [wide]).answers
    assert answer.status == 422
    assert "2 nodes" in answer.detail


def test_a_job_whose_node_is_down_gets_another_node():
    engine = Engine.new(cluster())
    engine.step(1.0, [NodeDown("n1", "drained: a disk")])
    step = engine.step(2.0, [submit("x", "a", 4)])
    assert [(j, area) for j, area, _ in starts(step)] == [("x", "b")]
    assert not starts(engine.step(3.0, [submit("y", "a", 4), submit("z", "b", 4)]))[1:]
    step = engine.step(4.0, [NodeUp("n1")])
    assert len(starts(step)) == 1
    engine.check()


def test_a_node_is_down_while_any_reason_remains():
    engine = Engine.new(cluster())
    assert engine.step(1.0, [NodeDown("n1", "down")]).answers[0].new
    assert not engine.step(2.0, [NodeDown("n1", "down")]).answers[0].new
    assert engine.step(3.0, [Resume("n1")]).answers[0].status == 409
    engine.step(4.0, [Drain("n1"), NodeUp("n1")])
    assert list(engine.book.nodes["n1"].reasons) == ["operator"]
    assert engine.step(5.0, [Resume("n1")]).answers[0].new
    assert not engine.step(6.0, [NodeUp("n1")]).answers[0].new
    assert engine.step(7.0, [NodeDown("n9", "down")]).answers[0].status == 404


def test_a_job_that_its_cluster_requeued_is_pending_again():
    engine = Engine.new(cluster())
    engine.step(1.0, [submit("x", "a", 8)])
    engine.step(2.0, [Started("x", 1)])
    step = engine.step(3.0, [Requeued("x", 1, "requeued")])
    assert [(e.job, e.attempt) for e in step.effects] == [("x", 2)]
    engine.step(4.0, [Requeued("x", 2, "held", hold=True)])
    assert engine.book.jobs["x"].phase.value == "held"
    assert engine.step(5.0, [Ended("x", 2, 0)]).answers[0].status == 409
    assert engine.step(6.0, [Release("x")]).effects[0].attempt == 3
    engine.check()


@pytest.mark.parametrize("hold", [False, True])
def test_a_job_that_was_being_ended_is_not_requeued(hold):
    engine = Engine.new(cluster())
    engine.step(1.0, [submit("x", "a", 8), Started("x", 1)])
    engine.step(2.0, [Cancel("x")])
    step = engine.step(3.0, [Requeued("x", 1, "requeued", hold=hold)])
    assert not step.effects
    assert engine.book.job("x").phase.value == "cancelled"
    assert "x" not in engine.book.jobs
    engine.check()


def test_a_changed_time_limit_counts_from_the_start_of_the_job():
    engine = Engine.new(cluster())
    engine.step(0.0, [submit("x", "a", 1, time_limit=100.0, warn=0.0)])
    engine.step(10.0, [Started("x", 1)])
    engine.step(20.0, [Limited("x", 200.0)])
    assert not engine.step(110.0, []).effects
    assert engine.step(210.0, []).effects[0].kind == "end"


def test_a_time_limit_bounds_the_estimate_of_a_pending_job():
    engine = Engine.new(lenders())
    engine.step(0.0, [submit("own", "a", 8), submit("x", "a", 8, run_time=0.0)])
    assert engine.book.job("x").phase.value == "pending", "nobody lends to it"
    engine.step(1.0, [Limited("x", 200.0)])
    assert engine.book.job("x").phase.value == "pending", "so it was in journals of old"
    step = engine.step(2.0, [Limited("x", 100.0, believed=True)])
    assert [effect.job for effect in step.effects] == ["x"]
    assert engine.book.job("x").run_time == 100.0
    engine.check()


def test_a_raised_time_limit_raises_the_estimate():
    engine = Engine.new(lenders(share=False))
    waits = submit("x", "a", 8, run_time=0.0, time_limit=100.0)
    engine.step(0.0, [submit("own", "a", 8), waits, submit("y", "a", 8, run_time=50.0)])
    engine.step(1.0, [Limited("x", 300.0, believed=True), Limited("y", 300.0, believed=True)])
    core = {each: engine.book.job(each).core for each in "xy"}
    said = {each: engine.core.state.jobs[core[each]].run_time for each in "xy"}
    assert said == {"x": 300.0, "y": 50.0}
    engine.step(2.0, [Estimated(((core["x"], 1e9), (core["y"], 10.0)))])
    assert [engine.book.job(each).run_time for each in "xy"] == [300.0, 10.0]
    engine.check()


def test_a_job_that_the_backend_reports_as_cancelled_is_cancelled():
    engine = Engine.new(cluster())
    engine.step(0.0, [submit("x", "a", 1)])
    engine.step(1.0, [Ended("x", 1, signal=15, cancelled=True)])
    assert engine.book.ended["x"].phase.value == "cancelled"
