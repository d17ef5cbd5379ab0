"""What the core lends, and what becomes of loans when quotas change."""

from random import Random

import pytest

from sia import Pool, Stream
from sia.decisions import MoveLoan, StartJob
from sia.events import JobFinished, PoolChanged
from sia.policies.queues.fcfs import Fcfs
from sia.policies.queues.mmfs import MaxMin
from tests.support.budget import budget
from tests.support.builders import job, play_out, pools, random_workload, starts
from tests.support.cores import (
    POLICIES,
    on_cue,
    photograph,
    playing,
    random_quotas,
    running,
    start_dedicated,
    start_spare,
)

# Loans


def test_a_spare_job_takes_gpus_of_its_own_pool_first_then_of_the_pool_with_most_idle():
    core = on_cue(job("j").gpus(13).pool("b").runs(9), a=3, b=4, c=5, d=3)
    loans = (("b", 4), ("c", 5), ("a", 3), ("d", 1))  # a before d by name
    assert start_spare(core, "j") == [StartJob("j", Stream.SPARE, "on cue", loans)]


def test_a_pool_gets_back_what_it_lent_when_others_are_idle_the_newest_loans_first():
    core = on_cue(
        job("old").gpus(3).pool("b").runs(9),
        job("new").gpus(2).pool("b").runs(9),
        job("owner").gpus(3).pool("a").runs(9),
        a=4,
        b=1,
        c=3,
    )
    start_spare(core, "old")  # of b 1, of a 2
    core.step(1.0, [PoolChanged(1.0, "c", 1)])
    start_spare(core, "new")  # of a 2
    core.step(2.0, [PoolChanged(2.0, "c", 3)])
    assert start_dedicated(core, "owner") == [
        MoveLoan("new", "a", "c", 2),
        MoveLoan("old", "a", "c", 1),
        StartJob("owner", Stream.DEDICATED, "on cue"),
    ]
    lent = {pool.name: pool.lent for pool in core.state.pools.values()}
    assert lent == {"a": 1, "b": 1, "c": 3}


def test_a_job_that_ends_gives_back_what_it_borrowed():
    core = on_cue(job("j").gpus(5).pool("a").runs(9), a=3, b=4)
    idle = photograph(on_cue(a=3, b=4))[3:]
    start_spare(core, "j")
    core.step(9.0, [JobFinished(9.0, "j")])
    core.check()
    assert photograph(core)[3:] == idle


def test_a_loan_moves_during_a_playout():
    story = [
        job("short").gpus(2).pool("c").at(0).runs(3),
        job("full").gpus(2).pool("b").at(0).runs(50),
        job("borrower").gpus(2).pool("b").at(1).runs(5),
        job("owner").gpus(3).pool("a").at(4).runs(50),
    ]
    played = play_out(MaxMin, pools(a=3, b=2, c=2), story, checked=True)
    assert played["borrower"].loans == [(1, {"a": 2}), (4, {"c": 2})]


def test_a_loan_does_not_move_to_a_job_that_ends_at_the_same_instant():
    owned = [Pool("a", 8), Pool("b", 8)]
    story = [
        job("z").pool("b").gpus(4).at(0).runs(100),
        job("pre").pool("b").gpus(4).at(0).runs(10_000),
        job("y").pool("b").gpus(4).at(1).runs(200),
        job("x").pool("b").gpus(4).at(1).runs(99),
        job("late").pool("a").gpus(1).at(5000).runs(10),
    ]
    play_out(MaxMin, owned, story, quotas=[PoolChanged(50.0, "a", 0)], checked=True)


# Quotas that change


def test_when_a_pool_shrinks_below_its_loans_others_take_them_over():
    core = on_cue(job("j").gpus(3).pool("a").runs(9), a=0, b=4, c=3)
    start_spare(core, "j")
    decisions = core.step(1.0, [PoolChanged(1.0, "b", 1)])
    core.check()
    assert decisions == [MoveLoan("j", "b", "c", 2)]


def test_when_a_pool_shrinks_below_its_loans_and_no_gpu_is_idle_it_waits_for_an_end():
    core = on_cue(
        job("spare").gpus(3).pool("a").runs(9), job("busy").gpus(3).pool("c").runs(5), a=0, b=4, c=3
    )
    start_spare(core, "spare")
    start_dedicated(core, "busy")
    assert core.step(1.0, [PoolChanged(1.0, "b", 1)]) == []
    core.check()
    assert core.step(5.0, [JobFinished(5.0, "busy")]) == [MoveLoan("spare", "b", "c", 2)]
    core.check()


def test_a_pool_that_shrinks_below_its_running_jobs_starts_none_until_enough_have_ended():
    story = [job("one").gpus(2).runs(10), job("two").gpus(2).runs(20), job("next").runs(5)]
    shrunk = [PoolChanged(1.0, "a", 2)]
    played = play_out(Fcfs, pools(a=4), story, quotas=shrunk, checked=True)
    assert starts(played) == {"one": 0, "two": 0, "next": 20}


def test_a_pool_that_grows_starts_its_pending_jobs():
    story = [job("one").gpus(2).runs(10), job("two").gpus(2).runs(20)]
    played = play_out(Fcfs, pools(a=2), story, quotas=[PoolChanged(3.0, "a", 4)], checked=True)
    assert starts(played) == {"one": 0, "two": 3}


@pytest.mark.parametrize("policy", POLICIES)
def test_quotas_change_and_no_running_job_is_touched(policy):
    for seed in range(budget(ci=30, soak=500)):
        rng = Random(seed)
        workload = random_workload(rng)
        quotas = random_quotas(rng, *workload)
        core, instants = playing(policy, *workload, quotas)
        ran = {}
        for instant in instants:
            core.check()
            for event in instant.events:
                if isinstance(event, JobFinished):
                    del ran[event.job_id]
            runs = running(core)
            assert ran.items() <= runs.items(), f"seed {seed} at {instant.now}"
            ran = runs
        assert not core.state.jobs, f"seed {seed}: not every job has run"
