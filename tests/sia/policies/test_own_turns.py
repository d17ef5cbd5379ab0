"""`sia:turns`: a guest counts within its own pool's quota from its turn on."""

from random import Random

import pytest
from msgspec.structs import replace

from predictors.perfect import PerfectLoads, PerfectRunTimes
from predictors.random_forecast import RandomRunTimes
from sia import Core, Job
from sia.contract.labels import params_of
from sia.core.playout import play
from sia.core.snapshot import decode, dump, encode, plain_params, restore
from sia.decisions import DedicateJob, StartJob
from sia.events import JobFinished, JobSubmitted, TimePassed
from sia.explain.glance import glance
from sia.explain.obstacles import GuestObstacle
from sia.model import Stream
from sia.policies.sia.policy import Sia, SiaParams
from sia.policies.sia.reclaim import SiaReclaim
from sia.virtual import turns as clocks
from tests.support.budget import budget
from tests.support.builders import SMALL, job, play_out, pools, random_workload
from tests.support.naive import naive_policies

ROUNDS = budget(ci=24, soak=600)


class Turning(Sia):
    """SIA with the option set."""

    def __init__(self, params=None):
        super().__init__(params or SiaParams(turns=True))


def test_the_option_is_written_in_the_label():
    assert params_of("sia:turns", SiaParams) == SiaParams(turns=True)


def test_no_guest_runs_on_a_loan_after_its_turn_while_its_quota_has_room():
    dedicated = 0
    for seed in range(ROUNDS):
        owned, arrivals = random_workload(Random(seed))
        core = Core(owned, Turning(), SMALL)
        turns = naive_policies.fcfs(*random_workload(Random(seed)).plain())
        for instant in play(
            core,
            arrivals,
            run_times=RandomRunTimes(SMALL.windows, seed),
            loads=PerfectLoads([arrival.job for arrival in arrivals], SMALL.windows),
        ):
            core.policy.check()
            dedicated += sum(type(d) is DedicateJob for d in instant.decisions)
            for running in core.state.jobs.values():
                late = turns.get(running.job.id, float("inf")) < instant.now
                if running.stream is Stream.SPARE and late:
                    pool = running.pool
                    assert pool.dedicated + running.width > pool.quota, f"seed {seed}"
    assert dedicated


def test_a_guest_that_outlasts_its_window_gives_its_loan_back_at_its_turn():
    """The guest of b is expected to end at once; its turn comes at 10, when the first job ends."""
    arrivals = [
        job("first").pool("b").at(0).runs(10),
        job("guest").pool("b").at(0).runs(400),
        job("behind").pool("b").at(0).runs(50),
        job("owner").pool("a").at(12).runs(5),
    ]
    expected = {"first": 200.0, "guest": 4.0, "behind": 200.0, "owner": 200.0}
    starts = {}
    for turns in (False, True):
        core = Core(pools(a=1, b=1), Sia(SiaParams(turns=turns)), SMALL)
        for instant in play(
            core,
            arrivals,
            run_times=PerfectRunTimes(expected),
            loads=PerfectLoads([], SMALL.windows),
        ):
            for decision in instant.decisions:
                if type(decision) is StartJob:
                    starts[decision.job_id, turns] = instant.now
    assert starts["guest", False] == starts["guest", True] == 0
    assert starts["behind", False] == 10  # in its quota, while the guest keeps the GPU of a
    assert starts["owner", False] == 60
    assert starts["owner", True] == 12
    assert starts["behind", True] == 400  # as late as alone would be 410


def test_a_job_that_waits_for_a_guest_whose_turn_has_come_says_so():
    """At 10 `guest` has its turn in b, which has one of its two GPUs left for it."""
    arrivals = [
        job("first").pool("b").at(0).runs(10),
        job("guest").gpus(2).pool("b").at(0).runs(400),
        job("behind").pool("b").at(0).runs(50),
        job("next").pool("b").at(12).runs(50),
    ]
    expected = {"first": 200.0, "guest": 4.0, "behind": 200.0, "next": 200.0}
    core = Core(pools(a=2, b=2), Sia(SiaParams(turns=True)), SMALL)
    for instant in play(
        core,
        arrivals,
        run_times=PerfectRunTimes(expected),
        loads=PerfectLoads([], SMALL.windows),
    ):
        if instant.now == 12:
            (way, _) = glance(core.policy, core.state.jobs["next"]).ways
            assert way.obstacles == (GuestObstacle(1, 2, "guest"),)
            return
    raise AssertionError("nothing happened at 12")


def test_after_a_change_of_the_policy_pending_jobs_have_their_turns_still_to_come():
    """`guest` is pending at the change, and borrows later. Its turn comes when `first` ends."""
    core = Core(pools(a=1, b=2), Sia(), SMALL)
    for name, pool, width in (("first", "a", 1), ("own", "b", 2), ("guest", "a", 1)):
        story = job(name).pool(pool).gpus(width).runs(9)
        core.step(0.0, [JobSubmitted(0.0, story.job, 100.0)])
    old, new = dump(core, forgets=True), Turning()
    empty = Core(pools(a=1, b=2), Turning(), SMALL)
    core = restore(
        replace(old, params=plain_params(new), policy="Turning", memory=empty.policy.memory()), new
    )
    core.check()
    decisions = core.step(1.0, [JobFinished(1.0, "own")])
    assert [(d.job_id, d.stream) for d in decisions if type(d) is StartJob] == [
        ("guest", Stream.SPARE)
    ]
    assert not any(type(d) is DedicateJob for d in core.step(2.0, [TimePassed(2.0)]))
    core.check()
    later = core.step(50.0, [JobFinished(50.0, "first")])
    assert [d.job_id for d in later if type(d) is DedicateJob] == ["guest"]


@pytest.mark.parametrize("policy", [Turning(), SiaReclaim(), Sia()])
def test_a_pool_that_always_uses_more_than_its_quota_is_remembered_in_bounded_memory(
    policy, monkeypatch
):
    """With one GPU a runs three jobs of 15 s every 20 s: alone it falls behind more and more."""
    monkeypatch.setattr(clocks, "MOST_OVER", 20)
    core, running, sizes = Core(pools(a=1, b=3), policy, SMALL), [], []
    for step in range(300):
        now = 20.0 * step
        jobs = [Job(f"{step}.{i}", "a", now, 1, priority=int(step == i == 0)) for i in range(3)]
        decisions = core.step(
            now,
            [JobFinished(now, job_id) for job_id in running]
            + [JobSubmitted(now, job, 15.0) for job in jobs],
        )
        running = [each.job_id for each in decisions if isinstance(each, StartJob)]
        assert len(running) == 3
        sizes.append(len(encode(dump(core))))
        core.check()
    assert sizes[-1] < 1.1 * sizes[30]
    kept = restore(decode(encode(dump(core))), type(policy)(policy.params))
    assert dump(kept) == dump(core)


def test_a_clock_without_some_ended_jobs_gives_no_job_its_turn_later(monkeypatch):
    """All jobs start as guests when they are submitted, one each second, and run for a while."""
    sooner = 0
    for seed in range(ROUNDS):
        rng = Random(seed)
        jobs = [(rng.randint(1, 4), rng.choice([1, 5, 10, 40])) for _ in range(200)]
        came = {}
        for most in (10_000, 3):
            monkeypatch.setattr(clocks, "MOST_OVER", most)
            clock, came[most] = clocks.TurnClock(4), {}
            for now, (width, _) in enumerate(jobs):
                for number, (_, ran) in enumerate(jobs[:now]):
                    if number + ran == now:
                        clock.ended(float(now), number, float(ran))
                clock.submitted(now, now, width, float(now))
                came[most] |= dict.fromkeys(clock.advance(float(now)), now)
                clock.check()
        assert all(came[3][number] <= at for number, at in came[10_000].items()), seed
        sooner += came[3] != came[10_000]
    assert sooner > ROUNDS / 2


@pytest.mark.parametrize(("highest", "start"), [(0, 3000), (1, 9002)])
def test_a_long_job_that_may_be_overtaken_waits_for_its_turn_in_an_idle_cluster(highest, start):
    """A hundred guests of 90 s would run until 9002 alone; with GPUs of b they end at 92."""
    once = job("once").runs(1)
    once = once._replace(job=replace(once.job, priority=highest))
    guests = [job(f"guest {i}").at(2).runs(90) for i in range(100)]
    story = [once, *guests, job("low").at(3000).runs(2000)]
    played = play_out(Sia, pools(a=1, b=100), story)
    assert max(played[each.job.id].start for each in guests) == 2
    assert played["low"].start == start
