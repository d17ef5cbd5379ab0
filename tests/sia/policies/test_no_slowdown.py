"""The promise of the paper (Theorem 1): who knows the future lends without slowing anybody."""

from random import Random

import pytest
from msgspec.structs import replace

from predictors.perfect import PerfectRunTimes
from sia import Core
from sia.core.playout import play
from sia.explain.explain import explain
from sia.explain.obstacles import EarlyObstacle
from sia.policies.queues.mmfs import MaxMin
from sia.policies.sia.policy import Sia, SiaParams
from sia.policies.sia.recall import SiaRecall
from sia.policies.sia.reclaim import SiaReclaim
from sia.policies.sia.vc import SiaVc
from tests.support.budget import budget
from tests.support.builders import (
    SMALL,
    Workload,
    job,
    limited,
    play_out,
    pools,
    random_workload,
    starts,
    with_priorities,
    with_urgent_jobs,
)
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


class WithTurns(Sia):
    """SIA with the option `turns`."""

    def __init__(self, params=None):
        super().__init__(params or SiaParams(turns=True))


@pytest.mark.parametrize("policy", [Sia, WithTurns, SiaVc, SiaRecall, SiaReclaim])
def test_jobs_of_higher_priority_slow_no_job_either(policy):
    sped_up = 0
    for seed in range(ROUNDS):
        rng = Random(seed)
        owned, arrivals = random_workload(rng)
        arrivals = with_urgent_jobs(owned, with_priorities(rng, arrivals))
        priorities = {arrival.job.id: arrival.job.priority for arrival in arrivals}
        baseline = naive_policies.ranked_fcfs(*Workload(owned, arrivals).plain(), priorities)
        played = play_out(policy, owned, arrivals, checked=seed % 50 == 0)
        assert all(played[i].start <= baseline[i] for i in baseline), f"seed {seed}"
        sped_up += sum(played[i].start < baseline[i] for i in baseline)
    assert sped_up > ROUNDS


OVERTAKEN = [
    job("first").runs(10),
    job("ahead").runs(5),
    job("low").runs(160),
    job("owner").pool("b").at(6).runs(200),
    job("urgent").at(14).runs(10),
]
"""Alone `ahead` runs from 10 to 15, then `urgent`, then `low`. With b's GPU `ahead` runs at once.
So a's GPU is idle from 10 on, although the turn of `low` has not come."""


@pytest.mark.parametrize(("low", "later"), [(-1, 25), (0, 10)])
@pytest.mark.parametrize("policy", [Sia, WithTurns, SiaRecall, SiaReclaim])
def test_a_job_that_may_be_overtaken_starts_in_the_quota_at_its_turn_only(policy, low, later):
    story = [
        a._replace(job=replace(a.job, priority=low)) if a.job.id == "low" else a for a in OVERTAKEN
    ]
    played = starts(play_out(policy, pools(a=1, b=1), story, checked=True))
    urgent = 14 if low else 170
    assert played == {"first": 0, "ahead": 0, "owner": 6, "low": later, "urgent": urgent}


@pytest.mark.parametrize(("days", "later"), [(27, 15), (29, 10)])
@pytest.mark.parametrize("policy", [Sia, WithTurns, SiaRecall, SiaReclaim])
def test_nobody_waits_for_a_priority_that_was_not_asked_for_in_four_weeks(policy, days, later):
    once = job("once").runs(1)
    begin = days * 86400.0
    story = [once._replace(job=replace(once.job, priority=1))] + [
        a._replace(job=replace(a.job, submit=begin + a.job.submit)) for a in OVERTAKEN[:-1]
    ]
    played = starts(play_out(policy, pools(a=1, b=1), story, checked=True))
    assert played["ahead"] == begin
    assert played["low"] == begin + later


@pytest.mark.parametrize(
    ("policy", "later"), [(Sia, 30), (WithTurns, 50), (SiaRecall, 30), (SiaReclaim, 50)]
)
def test_an_old_priority_counts_until_the_next_job_is_submitted(policy, later):
    """Otherwise a core restored from a snapshot would start jobs that this one does not."""
    once = job("once").runs(1)
    begin = 28 * 86400.0 - 16.0  # the priority becomes four weeks old while `low` waits
    rest = [job("first").runs(10), job("ahead").runs(50), job("low").runs(160)]
    story = [once._replace(job=replace(once.job, priority=1))] + [
        a._replace(job=replace(a.job, submit=begin + a.job.submit)) for a in rest
    ]
    played = starts(play_out(policy, pools(a=1, b=1), story, checked=True))
    assert played["ahead"] == begin
    assert played["low"] == begin + 60

    more = job("more").runs(1)
    story.append(more._replace(job=replace(more.job, submit=begin + 30.0)))
    played = starts(play_out(policy, pools(a=1, b=1), story, checked=True))
    assert played["low"] == begin + later  # at 50 where `ahead` counts in its quota from 10 on


def test_a_job_that_must_wait_for_its_turn_says_so():
    core = Core(pools(a=1, b=1), Sia(), SMALL)
    story = [
        a._replace(job=replace(a.job, priority=-1)) if a.job.id == "low" else a for a in OVERTAKEN
    ]
    times = PerfectRunTimes({arrival.job.id: arrival.duration for arrival in story})
    for instant in play(core, story, run_times=times):
        if instant.now == 10:
            said = explain(core, core.state.jobs["low"])
            assert said.exact
            assert said.obstacles == (EarlyObstacle(0),)
            return
    raise AssertionError("nothing happened at 10")


@pytest.mark.parametrize("policy", [Sia, SiaVc])
def test_a_job_with_a_run_time_of_zero_is_not_slowed(policy):
    story = [
        job("runs").gpus(1).runs(10),
        job("instantaneous").gpus(2).runs(0),
        job("behind").gpus(1).runs(20),
    ]
    assert starts(play_out(policy, pools(a=2), story))["instantaneous"] == 10
