"""Workloads and spaces: samples that are apart, limits by C², labels."""

from collections import Counter
from itertools import pairwise
from random import Random
from statistics import fmean, pvariance

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replay.search.space import (
    MOST_QUEUES,
    HeuristicSpace,
    RawSpace,
    limits_of,
    spread_of,
    weights_of,
)
from replay.search.workload import LogSource, PiecewiseUniform, size_of
from sia.console.errors import UserError
from sia.core.playout import Arrival
from sia.model import Job
from tests.support.builders import job

sizes = st.lists(st.integers(1, 60).map(float), min_size=2, max_size=40).map(sorted)


def spread(values):
    """C², by the book."""
    return pvariance(values) / fmean(values) ** 2


@given(sizes, st.floats(0.001, 3))
def test_limits_divide_sizes_by_their_spread(found, threshold):
    limits = limits_of(found, threshold)
    assert list(limits) == sorted(set(limits))
    edges = [0.0, *limits, found[-1]]
    for low, high in pairwise(edges):
        queue = [size for size in found if low < size <= high]
        alike = len(set(queue)) == 1
        assert alike or spread(queue[: queue.index(queue[-1]) + 1]) <= threshold + 1e-9


@given(sizes)
def test_the_largest_spread_makes_one_queue(found):
    assert limits_of(found, spread_of(found)) == ()


def test_weights_halve_and_may_grow():
    assert weights_of(3, 0.0) == pytest.approx([1 / 3] * 3)
    one, two = weights_of(2, 1.0)
    assert one / two == pytest.approx(2.718281828)
    assert weights_of(2, -1.0) == pytest.approx([two, one])


@given(sizes, st.integers(1, 64), st.integers(0, 1000), st.booleans())
def test_any_genome_is_a_point_with_no_more_queues_than_gpus(found, gpus, seed, raw):
    if found[0] == found[-1]:
        return
    space = (RawSpace if raw else HeuristicSpace)(found, gpus)
    random = Random(seed)
    drawn = tuple(random.random() for _ in range(space.dimensions))
    for genome in [drawn, *space.first()]:
        point = space.point(genome)
        assert 1 <= len(point.weights) == len(point.limits) + 1 <= min(gpus, MOST_QUEUES)
        assert list(point.limits) == sorted(point.limits)
        assert all(weight > 0 for weight in point.weights)
        assert 0 <= point.zeta <= 1
        assert 0 < point.delta <= 1
        assert len(point.exact) < 255
        assert "e+" not in point.exact
    assert space.point(space.first()[0]).limits == ()


def test_a_label_is_the_same_settings():
    space = HeuristicSpace([1.0, 10.0, 100.0, 1000.0], 8)
    point = space.point((0.0, 0.5, 0.6, 0.16))
    parts = dict(part.split("=") for part in point.exact.split(":")[1:])
    assert tuple(map(float, parts["sizes"].split("+"))) == point.limits
    assert tuple(map(float, parts["weights"].split("+"))) == point.weights
    assert float(parts["zeta"]) == point.zeta


def log_of(count):
    return [job(f"j{i}").at(i * 10).runs(10 + i) for i in range(count)]


def test_samples_for_training_and_testing_have_no_job_in_common():
    workload = LogSource(log_of(100), 8, seed=3)
    drawn = {
        side: {size_of(a) for n in range(5) for a in workload.sample(side, n, 200, 3).arrivals}
        for side in ("train", "test")
    }
    assert not drawn["train"] & drawn["test"]
    assert len(drawn["train"]) == len(drawn["test"]) == 50


def test_a_sample_has_the_rate_of_the_log_or_the_load_asked_for():
    workload = LogSource(log_of(100), 8, seed=3)
    sample = workload.sample("train", 0, 4000, 3)
    assert sample == workload.sample("train", 0, 4000, 3) != workload.sample("train", 1, 4000, 3)
    submits = [arrival.job.submit for arrival in sample.arrivals]
    assert submits == sorted(submits)
    assert submits[-1] / 4000 == pytest.approx(10, rel=0.05)
    before = workload.load
    workload.at_load(before / 2)
    assert workload.load == pytest.approx(before / 2)
    slower = workload.sample("train", 0, 4000, 3).arrivals[-1].job.submit
    assert slower == pytest.approx(2 * submits[-1])


def test_a_size_is_the_time_on_the_least_width_times_that_width():
    demand = ((1, 100.0), (4, 40.0))
    assert size_of(Arrival(Job("a", "p", 0, 4, demand=demand), 40.0)) == pytest.approx(100)
    gang = Arrival(Job("a", "p", 0, 4, min_width=4, demand=demand), 40.0)
    assert size_of(gang) == pytest.approx(160)


def test_a_distribution_is_uniform_between_two_points():
    found = PiecewiseUniform([10.0, 20.0, 20.0, 40.0], [0.0, 0.5, 0.8, 1.0])
    random = Random(0)
    drawn = [found.draw(random) for _ in range(4000)]
    parts = Counter("low" if x < 20 else "same" if x == 20 else "high" for x in drawn)
    assert parts["low"] / 4000 == pytest.approx(0.5, abs=0.03)
    assert parts["same"] / 4000 == pytest.approx(0.3, abs=0.03)
    assert min(drawn) >= 10
    assert max(drawn) <= 40


def test_a_log_of_a_few_jobs_is_refused():
    with pytest.raises(UserError, match="5 jobs"):
        LogSource(log_of(5), 8, 0)
