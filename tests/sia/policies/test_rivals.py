"""The rivals agree with their naive models, and keep what each of them promises."""

from functools import cache, partial
from math import inf
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from msgspec.structs import replace

from predictors.perfect import PerfectRunTimes
from sia import Core, Stream
from sia.contract.proposals import Start
from sia.core.playout import Arrival, play
from sia.decisions import StartJob
from sia.events import PoolChanged
from sia.policies.preemptive.emmfs import ElasticMaxMin
from sia.policies.preemptive.las import Las, LasParams
from sia.policies.preemptive.srsf import Srsf
from sia.policies.preemptive.srtf import Srtf
from sia.policies.queues.easy import Easy
from sia.policies.queues.fcfs import Fcfs
from sia.policies.queues.hived import HiveD
from sia.policies.queues.sjf import Sjf
from sia.policies.queues.themis import Themis
from sia.policies.shared.earliest import Earliest
from sia.policies.shared.ranked import Ranked
from tests.support.budget import budget
from tests.support.builders import (
    SMALL,
    Workload,
    job,
    play_out,
    play_segments,
    pools,
    random_workload,
    starts,
)
from tests.support.naive import naive_rivals

ROUNDS = budget(ci=36, soak=500)
CHECKED = 10
THRESHOLDS, PROMOTE = (32, 256), 3
LIVELY = LasParams(THRESHOLDS, PROMOTE)
"""Queues that jobs of a few minutes go through."""


def lively(policy):
    """The policy, with such queues if it is LAS."""
    return partial(policy, LIVELY) if issubclass(policy, Las) else policy


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
def test_preemptive_policies_match_their_naive_models(policy, model, cost):
    options = replace(SMALL, resume_cost=float(cost))
    for seed in range(ROUNDS):
        workload = halving_workload(Random(seed))
        played = play_segments(
            lively(policy), *workload, options=options, checked=seed % CHECKED == 0
        )
        expected = model(*workload.plain(), cost=cost)
        approximately(played, expected, f"seed {seed}")


def test_elastic_max_min_gives_the_widths_that_dealing_gpus_one_by_one_gives():
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


def head_promises(owned, arrivals):
    """When each job could have started at the latest, told at the moment it became the head."""
    core = Core(owned, Easy(), SMALL)
    durations = {arrival.job.id: arrival.duration for arrival in arrivals}
    promised: dict[str, float] = {}
    begun: dict[str, float] = {}
    for now, _, decisions in play(core, arrivals, run_times=PerfectRunTimes(durations)):
        begun |= {d.job_id: now for d in decisions if isinstance(d, StartJob)}
        for pool in core.state.pools.values():
            head = pool.head
            if head is not None and head.job.id not in promised:
                promised[head.job.id] = earliest_start(core, pool, head.width)
    return promised, begun


def earliest_start(core, pool, width):
    """When the jobs of a pool that run now will have left so many GPUs, if none starts."""
    running = [j for j in core.state.jobs.values() if j.pool is pool and j.stream is not None]
    free = pool.quota - sum(r.width for r in running)
    for end, gpus in sorted((r.end(r.run_time), r.width) for r in running):
        free += gpus
        if free >= width:
            return end
    raise AssertionError("the head never fits")


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.integers(0, 10**9))
def test_easy_never_delays_the_head_of_a_queue(seed):
    promised, begun = head_promises(*random_workload(Random(seed)))
    assert {j: begun[j] for j in promised if begun[j] > promised[j]} == {}


def test_the_test_detects_backfilling_that_delays_the_first_job():
    class Greedy(Easy):
        def _promise(self, pool, head, free, now):
            return float("inf"), free

    story = [
        job("runs").gpus(3).runs(10),
        job("head").gpus(4).at(1).runs(5),
        job("long").gpus(1).at(2).runs(100),
    ]
    fair, greedy = (starts(play_out(policy, pools(a=4), story)) for policy in (Easy, Greedy))
    assert (fair["head"], fair["long"]) == (10, 15)
    assert (greedy["head"], greedy["long"]) == (102, 2)


def best_mean_jct(jobs):
    """Of all orders of work in whole seconds on one GPU, by trying every one."""

    @cache
    def total(now: int, left: tuple[int, ...]) -> float:
        if not any(left):
            return 0.0
        ready = [i for i, seconds in enumerate(left) if seconds and jobs[i][0] <= now]
        best = total(now + 1, left) if len(ready) < sum(map(bool, left)) else inf
        for i in ready:
            after = (*left[:i], left[i] - 1, *left[i + 1 :])
            ended = now + 1 - jobs[i][0] if left[i] == 1 else 0
            best = min(best, ended + total(now + 1, after))
        return best

    return total(0, tuple(duration for _, duration in jobs)) / len(jobs)


def test_srtf_has_the_least_mean_jct_on_one_gpu():
    for seed in range(budget(ci=20, soak=300)):
        rng = Random(seed)
        jobs = sorted((rng.randint(0, 6), rng.randint(1, 5)) for _ in range(rng.randint(1, 5)))
        story = [job(f"j{i}").at(at).runs(runs) for i, (at, runs) in enumerate(jobs)]
        played = play_segments(Srtf, pools(a=1), story)
        mean = sum(played[a.job.id][-1][1] - a.job.submit for a in story) / len(story)
        assert mean == pytest.approx(best_mean_jct(tuple(jobs))), f"seed {seed}"


class Impatient(Srtf):
    """Forgets what a job has done."""

    def waiting_rank(self, job):
        return job.run_time


class NeverDemotes(Las):
    def _expect_demotion(self, job):
        pass


class NeverPromotes(Las):
    def submitted(self, job):
        life = self._lives.get(job.job.id)
        if life is None:
            super().submitted(job)
        else:
            Ranked.submitted(self, job)


@pytest.mark.parametrize(
    ("faulty", "model"),
    [
        (Impatient, naive_rivals.srtf),
        (Srtf, naive_rivals.srsf),
        (NeverDemotes, partial(naive_rivals.las, thresholds=THRESHOLDS, promote=PROMOTE)),
        (NeverPromotes, partial(naive_rivals.las, thresholds=THRESHOLDS, promote=PROMOTE)),
    ],
)
def test_a_naive_model_catches_a_planted_fault_in_preemption(faulty, model):
    caught = 0
    for seed in range(budget(ci=60, soak=1000)):
        workload = halving_workload(Random(seed))
        played = naive_rivals.merged(play_segments(lively(faulty), *workload))
        expected = naive_rivals.merged(model(*workload.plain()))
        caught += any(played.get(job_id, []) != own for job_id, own in expected.items())
    assert caught


class BackfillsAnything(Easy):
    @staticmethod
    def _promise(running, head, free, now):  # noqa: ARG004
        return float("inf"), free


class LongestFirst(Sjf):
    def rank(self, job):
        return -job.run_time, job.sequence, job.job.id


class KeepsToItself(HiveD):
    shares = False

    def _serve(self, group):
        for start in super()._serve(group):
            if start.stream is Stream.SPARE:
                return
            yield start


class ForgetsWhoWaited(Themis):
    def submitted(self, job):
        super().submitted(job)
        claim = self._own[job.job.id]
        self._claims[job.pool.group].remove(claim)
        self._own[job.job.id] = claim._replace(alone=1.0)
        self._claims[job.pool.group].add(self._own[job.job.id])


@pytest.mark.parametrize(
    ("faulty", "model"),
    [
        (BackfillsAnything, naive_rivals.easy),
        (Fcfs, naive_rivals.easy),
        (LongestFirst, naive_rivals.sjf),
        (KeepsToItself, naive_rivals.hived),
        (ForgetsWhoWaited, naive_rivals.themis),
    ],
)
def test_a_naive_model_catches_a_planted_fault(faulty, model):
    workloads = [random_workload(Random(seed)) for seed in range(50)]
    assert any(starts(play_out(faulty, *w)) != model(*w.plain()) for w in workloads)


def test_elastic_jobs_share_a_pool_evenly_and_shrink_for_new_jobs():
    story = [
        job("first").gpus(4).runs(100),
        job("second").gpus(4).at(50).runs(100),
    ]
    played = play_segments(ElasticMaxMin, pools(a=4), story)
    assert played["first"] == [(0, 50, 4), (50, 150, 2)]
    assert played["second"] == [(50, 150, 2), (150, 200, 4)]


def test_pools_share_by_quota_however_many_jobs_they_have():
    story = [job(f"a{i}").gpus(6).runs(60) for i in range(3)]
    story.append(job("b").gpus(6).pool("b").at(30).runs(60))
    played = play_segments(ElasticMaxMin, pools(a=6, b=3), story)
    assert played["a0"][0] == (0, 30, 3)
    assert played["b"][0][2] == 3
    assert [played[f"a{i}"][1][2] for i in range(3)] == [2, 2, 2]


def test_in_las_a_job_that_waits_long_is_promoted():
    las = partial(Las, LasParams((10.0,), 2.0))
    story = [job("old").runs(30)] + [job(f"new{i}").at(10 + 9 * i).runs(9) for i in range(6)]
    played = play_segments(las, pools(a=1), story)
    assert played["old"][:2] == [(0, 10, 1), (37, 47, 1)]  # it waited twice the 10 s that it ran


def test_a_resume_costs_time_in_which_no_work_is_done():
    options = replace(SMALL, resume_cost=7.0)
    story = [job("long").runs(100), job("short").at(10).runs(5)]
    played = play_segments(Srtf, pools(a=1), story, options=options)
    assert played == {"short": [(10, 15, 1)], "long": [(0, 10, 1), (15, 112, 1)]}


@pytest.mark.parametrize("policy", [Srtf, Srsf, Las, ElasticMaxMin, Easy, HiveD, Themis, Sjf])
def test_policies_keep_their_invariants_when_a_pool_changes_its_size(policy):
    for seed in range(budget(ci=90, soak=1500)):
        rng = Random(seed)
        workload = random_workload(rng)
        changes = [
            PoolChanged(float(rng.randint(0, 200)), pool.name, rng.randint(0, 12))
            for pool in workload.pools
        ]
        changes += [PoolChanged(1000.0, pool.name, 12) for pool in workload.pools]
        changes.sort(key=lambda change: change.time)
        played = play_segments(policy, *workload, quotas=changes, checked=seed % 5 == 0)
        ran = {a.job.id for a in workload.arrivals if a.duration}
        assert played.keys() == ran, f"seed {seed}"


def test_an_elastic_job_narrows_where_its_pool_has_lost_gpus():
    story = [
        job("j0").pool("b").gpus(3).at(1).runs(10),
        job("j2").pool("b").gpus(5).at(2).runs(20),
        job("j1").pool("b").gpus(6).at(2).runs(20),
    ]
    played = play_segments(
        ElasticMaxMin, pools(a=3, b=2), story, quotas=[PoolChanged(7.0, "a", 1)], checked=True
    )
    assert played.keys() == {"j0", "j1", "j2"}


def test_no_job_is_stopped_for_one_that_does_not_fit_into_a_shrunken_pool():
    story = [job("j1").pool("b").at(1).runs(10), job("j0").pool("b").gpus(2).at(6).runs(1)]
    changes = [PoolChanged(1.0, "b", 0), PoolChanged(500.0, "b", 2)]
    owned = pools(a=1, b=1)
    played = play_segments(Srtf, owned, story, quotas=changes, checked=True)
    assert played["j1"] == [(1, 11, 1)]  # on the GPU of a, which j0 cannot do with
    assert played["j0"][0][0] >= 500


class CutShort(ElasticMaxMin):
    """Proposes what does not fit, once, before anything else at 10."""

    def propose(self, now, changes):
        if now == 10.0:
            yield Start(next(iter(self.state.jobs.values())), Stream.DEDICATED, "again")
        yield from super().propose(now, changes)


def test_after_a_refusal_elastic_max_min_starts_the_next_job():
    story = [job("runs").runs(30)] + [job(f"j{i}").at(10).runs(5) for i in range(3)]
    core = Core(pools(a=4), CutShort(), SMALL)
    begun = {}
    for now, _, decisions in play(core, story):
        begun |= {d.job_id: now for d in decisions if isinstance(d, StartJob)}
    assert begun == {"runs": 0, "j0": 10, "j1": 10, "j2": 10}  # the pass goes on


def test_easy_reserves_from_now_on_for_a_first_job_whose_estimated_start_has_passed():
    """`late` should have ended at 10; until it does, only who fits beside the head goes ahead."""
    story = [
        job("late").gpus(3).runs(50),
        job("head").gpus(3).at(1).runs(10),
        job("short").gpus(2).at(20).runs(5),
        job("beside").gpus(1).at(21).runs(100),
    ]
    core = Core(pools(a=4), Easy(), SMALL)
    estimates = PerfectRunTimes({"late": 10.0, "head": 10.0, "short": 5.0, "beside": 100.0})
    begun = {}
    for now, _, decisions in play(core, story, run_times=estimates):
        begun |= {d.job_id: now for d in decisions if isinstance(d, StartJob)}
    assert begun == {"late": 0, "beside": 21, "head": 50, "short": 60}


def streams(policy, story, **quotas):
    return {i: started.stream for i, started in play_out(policy, pools(**quotas), story).items()}


def test_hived_starts_a_job_as_dedicated_if_its_pool_has_quota_for_it():
    story = [
        job("full").gpus(4).pool("b").runs(50),
        job("guest").gpus(2).pool("b").at(1).runs(50),
        job("head").gpus(3).pool("a").at(2).runs(5),
        job("narrow").gpus(1).pool("a").at(3).runs(5),
    ]
    found = streams(HiveD, story, a=4, b=4)
    assert found == {
        "full": "dedicated",
        "guest": "spare",
        "head": "dedicated",
        "narrow": "dedicated",
    }


def elastic_workload(rng):
    """Some jobs say how far their width may change."""
    workload = random_workload(rng)
    arrivals = [
        Arrival(
            replace(
                j,
                min_width=rng.randint(0, j.width),
                max_width=rng.choice([0, j.width, 2 * j.width]),
            ),
            d,
        )
        for j, d in workload.arrivals
    ]
    return Workload(workload.pools, arrivals)


@pytest.mark.parametrize("cost", [0.0, 4.0])
def test_elastic_jobs_stay_within_their_widths_and_do_all_their_work(cost):
    for seed in range(budget(ci=60, soak=1000)):
        rng = Random(seed)
        workload = elastic_workload(rng)
        played = play_segments(
            ElasticMaxMin,
            *workload,
            options=replace(SMALL, resume_cost=cost),
            checked=seed % 5 == 0,
        )
        for elastic, duration in workload.arrivals:
            own = played.get(elastic.id, [])
            least, most = elastic.min_width or 1, elastic.max_width or elastic.width
            assert all(least <= width <= most for *_, width in own), f"seed {seed}"
            work = costs = 0.0
            for number, (start, end, width) in enumerate(own):
                lost = min(cost, end - start) if number else 0.0
                costs += lost
                work += (end - start - lost) * width
            assert work == pytest.approx(duration * elastic.width), f"seed {seed}, {elastic.id}"


def test_a_naive_model_catches_planted_faults_in_elastic_max_min(monkeypatch):
    caught = dict.fromkeys(("level", "share"), 0)
    for seed in range(budget(ci=18, soak=300)):
        workload = random_workload(Random(seed))
        expected = naive_rivals.merged(naive_rivals.emmfs(*workload.plain()))
        with monkeypatch.context() as patch:
            patch.setattr("sia.policies.preemptive.emmfs._Line._level", lambda *_: 1)
            played = naive_rivals.merged(play_segments(ElasticMaxMin, *workload))
            caught["level"] += any(played.get(i, []) != own for i, own in expected.items())
        with monkeypatch.context() as patch:
            patch.setattr("sia.policies.preemptive.emmfs._deal_rest", deal_by_name)
            played = naive_rivals.merged(play_segments(ElasticMaxMin, *workload))
            caught["share"] += any(played.get(i, []) != own for i, own in expected.items())
    assert all(caught.values()), caught


def deal_by_name(owners, gpus, quota, shares):
    """Gives the first pool all that it has quota for, and so on."""
    for pool in sorted(owners, key=lambda pool: pool.name):
        shares[pool] = min(gpus, pool.quota)
        gpus -= shares[pool]


class EarliestAgainstAList(RuleBasedStateMachine):
    """The tree finds what a walk through a list would."""

    def __init__(self):
        super().__init__()
        self.tree, self.items, self.next = Earliest(), {}, 0

    @rule(value=st.floats(0, 100))
    def add(self, value):
        self.next += 1
        self.tree.add(self.next, value)
        self.items[self.next] = value

    @rule(value=st.floats(0, 100), place=st.integers(-5, 80))
    def add_out_of_order(self, value, place):
        if place not in self.items:
            self.next = max(self.next, place)
            self.tree.add(place, value)
            self.items[place] = value

    @precondition(lambda self: self.items)
    @rule(data=st.data())
    def remove(self, data):
        sequence = data.draw(st.sampled_from(sorted(self.items)))
        self.tree.remove(sequence)
        del self.items[sequence]

    @rule(limit=st.floats(0, 100) | st.just(inf))
    def first(self, limit):
        found = [sequence for sequence, value in self.items.items() if value <= limit]
        assert self.tree.first(limit) == (min(found) if found else None)

    @invariant()
    def holds(self):
        self.tree.check()
        assert len(self.tree) == len(self.items)


TestEarliest = EarliestAgainstAList.TestCase
TestEarliest.settings = settings(
    max_examples=budget(ci=15, soak=100), stateful_step_count=80, derandomize=True
)
