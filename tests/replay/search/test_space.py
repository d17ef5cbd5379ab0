"""Workloads and spaces: samples that are apart, limits by C², labels."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from replay.search.space import MOST_QUEUES, HeuristicSpace, RawSpace, spread_of
from replay.search.workload import LogSource
from sia.console.errors import UserError
from sia.core.playout import Arrival
from sia.model import NEVER_STOPPED
from sia.policies.shared.elastic import size_of
from sia.policies.wfq.queues import limits_of
from tests.support.builders import job

sizes = st.lists(st.integers(1, 60).map(float), min_size=2, max_size=40).map(sorted)


@given(sizes)
def test_the_largest_spread_makes_one_queue(found):
    assert limits_of(found, spread_of(found)) == ()


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
        side: {size_of(*a) for n in range(5) for a in workload.sample(side, n, 200, 3).arrivals}
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


def test_a_log_of_a_few_jobs_is_refused():
    with pytest.raises(UserError, match="5 jobs"):
        LogSource(log_of(5), 8, 0)


def test_gangs_that_do_not_fit_are_left_out_and_jobs_that_never_stop_are_refused():
    wide = [replace(own, min_width=9, width=9) for own, _ in log_of(5)]
    found = LogSource([*log_of(50), *(Arrival(own, 5.0) for own in wide)], 8, 0)
    assert len(found.sizes) == 50
    never = replace(log_of(1)[0].job, preemptible=NEVER_STOPPED)
    with pytest.raises(UserError, match="1 job of the history must never be stopped"):
        LogSource([*log_of(50), Arrival(never, 5.0)], 8, 0)
