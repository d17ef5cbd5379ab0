"""The light playout of wfq beside a replay, FIFO's exact predictions, and what is measured."""

from copy import deepcopy
from math import exp
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from replay.logs.trace import PoolTable, Trace
from replay.run.run import Settings, replay_one
from replay.search.objectives import evaluate, prepare
from replay.search.playout import columns, levels_of, simulate
from replay.search.space import Point
from replay.search.workload import Sample
from sia.core.playout import Arrival
from sia.model import RESTART, Job, Options, Pool
from tests.support.budget import budget

FIFO = Point("fifo", (), (1.0,), 0.0, 1.0)
DIPS = ((1, 100.0), (2, 60.0), (3, 58.0), (4, 30.0), (8, 28.0))


def elastic(name, submit, seconds, most, demand=()):
    """A job from 1 GPU up."""
    return Arrival(Job(str(name), "p", float(submit), 1, max_width=most, demand=demand), seconds)


def crowd(seed, count, *, gangs=False):
    """Jobs that compete; with gangs, some need several GPUs, and some restart if stopped."""
    random = Random(seed)
    now, found = 0.0, []
    for i in range(count):
        now += random.expovariate(1 / 40)
        most = random.choice((1, 1, 2, 4, 8))
        demand = DIPS if random.random() < 0.4 else ()
        own, seconds = elastic(i, now, random.choice((10.0, 100.0, 900.0)) + i, most, demand)
        if gangs:
            least = random.randint(1, most)
            cost = random.choice((None, None, 5.0, RESTART))
            own = replace(own, width=most, min_width=least, preemptible=cost)
        found.append(Arrival(own, seconds))
    return found


def replayed(arrivals, gpus, point, cost):
    """Ends and predicted ends of a replay under the policy itself."""
    settings = Settings([point.exact], options=Options(resume_cost=cost))
    table = PoolTable([Pool("p", gpus)])
    schedule = replay_one(Trace(arrivals), table, point.exact, settings, None)
    return schedule.ends, schedule.predictions


@given(
    st.integers(0, 10_000),
    st.sampled_from([(), (150.0,), (50.0, 300.0)]),
    st.sampled_from([0.0, 0.5, 0.8, 1.0]),
    st.sampled_from([0.0, 25.0]),
    st.booleans(),
)
@settings(max_examples=budget(ci=36, soak=2000))
def test_it_ends_jobs_when_a_replay_does(seed, limits, zeta, cost, gangs):
    arrivals = crowd(seed, 14, gangs=gangs)
    weights = tuple(round(exp(-2 * i), 4) for i in range(len(limits) + 1))
    point = Point("x", limits, weights, zeta, 0.25)
    found = simulate(columns(arrivals, 8), point, cost)
    ends, predicted = replayed(arrivals, 8, point, cost)
    assert found.ends == pytest.approx(ends)
    assert found.predicted == pytest.approx(predicted)


@given(st.integers(0, 10_000), st.sampled_from([0.0, 30.0]))
def test_one_queue_without_caps_predicts_every_job_exactly(seed, cost):
    ends, predicted = simulate(columns(crowd(seed, 60), 8), FIFO, cost)
    assert predicted == pytest.approx(ends, rel=1e-12)


def test_jobs_of_a_small_queue_pass_a_long_one():
    long, short = elastic("long", 0, 1000, 4), elastic("short", 10, 5, 4)
    apart = Point("x", (5.0,), (3.0, 1.0), 0.0, 1.0)
    ends, _ = simulate(columns([long, short], 4), apart)
    assert ends[1] == pytest.approx(10 + 5 / 3)  # three of four GPUs
    behind, _ = simulate(columns([long, short], 4), FIFO)
    assert behind[1] == pytest.approx(1000 / 4 + 5 / 4)


def test_levels_fall_to_0():
    assert levels_of(0.6, 0.25) == pytest.approx([0.6, 0.35, 0.1, -0.15])
    assert levels_of(0.0, 0.5) == [0.0]


def test_measures_are_worked_out_by_hand():
    sample = prepare(
        Sample("s", [elastic("a", 0, 100, 2), elastic("b", 10, 30, 1)]), 2, [30.0, 50.0, 99.0]
    )
    assert sample.fair == pytest.approx([65.0, 40.0])  # b has one of two GPUs
    found = evaluate(FIFO, sample)  # b waits for a
    assert found["avg:jct"] == pytest.approx((50 + 70) / 2)
    assert found["max:jct"] == found["p99:jct"] == pytest.approx(70)
    assert found["max:pred_err"] == 0
    assert found["max:unfairness"] == pytest.approx(100 * (80 - 40) / 30)
    apart = Point("x", (50.0,), (1.0, 0.1), 0.0, 1.0)
    found = evaluate(apart, sample)  # b takes a GPU from a, whose end was told as 50
    assert found["max:pred_err"] == pytest.approx(30.0)
    assert found["avg:jct"] == pytest.approx((65 + 30) / 2)
    assert found["max:unfairness"] == 0
    assert [found[f"avg:jct:{i}"] for i in (1, 2, 3, 4)] == pytest.approx([30, 0, 0, 65])
    assert found["avg:pred_err:4"] == pytest.approx(30.0)


def test_a_copy_does_not_share_state():
    jobs = columns(crowd(3, 30), 8)
    assert simulate(jobs, FIFO) == simulate(deepcopy(jobs), FIFO)
