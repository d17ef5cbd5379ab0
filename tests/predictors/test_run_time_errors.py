"""Run times with an error of a given size, and those that users state."""

from statistics import mean, pstdev

import pytest

from predictors.catalog import Choice, check_durations, parse, run_times_by, run_times_class
from sia.forecasts import PredictorContext
from sia.limits import UNKNOWN_RUN_TIME
from sia.model import Job

JOBS = [Job(f"j{i}", "a", float(i), 1) for i in range(4000)]


def factors(durations, seed=0, jobs=JOBS):
    """Return each job's estimate over its true run time of 100 seconds."""
    choice = parse("srtf", Choice("", "none", durations))
    context = PredictorContext((60.0,), seed=seed, log=[(job, 100.0) for job in jobs])
    run_times = run_times_by(choice, context)
    return {job.id: run_times.run_time(job) / 100.0 for job in jobs}


def test_within_draws_every_error_up_to_the_percentage_alike():
    found = factors("within:20").values()
    assert 0.8 <= min(found) < 0.81
    assert 1.19 < max(found) <= 1.2
    assert mean(found) == pytest.approx(1.0, abs=0.01)
    assert pstdev(found) == pytest.approx(0.2 / 3**0.5, rel=0.03)


def test_biased_adds_the_percentage_to_every_job():
    assert set(factors("biased:-50").values()) == {0.5}
    assert set(factors("biased:100").values()) == {2.0}


def test_noisy_is_normal_between_half_and_twice():
    found = factors("noisy:40").values()
    assert min(found) == 0.5
    assert max(found) == 2.0
    assert sorted(found)[len(found) // 2] == pytest.approx(1.0, abs=0.03)
    inside = sum(0.6 < factor < 1.4 for factor in found) / len(found)
    assert inside == pytest.approx(0.683, abs=0.02)


@pytest.mark.parametrize("durations", ["within:0", "biased:0", "noisy:0"])
def test_an_error_of_zero_leaves_run_times_true(durations):
    assert set(factors(durations).values()) == {1.0}


@pytest.mark.parametrize("durations", ["within:20", "noisy:40"])
def test_an_error_depends_on_the_seed_and_the_job_alone(durations):
    whole, other = factors(durations, seed=1), factors(durations, seed=2)
    some = factors(durations, seed=1, jobs=JOBS[100:50:-1])
    assert some == {job_id: whole[job_id] for job_id in some}
    assert whole != other


def test_stated_believes_the_user_and_expects_the_worst_otherwise():
    run_times = run_times_class("stated").build(PredictorContext((60.0,)))
    assert run_times.run_time(Job("j", "a", 0.0, 1, estimate=7.0)) == 7.0
    assert run_times.run_time(Job("k", "a", 0.0, 1)) == UNKNOWN_RUN_TIME


@pytest.mark.parametrize("durations", ["perfect", "stated", "within:20", "biased:-50", "noisy:40"])
def test_names_with_and_without_a_percentage(durations):
    check_durations(durations)
