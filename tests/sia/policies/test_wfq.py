"""Policy wfq: its queues, their shares, and the GPUs of each job."""

from itertools import pairwise
from math import exp, inf
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictors.perfect import PerfectRunTimes
from sia import Core, Job, Pool
from sia.core.playout import Arrival, play
from sia.events import JobFinished
from sia.explain.glance import jobs_ahead
from sia.model import NEVER_STOPPED, RESTART, Options
from sia.policies import make
from sia.policies.shared.elastic import least_width, most_width, size_of
from sia.policies.wfq.caps import cap
from sia.policies.wfq.policy import Wfq
from sia.policies.wfq.queues import limits_of, queue_of, weights_of
from sia.policies.wfq.shares import dealt, max_min, rounded
from tests.support.budget import budget
from tests.support.naive.naive_elastic import naive_wfq

POINTS = ((1, 100.0), (2, 60.0), (3, 55.0), (4, 30.0), (5, 29.0), (8, 25.0))
"""Efficiencies 1, .83, .61, .83, .69 and .5: the table dips at three GPUs."""


def variation(sizes):
    mean = sum(sizes) / len(sizes)
    return sum((size - mean) ** 2 for size in sizes) / len(sizes) / mean**2


def test_a_new_queue_begins_where_the_next_size_would_vary_too_much():
    assert limits_of([1.0, 3.0], 0.25) == ()
    assert limits_of([1.0, 3.0], 0.24) == (1.0,)
    assert limits_of([1.0, 1.1, 1.2, 10.0, 11.0, 100.0], 0.1) == (1.2, 11.0)
    assert limits_of([5.0] * 9, 0.001) == ()
    assert limits_of([], 1.0) == ()


@given(
    st.lists(st.integers(1, 60), min_size=1, max_size=60),
    st.sampled_from([0.01, 0.1, 0.5, 2.0]),
)
def test_sizes_of_a_queue_vary_little_and_would_vary_too_much_with_the_next(sizes, most):
    limits = limits_of([float(size) for size in sizes], most)
    assert list(limits) == sorted(set(limits))
    queues = [
        [size for size in sizes if queue_of(limits, size) == i] for i in range(len(limits) + 1)
    ]
    for queue in queues:
        assert variation(queue) <= most + 1e-9
    for queue, following in pairwise(queues):
        following_size = min(following)
        joined = [*queue, *(size for size in following if size == following_size)]
        assert variation(joined) > most - 1e-9


def test_a_limit_belongs_to_the_queue_below_it():
    assert [queue_of((10.0, 20.0), size) for size in (9, 10, 11, 20, 21)] == [0, 0, 1, 1, 2]


def test_weights_fall_with_the_queue_and_sum_up_to_one():
    found = weights_of(3, 1.0)
    assert sum(found) == pytest.approx(1)
    assert found[0] / found[1] == pytest.approx(exp(1))
    assert weights_of(4, 0.0) == (0.25,) * 4
    assert weights_of(3, -1.0) == pytest.approx(found[::-1])
    assert min(weights_of(200, 10.0)) > 0 < min(weights_of(200, -10.0))


def test_shares_follow_weights_and_what_queues_can_use():
    assert max_min((2, 1, 1), (100, 100, 100), 8) == [4, 2, 2]
    assert max_min((2, 1, 1), (1, 100, 100), 8) == [1, 3.5, 3.5]
    assert max_min((2, 1, 1), (1, 2, 3), 8) == [1, 2, 3]
    assert max_min((1, 1), (0, 0), 8) == [0, 0]


def test_shares_are_rounded_by_largest_remainder_and_ties_go_to_smaller_jobs():
    assert rounded([3.5, 1.75, 1.75]) == [3, 2, 2]
    assert rounded([0.5, 0.5]) == [1, 0]
    assert rounded([8 / 3] * 3) == [3, 3, 2]
    assert rounded([2 * 0.3 / 0.4, 2 * 0.1 / 0.4]) == [2, 0]


@given(
    st.lists(st.tuples(st.floats(0.01, 9), st.integers(0, 30)), min_size=1, max_size=6),
    st.integers(1, 40),
)
def test_whole_shares_are_near_the_fluid_ones_and_use_up_the_gpus(queues, gpus):
    weights, use = zip(*queues, strict=True)
    fluid, whole = max_min(weights, use, gpus), dealt(weights, use, gpus, 0, 0)
    assert sum(whole) == min(gpus, sum(use))
    for share, real, most in zip(whole, fluid, use, strict=True):
        assert abs(share - real) < 1
        assert share <= most


def test_a_share_can_be_raised_to_the_least_width_of_the_oldest_job():
    assert dealt((99, 1), (50, 50), 8, first=1, least=1) == [7, 1]
    assert dealt((99, 1), (50, 50), 8, first=1, least=8) == [0, 8]
    assert dealt((1, 1), (50, 50), 8, first=1, least=3) == [4, 4]


def test_the_cap_is_the_widest_efficient_width_even_if_the_speed_table_dips():
    job = Job("j", "a", 0.0, 8, min_width=1, max_width=8, demand=POINTS)
    assert [cap(job, level) for level in (1.0, 0.8, 0.65, 0.5, 0.1, 0.0, -1.0)] == [
        1, 4, 5, 8, 8, 8, 8,
    ]  # fmt: skip
    linear = Job("j", "a", 0.0, 3, max_width=7)
    assert [cap(linear, level) for level in (1.0, 0.5, 0.0)] == [7, 7, 7]
    sparse = Job("j", "a", 0.0, 1, max_width=100, demand=((1, 100.0), (100, 2.0)))
    efficiency = [sparse.speed(k) / k for k in range(1, 101)]
    for level in (0.9, 0.7, 0.51, 0.5):
        assert cap(sparse, level) == max(k for k in range(1, 101) if efficiency[k - 1] >= level)


def test_jobs_that_cannot_change_width_have_one():
    for cost in (RESTART, NEVER_STOPPED):
        fixed = Job("j", "a", 0.0, 4, min_width=1, max_width=8, preemptible=cost)
        assert (least_width(fixed), most_width(fixed), cap(fixed, 0.5)) == (4, 4, 4)
    assert size_of(Job("j", "a", 0.0, 4), 10.0) == 40.0
    gang = Job("j", "a", 0.0, 4, min_width=4, demand=((4, 10.0),))
    assert size_of(gang, 10.0) == 40.0


WRONG = {
    "wfq:T=0": "T must be above 0",
    "wfq:W=11": "W must be -10 to 10",
    "wfq:zeta=1.5": "zeta must be 0 to 1",
    "wfq:delta=0": "delta must be 0.001 to 1",
    "wfq:sizes=5+3": "sizes must ascend",
    "wfq:sizes=5+5": "sizes must ascend",
    "wfq:sizes=0+5": "sizes must ascend",
    "wfq:sizes=5:weights=1+0": "weights must be above 0",
    "wfq:sizes=5+6:weights=1+2": "weights must be as many as queues, 3",
    "wfq:T=0.2:sizes=5": "T=0.2 determines queues, but sizes gives them; leave one out",
    "wfq:T=1:weights=1": "T=1 determines queues, but weights gives them",
    "wfq:W=1:sizes=5:weights=2+1": "W=1 determines weights, but weights gives them",
}


@pytest.mark.parametrize("label", WRONG)
def test_options_out_of_range_are_refused(label):
    with pytest.raises(ValueError, match=WRONG[label]):
        make(label)


def test_queues_are_made_of_sizes_unless_they_are_given():
    made = make("wfq:T=0.1:W=0").expecting([1.0, 10.0, 100.0])
    assert (made.params.sizes, made.params.weights) == ((1.0, 10.0), (1 / 3,) * 3)
    given_queues = make("wfq:sizes=5:weights=2+1")
    assert given_queues.expecting([1.0, 10.0]).params == given_queues.params
    assert given_queues.expecting([], 4).params.sizes == (20.0,)
    assert make("wfq:T=5").expecting([]).params.weights == (1.0,)


def test_a_daemon_says_that_it_has_no_log_to_make_queues_of():
    assert "begins with one queue" in make("wfq:T=0.1:W=0").unlike_live
    assert make("wfq:sizes=5:weights=2+1").unlike_live == ""
    assert make("wfq:weights=1").unlike_live == ""


def elastic(rng, job_id, submit):
    """Any kind of job: rigid, elastic, with a demand, costly to stop."""
    width = rng.randint(1, 5)
    least = rng.choice([0, 1, width])
    most = rng.choice([0, width, width + 3])
    demand = ()
    if rng.random() < 0.5:
        seconds, points = rng.uniform(50, 100), []
        for gpus in range(1, 9):
            points.append((gpus, seconds))
            seconds *= rng.uniform(0.5, 1.0)
        demand = tuple(points)
    cost = rng.choice([None, None, None, 3.0, RESTART])
    return Job(job_id, "a", submit, width, min_width=least, max_width=most, demand=demand,
               preemptible=cost)  # fmt: skip


def story(rng, jobs=12):
    now, found = 0.0, []
    for i in range(jobs):
        now += rng.choice([0.0, 0.0, rng.uniform(0, 20)])
        found.append(Arrival(elastic(rng, f"j{i}", now), rng.uniform(1, 60)))
    return found


def played(policy, arrivals, gpus=8, options=None):
    """Return the end of each job; the core checks itself at each instant."""
    core = Core([Pool("a", gpus)], policy, options or Options())
    run_times = PerfectRunTimes({a.job.id: a.duration for a in arrivals})
    ends = {}
    for instant in play(core, arrivals, run_times=run_times):
        core.check()
        for event in instant.events:
            if type(event) is JobFinished:
                ends[event.job_id] = instant.now
        yield core, ends


def ends_of(policy, arrivals, **more):
    """Return the end of each job, after all have ended."""
    return [ends for _, ends in played(policy, arrivals, **more)][-1]


def labels(rng):
    return Wfq(
        make(
            rng.choice(
                [
                    "wfq:sizes=40+120:weights=4+2+1:zeta=0.8:delta=0.2",
                    "wfq:sizes=60:weights=1+3:zeta=0",
                    "wfq:sizes=60:weights=1+1:zeta=1:delta=0.5",
                    "wfq:weights=1:zeta=0.7",
                    "wfq:sizes=40+120:weights=90+5+1:zeta=0.5",
                ]
            )
        ).params
    )


def test_widths_are_those_of_the_naive_model():
    for seed in range(budget(ci=12, soak=200)):
        rng = Random(seed)
        policy, arrivals = labels(rng), story(rng)
        own = policy.params
        for core, _ in played(policy, arrivals, options=Options(resume_cost=2.0)):
            jobs = sorted(core.state.jobs.values(), key=lambda job: job.sequence)
            plain = [(job.job, size_of(job.job, job.run_time)) for job in jobs]
            expected = naive_wfq(
                plain, 8, own.sizes, own.weights, own.zeta, own.delta, core.state.now
            )
            found = {j.job.id: j.width for j in jobs if j.stream is not None}
            assert found == expected, f"seed {seed} at {core.state.now}"


def test_every_job_runs_however_many_come_later():
    """A gang as wide as the pool in a queue of little weight, and a stream of small jobs."""
    gang = Arrival(Job("gang", "a", 1.0, 8, min_width=8), 10.0)
    elastic_one = Arrival(Job("wide", "a", 2.0, 8), 10.0)
    stream = [Arrival(Job(f"s{i}", "a", float(i), 4), 4.0) for i in range(300)]
    arrivals = sorted([gang, elastic_one, *stream], key=lambda a: a.job.submit)
    policy = make("wfq:sizes=20:weights=19+1:zeta=0.5")
    ends = ends_of(policy, arrivals)
    assert ends["gang"] < 20
    assert ends["wide"] == 282.0  # its turn is after 80 / 0.4 s; then it has one GPU
    assert max(ends.values()) > 600


def test_of_two_halves_of_a_gpu_smaller_jobs_have_the_gpu_until_the_other_half_is_owed():
    """The long job waits for 20 s, which half a GPU takes for it, and then runs to its end."""
    long = Arrival(Job("long", "a", 0.0, 1), 10.0)
    small = [Arrival(Job(f"s{i}", "a", 1.0 + i, 1), 3.0) for i in range(40)]
    ends = ends_of(make("wfq:sizes=5:weights=1+1"), [long, *small], gpus=1)
    assert ends["s0"] == 4.0
    assert ends["long"] == 29.0  # 1 s before the first small job came, and 9 s from 20 on
    assert ends["s5"] == 19.0
    assert ends["s6"] == 31.0  # 1 s before 20


@pytest.mark.parametrize("weights", ["3+1", "1+1", "1+7"])
def test_later_jobs_do_not_delay_one_beyond_its_share(weights):
    """With whole shares: a job does at least what its queue's share, rounded down, would do."""
    first, second = map(int, weights.split("+"))
    share = int(8 * second / (first + second))
    for seed in range(budget(ci=2, soak=50)):
        rng = Random(seed)
        long = [Arrival(Job(f"l{i}", "a", 0.0, 8), rng.uniform(20, 40)) for i in range(3)]
        small = [
            Arrival(Job(f"s{i}", "a", i * rng.uniform(0.2, 0.6) + 0.01, 8), rng.uniform(0.5, 1.2))
            for i in range(400)
        ]
        arrivals = sorted([*long, *small], key=lambda a: a.job.submit)
        ends = ends_of(make(f"wfq:sizes=15:weights={weights}:zeta=0"), arrivals)
        work = 0.0
        for arrival in long:
            work += arrival.duration * 8
            assert ends[arrival.job.id] <= work / share + 1e-6


def test_only_jobs_of_its_own_queue_are_ahead_of_a_job():
    long = [Arrival(Job(f"long-{i}", "a", 0.0, 8), 100.0) for i in range(3)]
    short = [Arrival(Job(f"short-{i}", "a", 1.0, 8), 1.0) for i in range(3)]
    for core, _ in played(make("wfq:sizes=50:weights=1+1:zeta=0"), [*long, *short]):
        if core.state.now == 1.0:
            ahead = {
                job.job.id: [each.job.id for each in jobs_ahead(core.policy, job)]
                for job in core.state.jobs.values()
                if job.stream is None
            }
    assert ahead == {
        "long-1": [], "long-2": ["long-1"], "short-1": [], "short-2": ["short-1"],
    }  # fmt: skip


def test_a_job_that_must_not_be_stopped_keeps_its_gpus():
    never = Arrival(Job("never", "a", 0.0, 6, preemptible=NEVER_STOPPED), 100.0)
    others = [Arrival(Job(f"o{i}", "a", 1.0 + i, 8), 5.0) for i in range(4)]
    ends = ends_of(make("wfq:sizes=50:weights=9+1"), [never, *others])
    assert ends["never"] == 100.0
    assert max(ends.values()) < inf
