"""The rivals agree with their naive models, and keep what each of them promises."""

from collections.abc import Sequence
from functools import partial
from itertools import permutations
from random import Random

import naive
import naive_rivals
import pytest
from builders import (
    SMALL,
    Workload,
    job,
    play_out,
    play_segments,
    pools,
    random_workload,
    starts,
)
from msgspec.structs import replace

from sia import Pool
from sia.earliest import Earliest
from sia.playout import Arrival
from sia.policies.easy import Easy
from sia.policies.emmfs import ElasticMaxMin
from sia.policies.fcfs import Fcfs
from sia.policies.hived import HiveD
from sia.policies.las import Las
from sia.policies.sjf import Sjf
from sia.policies.srsf import Srsf
from sia.policies.srtf import Srtf
from sia.policies.themis import Themis

ROUNDS = 500
CHECKED = 10
THRESHOLDS, PROMOTE = (32, 256), 3
LIVELY = replace(SMALL, las_thresholds=THRESHOLDS, las_promote=PROMOTE)
"""Queues that jobs of a few minutes go through."""


def halving_workload(rng: Random) -> Workload:
    """Widths that divide GPU-seconds without a rest: floats and fractions then tie alike."""
    workload = random_workload(rng)
    narrowed = [
        Arrival(replace(job, width=2 ** (job.width.bit_length() - 1)), duration)
        for job, duration in workload.arrivals
    ]
    return Workload(workload.pools, narrowed)


@pytest.mark.parametrize(
    ("policy", "model"),
    [
        (Sjf, naive_rivals.sjf),
        (Easy, naive_rivals.easy),
        (HiveD, naive_rivals.hived),
        (Themis, naive_rivals.themis),
    ],
)
def test_a_rival_starts_every_job_when_its_naive_model_does(policy, model):
    for seed in range(ROUNDS):
        workload = random_workload(Random(seed))
        played = play_out(policy, *workload, checked=seed % CHECKED == 0)
        assert starts(played) == model(*workload.plain()), f"seed {seed}"


@pytest.mark.parametrize("cost", [0, 3])
@pytest.mark.parametrize(
    ("policy", "model"),
    [
        (Srtf, naive_rivals.srtf),
        (Srsf, naive_rivals.srsf),
        (Las, partial(naive_rivals.las, thresholds=THRESHOLDS, promote=PROMOTE)),
    ],
)
def test_who_preempts_runs_every_job_when_its_naive_model_does(policy, model, cost):
    options = replace(LIVELY, resume_cost=float(cost))
    for seed in range(ROUNDS):
        workload = halving_workload(Random(seed))
        played = play_segments(policy, *workload, options=options, checked=seed % CHECKED == 0)
        expected = model(*workload.plain(), cost=cost)
        approximately(played, expected, f"seed {seed}")


def test_elastic_max_min_runs_every_job_as_if_gpus_were_dealt_one_by_one():
    for seed in range(ROUNDS):
        workload = random_workload(Random(seed))
        played = play_segments(ElasticMaxMin, *workload, checked=seed % CHECKED == 0)
        approximately(played, naive_rivals.emmfs(*workload.plain()), f"seed {seed}")


def approximately(played, expected, story):
    ours, theirs = naive_rivals.merged(played), naive_rivals.merged(expected)
    assert {j for j in ours if ours[j]} == {j for j in theirs if theirs[j]}, story
    for job_id, segments in ours.items():
        flat = [x for segment in segments for x in segment]
        wanted = [float(x) for segment in theirs[job_id] for x in segment]
        assert flat == pytest.approx(wanted, abs=1e-6), (story, job_id)
