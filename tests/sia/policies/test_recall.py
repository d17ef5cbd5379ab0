"""SIA with recall, without cells, runs and stops every job when its naive model does."""

from fractions import Fraction
from functools import partial
from math import inf
from random import Random
from typing import NamedTuple

import pytest
from msgspec.structs import replace

from predictors.perfect import PerfectLoads, PerfectRunTimes
from sia import Core, Options
from sia.core.playout import Arrival, play
from sia.decisions import PreemptJob, ProposalRefused, StartJob
from sia.events import JobFinished
from sia.limits import RECALL, SLOWED
from sia.model import RESTART
from sia.policies.sia import recall
from sia.policies.sia.policy import Sia
from sia.policies.sia.recall import RecallParams, SiaRecall
from tests.sia.policies.test_policies import choices, random_choices
from tests.support.budget import budget
from tests.support.builders import SMALL, Workload, job, pools, random_workload
from tests.support.naive.naive_policies import fcfs
from tests.support.naive.naive_recall import sia_recall as literally

ROUNDS = budget(ci=15, soak=300)
SAFE = budget(ci=90, soak=2_500)
FAULTY = 450  # stories at most; most faults show in the first few
CHECKED = 10
COSTS = (0.0, 0.5, 1.0, 5.0)
"""At a recall of a tenth the first two are within every window of `SMALL`, each other one within
one window less."""

SETS = (COSTS, COSTS, (RESTART,), (*COSTS, RESTART, RESTART))
"""What stops cost the jobs of a story."""

LONGER = (0, 100, 300)
"""Seconds: with most of them a job outlasts every window of `SMALL`, and its owner comes back."""


class Played(NamedTuple):
    segments: dict[str, list[tuple[float, float, int]]]
    stops: int


def preemptible(arrival, cost, longer=0):
    return Arrival(replace(arrival.job, preemptible=cost), arrival.duration + longer)


def recall_workload(rng: Random) -> Workload:
    """Some of the jobs may be stopped, and many of these outlast every window."""
    workload = random_workload(rng)
    part = rng.choice([0.3, 0.6, 1.0])
    costs = rng.choice([*SETS, (rng.choice(COSTS),)])
    marked = [
        preemptible(arrival, rng.choice(costs), rng.choice(LONGER))
        if rng.random() < part
        else arrival
        for arrival in workload.arrivals
    ]
    return Workload(workload.pools, marked)


def ran(policy, workload, options=SMALL, *, checked=False) -> Played:
    """All segments of each job, also those of no length, loads and run times being foreseen."""
    core = Core(workload.pools, policy(), options)
    durations = {arrival.job.id: arrival.duration for arrival in workload.arrivals}
    loads = PerfectLoads([arrival.job for arrival in workload.arrivals], options.windows)
    widths = {arrival.job.id: arrival.job.width for arrival in workload.arrivals}
    segments = {job_id: [] for job_id in widths}
    since, stops = {}, 0
    for now, events, decisions in play(
        core, workload.arrivals, run_times=PerfectRunTimes(durations), loads=loads
    ):
        for said in [*events, *decisions]:
            assert not isinstance(said, ProposalRefused), said
            if isinstance(said, JobFinished | PreemptJob):
                segments[said.job_id].append((since.pop(said.job_id), now, widths[said.job_id]))
                stops += isinstance(said, PreemptJob)
            elif isinstance(said, StartJob):
                assert said.job_id not in since, f"{said.job_id} runs already"
                since[said.job_id] = now
        if checked:
            core.check()
    core.check()
    assert not since
    return Played(segments, stops)


def modelled(workload, options=SMALL, recall=RECALL):
    """The same by the naive model."""
    costs = {
        arrival.job.id: None if cost == RESTART else Fraction(cost)
        for arrival in workload.arrivals
        if (cost := arrival.job.preemptible) is not None
    }
    chosen = choices(options, "perfect")
    return literally(*workload.plain(), costs, chosen, Fraction(str(recall)))


def test_recall_runs_every_job_when_its_naive_model_does():
    stopped = 0
    for seed in range(ROUNDS):
        workload = recall_workload(Random(seed))
        played = ran(SiaRecall, workload, checked=seed % CHECKED == 0)
        assert played.segments == modelled(workload), f"seed {seed}"
        stopped += played.stops > 0
    assert stopped > ROUNDS / 15, "jobs are stopped in many of the stories"


def test_with_perfect_forecasts_recall_slows_no_job_and_speeds_up_many():
    stopped = sped_up = 0
    for seed in range(SAFE):
        workload = recall_workload(Random(seed))
        alone = fcfs(*workload.plain())
        played = ran(SiaRecall, workload)
        stopped += played.stops > 0
        for arrival in workload.arrivals:
            job_id = arrival.job.id
            earlier = alone[job_id] + arrival.duration - played.segments[job_id][-1][1]
            assert earlier > -SLOWED, f"seed {seed}, job {job_id}: {-earlier} s late"
            sped_up += earlier > SLOWED
    assert stopped > SAFE / 15
    assert sped_up > SAFE


def options_of(rng: Random, workload: Workload) -> tuple[Options, float]:
    """Draw options of the core, and the policy's own."""
    return random_choices(rng, workload.pools), rng.choice([0.0, 0.02, 0.1, 0.5])


def test_recall_with_operator_settings_decides_as_its_naive_model():
    stopped = 0
    for seed in range(ROUNDS):
        rng = Random(seed)
        workload = recall_workload(rng)
        options, recall = options_of(rng, workload)
        policy = partial(SiaRecall, RecallParams(recall))
        played = ran(policy, workload, options, checked=seed % CHECKED == 0)
        assert played.segments == modelled(workload, options, recall), f"seed {seed}"
        stopped += played.stops > 0
    assert stopped > ROUNDS / 15, "jobs are stopped in many of the stories"


class ForgetsWhatItGetsBack(SiaRecall):
    """Holds back as much as if nobody could be stopped."""

    def _usable(self, group, window):
        return Sia._usable(self, group, window)


class CountsOnDearOnesToo(SiaRecall):
    """Takes what is dear to stop to be back within every window."""

    def _count(self, own, job, first, gpus):
        super()._count(own, job, 0, gpus)


class ForgetsThatWorkGrows(SiaRecall):
    """Counts on jobs that lose all their work as on those that lose nothing."""

    def _grown(self, job, window):
        return inf


class TakesThemForLong(SiaRecall):
    """Starts nobody for being cheap to stop."""

    def bin(self, job):
        return Sia.bin(self, job)


class MakesUpForLocked(SiaRecall):
    """Lends in the place of what could be had back what must not be lent."""

    def _reserve(self, pool):
        super()._reserve(pool)
        self._stoppable[pool.group].locked = [0] * len(self._windows)
        self._locked[pool] = [0] * len(self._windows)


class StopsTheNeedless(SiaRecall):
    """Stops narrow ones though a wide one after them would do alone."""

    def _cheapest(self, jobs, missing):
        chosen = []
        for found in sorted(jobs, key=lambda job: recall._price_of(job, self.state.now)):
            if missing > 0:
                chosen.append(found)
                missing -= found.width
        return chosen


class HelpsNobody(SiaRecall):
    """Lends on the strength of what it never asks back."""

    def _heads_to_help(self, group):
        return []


def is_caught(policy, options_of_story=lambda *_: (SMALL, RECALL), first=0):
    """Look for a story in which a fault shows, from the first seed on: rare faults show late."""
    for seed in range(first, first + FAULTY):
        rng = Random(seed)
        workload = recall_workload(rng)
        options, recall = options_of_story(rng, workload)
        made = partial(policy, RecallParams(recall))
        if ran(made, workload, options).segments != modelled(workload, options, recall):
            return True
    return False


@pytest.mark.parametrize(
    "faulty",
    [
        ForgetsWhatItGetsBack,
        CountsOnDearOnesToo,
        ForgetsThatWorkGrows,
        TakesThemForLong,
        StopsTheNeedless,
        HelpsNobody,
    ],
)
def test_the_naive_model_catches_a_planted_fault(faulty):
    assert is_caught(faulty)


def test_the_naive_model_catches_stops_for_gpus_that_must_not_be_lent():
    assert is_caught(MakesUpForLocked, options_of, first=70)


@pytest.mark.parametrize(
    ("wrong", "first"),
    [
        pytest.param(lambda cost, width, age: (-cost, width, age), 20, id="dearest"),
        pytest.param(lambda cost, width, age: (cost, -width, age), 100, id="widest"),
        pytest.param(lambda cost, width, age: (cost, width, -age), 0, id="oldest"),
    ],
)
def test_the_naive_model_catches_a_wrong_order_of_stops(wrong, first, monkeypatch):
    right = recall._price_of
    monkeypatch.setattr(recall, "_price_of", lambda job, now: wrong(*right(job, now)))
    assert is_caught(SiaRecall, first=first)


def test_the_naive_model_catches_equal_costs_of_all_restarts(monkeypatch):
    right = recall._lost
    monkeypatch.setattr(
        recall, "_lost", lambda job, now: 1.0 if job.job.preemptible == RESTART else right(job, now)
    )
    assert is_caught(SiaRecall, first=70)


def test_a_head_waits_if_a_limit_keeps_some_of_the_jobs_that_would_have_to_stop():
    """One of two guests may be stopped within the hour, and the owner needs the GPUs of both."""
    guests = [preemptible(job(f"guest{i}").pool("a").runs(500), 0.0) for i in range(2)]
    story = [
        job("own").pool("a").runs(900),
        *guests,
        job("owner").gpus(2).pool("b").at(10).runs(5),
    ]
    core = Core(pools(a=1, b=2), SiaRecall(), replace(SMALL, stops_per_hour=1))
    times = PerfectRunTimes({arrival.job.id: arrival.duration for arrival in story})
    said = [(now, d) for now, _, decisions in play(core, story, run_times=times) for d in decisions]
    assert not any(isinstance(decision, ProposalRefused) for _, decision in said)
    assert [(now, d.job_id) for now, d in said if isinstance(d, PreemptJob)] == [(10.0, "guest1")]
    starts = [now for now, d in said if isinstance(d, StartJob) and d.job_id == "owner"]
    assert starts == [500.0]
