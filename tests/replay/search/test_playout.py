"""The light playout of wfq beside a naive one, FIFO's exact predictions, and fair ends."""

from bisect import bisect_left
from copy import deepcopy
from math import exp, inf
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replay.search.objectives import evaluate, fair_ends, prepare
from replay.search.playout import cap, columns, levels_of, shares, simulate
from replay.search.space import Point
from replay.search.workload import Sample, size_of
from sia.core.playout import Arrival
from sia.model import Job
from tests.support.builders import job

FIFO = Point("fifo", (), (1.0,), 0.0, 1.0)
DIPS = ((1, 100.0), (2, 60.0), (3, 58.0), (4, 30.0), (8, 28.0))


def elastic(name, submit, seconds, most, demand=()):
    """A job from 1 GPU up."""
    return Arrival(Job(str(name), "p", float(submit), 1, max_width=most, demand=demand), seconds)


def crowd(seed, count, gap=40.0):
    random = Random(seed)
    now, found = 0.0, []
    for i in range(count):
        now += random.expovariate(1 / gap)
        most = random.choice((1, 1, 2, 4, 8))
        demand = DIPS if random.random() < 0.4 else ()
        found.append(elastic(i, now, random.choice((10.0, 100.0, 900.0)) + i, most, demand))
    return found


def naive(arrivals, gpus, point, cost, until=None):
    """Ends by id. From the list of live jobs alone, everything is dealt anew at each event."""
    waiting, live, ends = list(arrivals), [], {}
    now = 0.0
    while waiting or live:
        due = [each["end"] for each in live if each["end"] < inf]
        now = min([*due, *(a.job.submit for a in waiting[:1])])
        for each in [each for each in live if each["end"] <= now]:
            live.remove(each)
            ends[each["id"]] = now
        if until in ends:
            return ends
        while waiting and waiting[0].job.submit <= now:
            arrival = waiting.pop(0)
            live.append({
                "id": arrival.job.id, "arrival": arrival, "gpus": 0, "done": 0.0, "since": now,
                "pause": 0.0, "end": inf,
            })  # fmt: skip
        widths = naive_deal(live, gpus, point)
        for each in live:
            width = widths.get(each["id"], 0)
            if width != each["gpus"]:
                own, seconds = each["arrival"]
                each["done"] = work_of(each, now)
                each["pause"] = cost if each["done"] and width else 0.0
                each["gpus"], each["since"] = width, now
                left = (seconds - each["done"]) / own.speed(width) if width else inf
                each["end"] = now + each["pause"] + left
    return ends


def work_of(each, now):
    if not each["gpus"]:
        return each["done"]
    speed = each["arrival"].job.speed(each["gpus"])
    return each["done"] + max(0.0, now - each["since"] - each["pause"]) * speed


def naive_deal(live, gpus, point):
    queues = [[] for _ in point.weights]
    for each in live:
        queues[bisect_left(point.limits, size_of(each["arrival"]))].append(each)
    usable = [sum(e["arrival"].job.max_width for e in queue) for queue in queues]
    widths = {}
    for queue, share in zip(queues, shares(gpus, point.weights, usable), strict=True):
        zeta = point.zeta
        while True:
            left, dealt = share, {}
            for each in queue:
                own = each["arrival"].job
                width = min(left, naive_cap(own, zeta))
                if width:
                    dealt[each["id"]] = width
                    left -= width
            if not left or zeta <= 0:
                break
            zeta -= point.delta
        widths |= dealt
    return widths


def naive_cap(own, zeta):
    if zeta <= 1e-12:
        return own.max_width
    return max(
        k for k in range(1, own.max_width + 1)
        if k == 1 or own.speed(k) / (k * own.speed(1)) >= zeta
    )  # fmt: skip


@given(
    st.integers(0, 10_000),
    st.sampled_from([(), (150.0,), (50.0, 300.0)]),
    st.sampled_from([0.0, 0.5, 0.8, 1.0]),
    st.sampled_from([0.0, 25.0]),
)
def test_it_ends_jobs_as_a_naive_playout_does(seed, limits, zeta, cost):
    arrivals = crowd(seed, 14)
    weights = tuple(exp(-i) for i in range(len(limits) + 1))
    point = Point("x", limits, weights, zeta, 0.25)
    ends, predicted = simulate(columns(arrivals, 8), point, cost)
    found = naive(arrivals, 8, point, cost)
    assert ends == pytest.approx([found[a.job.id] for a in arrivals])
    for i, arrival in enumerate(arrivals):
        told = naive(arrivals[: i + 1], 8, point, cost, until=arrival.job.id)
        assert predicted[i] == pytest.approx(told[arrival.job.id])


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


def test_a_cap_is_the_largest_width_that_is_efficient_enough_although_tables_dip():
    [arrival] = [elastic("a", 0, 100, 8, DIPS)]
    jobs = columns([arrival], 8)
    efficiency = jobs.efficiencies[0]
    assert efficiency[3] < 0.6 < efficiency[4] == pytest.approx(100 / 30 / 4)
    assert efficiency[6] < 0.6 < efficiency[5]
    assert cap(efficiency, 8, 0.6) == 5
    assert cap(efficiency, 8, 0.0) == 8
    assert cap(efficiency, 8, 1.0) == 1


def test_levels_fall_to_0():
    assert levels_of(0.6, 0.25) == pytest.approx([0.6, 0.35, 0.1, 0.0])
    assert levels_of(0.0, 0.5) == [0.0]


@given(
    st.integers(1, 64),
    st.lists(st.tuples(st.integers(0, 9), st.floats(0.01, 9)), min_size=1, max_size=6),
)
def test_shares_are_whole_and_leave_nothing_that_could_be_used(gpus, queues):
    usable = [most for most, _ in queues]
    found = shares(gpus, [weight for _, weight in queues], usable)
    assert sum(found) == min(gpus, sum(usable))
    assert all(0 <= share <= most for share, most in zip(found, usable, strict=True))


def test_shares_are_weighted_and_what_a_queue_cannot_use_is_for_the_others():
    assert shares(8, (3.0, 1.0), (100, 100)) == [6, 2]
    assert shares(8, (3.0, 1.0), (1, 100)) == [1, 7]
    assert shares(3, (1.0, 1.0), (9, 9)) == [2, 1]  # the tie is for the queue of smaller jobs


def test_fair_ends_share_evenly_up_to_what_a_job_can_use():
    jobs = columns([elastic("a", 0, 30, 4), elastic("b", 0, 20, 1), elastic("c", 5, 30, 4)], 4)
    # b has 1 GPU; a has 3 until c comes, then both have 1.5 until a ends; then c has the rest
    a = 5 + (30 - 15) / 1.5
    done = 1.5 * 10 + 3 * 5  # of c, until b has ended at 20
    assert fair_ends(jobs) == pytest.approx([a, 20, 20 + (30 - done) / 4])


def test_fair_ends_in_turns_where_jobs_are_more_than_gpus():
    jobs = columns([elastic(i, 0, 10, 1) for i in range(4)], 2)
    assert fair_ends(jobs) == pytest.approx([20.0] * 4)


def test_measures_are_worked_out_by_hand():
    first, second = job("a").gpus(1).at(0).runs(100), job("b").gpus(1).at(10).runs(30)
    sample = prepare(Sample("s", [first, second]), 1)
    assert sample.fair == pytest.approx([130.0, 70.0])
    found = evaluate(FIFO, sample)
    assert found["avg:jct"] == pytest.approx((100 + 120) / 2)
    assert found["max:jct"] == found["p99:jct"] == pytest.approx(120)
    assert found["max:pred_err"] == 0
    assert found["max:unfairness"] == pytest.approx(100 * (130 - 70) / 60)
    apart = Point("x", (50.0,), (1.0, 1e-9), 0.0, 1.0)
    found = evaluate(apart, sample)  # b stops a, whose end was told as 100
    assert found["max:pred_err"] == pytest.approx(30.0)
    assert found["avg:jct"] == pytest.approx((130 + 30) / 2)


def test_a_copy_is_apart():
    jobs = columns(crowd(3, 30), 8)
    assert simulate(jobs, FIFO) == simulate(deepcopy(jobs), FIFO)
