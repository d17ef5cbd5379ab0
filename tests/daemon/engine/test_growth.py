"""What a submission costs with many pending jobs, in calls of functions: a time is no fact."""

import sys

import pytest

from daemon.engine.engine import Engine
from daemon.model.inputs import Submit
from daemon.model.job import JobSpec
from daemon.model.setup import Setup
from predictors.run_times.survival import SurvivalRunTimes
from sia.model import Job, Options, Pool

POOLS = 10
FEW, MANY = 500, 10_000
DAY = 86400.0


def engine_with(pending, policy):
    """An engine whose pools have one job that runs and many that wait, in steps of 500."""
    engine = Engine.new(Setup(tuple(Pool(f"p{i}", 8) for i in range(POOLS)), policy))
    for first in range(0, pending, 500):
        some = [Submit(spec(f"j{i}", i), DAY) for i in range(first, first + 500)]
        engine.step(1e9 + first, some)
    return engine


def spec(name, number):
    return JobSpec(name, f"p{number % POOLS}", 5 + number % 4, user=f"u{number % 97}")


def calls_of(work):
    """How many functions are called by this work, those written in C included."""
    count = 0

    def look(_, event, __):
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(look)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def submission(policy, pending):
    """The calls of twenty submissions, one after the other."""
    engine = engine_with(pending, policy)
    now = 1e9 + MANY
    engine.step(now, [])
    new = [Submit(spec(f"new{i}", i), DAY) for i in range(20)]
    return calls_of(lambda: [engine.step(now + i, [job]) for i, job in enumerate(new)])


@pytest.mark.parametrize("policy", ["sia", "fcfs"])
def test_a_submission_costs_the_same_however_many_jobs_are_pending(policy):
    assert submission(policy, MANY) <= 1.1 * submission(policy, FEW)


def estimates(pending):
    """The calls of twenty estimates of run times."""
    survival = SurvivalRunTimes(Options().windows)
    jobs = [
        Job(f"j{i}", f"p{i % POOLS}", float(i), 4, f"u{i % 7}", "train")
        for i in range(pending + 20)
    ]
    for job in jobs[:pending]:
        survival.run_time(job)
    return calls_of(lambda: [survival.run_time(job) for job in jobs[pending:]])


def test_an_estimate_of_a_run_time_costs_the_same_however_many_jobs_are_pending():
    assert estimates(MANY) <= 1.1 * estimates(FEW)
