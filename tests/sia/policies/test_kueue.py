"""`kueue-strict` and `kueue-best-effort`: borrow what is idle, reclaim it at a submission."""

import pytest
from msgspec.structs import replace

from predictors.perfect import PerfectRunTimes
from sia import Core
from sia.core.playout import play
from sia.core.snapshot import dump, restore
from sia.decisions import PreemptJob, StartJob
from sia.model import NEVER_STOPPED, RESTART
from sia.policies import make
from tests.support.builders import SMALL, job, pools

BOTH = ["kueue-strict", "kueue-best-effort"]


def story(label, *jobs, **quotas):
    """Return (time, decision, job) of starts and stops; each state can be restored."""
    core, seen = Core(pools(**quotas), make(label), SMALL), []
    run_times = PerfectRunTimes({each.job.id: each.duration for each in jobs})
    for now, _, decisions in play(core, jobs, run_times=run_times):
        core.check()
        data = dump(core)
        assert dump(restore(data, make(label))) == data
        for each in decisions:
            if isinstance(each, StartJob):
                seen.append((now, each.stream.value, each.job_id))
            elif isinstance(each, PreemptJob):
                seen.append((now, "stop", each.job_id))
    return seen


def stoppable(arrival, cost=RESTART):
    return arrival._replace(job=replace(arrival.job, preemptible=cost))


@pytest.mark.parametrize("label", BOTH)
def test_the_owner_stops_the_newest_borrowers_at_once(label):
    seen = story(
        label,
        stoppable(job("own").pool("a").runs(100)),
        stoppable(job("old").pool("a").runs(100)),
        stoppable(job("new").pool("a").at(5).runs(100)),
        job("owner").pool("b").at(10).runs(20),
        a=1, b=2,
    )  # fmt: skip
    assert seen[:5] == [
        (0.0, "dedicated", "own"), (0.0, "spare", "old"), (5.0, "spare", "new"),
        (10.0, "stop", "new"), (10.0, "dedicated", "owner"),
    ]  # fmt: skip
    assert seen[5:] == [(30.0, "spare", "new")]


@pytest.mark.parametrize("label", BOTH)
def test_the_owner_waits_for_a_job_that_must_not_be_stopped(label):
    seen = story(
        label,
        stoppable(job("own").pool("a").runs(100), NEVER_STOPPED),
        stoppable(job("never").pool("a").runs(50), NEVER_STOPPED),
        job("owner").pool("b").at(10).runs(20),
        a=1, b=1,
    )  # fmt: skip
    assert seen[2:] == [(50.0, "dedicated", "owner")]


@pytest.mark.parametrize(("label", "starts"), [(BOTH[0], 100.0), (BOTH[1], 1.0)])
def test_jobs_overtake_a_wide_job_only_with_best_effort(label, starts):
    seen = story(
        label,
        job("own").pool("a").gpus(2).runs(100),
        job("wide").pool("a").gpus(3).runs(10),
        job("narrow").pool("a").at(1).runs(5),
        a=3,
    )  # fmt: skip
    assert next(now for now, _, name in seen if name == "narrow") >= starts
    assert (1.0, "dedicated", "narrow") in seen or label == "kueue-strict"


def test_with_strict_queues_a_pool_alone_is_first_come_first_served():
    jobs = [job(f"j{i}").pool("a").at(i).gpus(1 + i % 3).runs(10 + i) for i in range(12)]
    starts = {
        label: {name: now for now, _, name in story(label, *jobs, a=3)}
        for label in ("kueue-strict", "fcfs")
    }
    assert starts["kueue-strict"] == starts["fcfs"]
