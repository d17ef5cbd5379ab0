"""The promise of the paper (Theorem 1): who knows the future lends without slowing anybody."""

from random import Random

import pytest

from sia.policies.queues.mmfs import MaxMin
from sia.policies.sia.policy import Sia
from sia.policies.sia.vc import SiaVc
from tests.support.budget import budget
from tests.support.builders import job, limited, play_out, pools, random_workload, starts
from tests.support.naive import naive_policies

ROUNDS = budget(ci=150, soak=2_500)


def against_the_baseline(policy, seed):
    """Seconds by which each job starts later than under FCFS without sharing."""
    workload = random_workload(Random(seed))
    baseline = naive_policies.fcfs(*workload.plain())
    played = play_out(policy, *workload)
    assert played.keys() == baseline.keys(), f"seed {seed}: not every job was started"
    return {job_id: played[job_id].start - baseline[job_id] for job_id in baseline}


@pytest.mark.parametrize("policy", [Sia, SiaVc])
def test_perfect_forecasts_slow_no_job_and_speed_up_many(policy):
    sped_up = 0
    for seed in range(ROUNDS):
        later = against_the_baseline(policy, seed)
        slowed = {job_id: seconds for job_id, seconds in later.items() if seconds > 0}
        assert not slowed, f"seed {seed}"
        sped_up += sum(seconds < 0 for seconds in later.values())
    assert sped_up > ROUNDS


@pytest.mark.parametrize("policy", [Sia, SiaVc])
def test_limits_on_loans_slow_no_job_either(policy):
    sped_up = 0
    for seed in range(ROUNDS // 3):
        rng = Random(seed)
        owned, arrivals = workload = random_workload(rng)
        baseline = naive_policies.fcfs(*workload.plain())
        played = play_out(policy, limited(rng, owned), arrivals, checked=seed % 50 == 0)
        assert all(played[i].start <= baseline[i] for i in baseline), f"seed {seed}"
        sped_up += sum(played[i].start < baseline[i] for i in baseline)
    assert sped_up > ROUNDS // 6


def test_max_min_slows_jobs_of_the_same_workloads():
    slowing = [seed for seed in range(100) if max(against_the_baseline(MaxMin, seed).values()) > 0]
    assert len(slowing) > 5


@pytest.mark.parametrize("policy", [Sia, SiaVc])
def test_a_job_with_a_run_time_of_zero_is_not_slowed(policy):
    story = [
        job("runs").gpus(1).runs(10),
        job("instantaneous").gpus(2).runs(0),
        job("behind").gpus(1).runs(20),
    ]
    assert starts(play_out(policy, pools(a=2), story))["instantaneous"] == 10
