"""No promise is broken where estimates are true: random loads, costs, steps and options."""

from random import Random

import pytest

from replay.deadlines.rewards import GUARANTEED, LOST
from replay.logs.trace import PoolTable, Trace
from replay.run.run import Settings, replay_one
from sia.core.playout import Arrival
from sia.model import Job, Options, Pool
from sia.state.steps import PAPER_STEPS
from tests.support.budget import budget

ROUNDS = budget(ci=12, soak=1000)


def drawn(rng, pools, jobs=40):
    """A load of jobs, most of which compete for deadlines."""
    arrivals, now = [], 0.0
    for number in range(jobs):
        now += rng.choice([0.0, 60.0, 500.0, rng.uniform(0, 2000)])
        pool = rng.choice(pools)
        width = min(pool.quota, rng.choice([1, 1, 2, 3, 4, 5, 8, 12]))
        duration = rng.choice([100.0, 1200.0, 2400.0, rng.uniform(10, 9000)])
        deadline = None
        if rng.random() < 0.7:
            deadline = now + duration * rng.uniform(0.9, 4) + rng.choice([0.0, 2400.0])
        soft = rng.choice([(), (), PAPER_STEPS, ((1.0, 90.0), (2.0, 10.0))])
        cost = rng.choice([None, None, None, 0.0, 30.0, 200.0, "restart", "never"])
        user = rng.choice(["", "ann", "bob"])
        job = Job(f"j{number}", pool.name, now, width, user, deadline=deadline, soft=soft,
                  preemptible=cost)  # fmt: skip
        arrivals.append(Arrival(job, duration))
    return Trace(arrivals)


def options(rng):
    """A label with options that Chronus may have."""
    lease, be = rng.choice([(1200, 300), (600, 300), (900, 900), (1000, 250)])
    flags = [flag for flag in (":fill", ":roundup=no", ":patience=3600") if rng.random() < 0.5]
    trials = rng.choice(["0", "0", "300:floor=8", "200:capacity=8", "100:capacity=16:user=8"])
    return f"chronus:lease={lease}:be={be}:profile={trials}{''.join(flags)}"


def replayed(label, trace, pools, **settings):
    chosen = Settings([label], **settings)
    return replay_one(trace, PoolTable(pools), label, chosen, None)


@pytest.mark.parametrize("seed", range(ROUNDS))
def test_no_guaranteed_job_misses_its_last_step_with_true_estimates(seed):
    rng = Random(seed)
    pools = [Pool(f"p{i}", rng.choice([4, 8, 10, 16, 24])) for i in range(rng.randint(1, 2))]
    trace = drawn(rng, pools)
    cost = rng.choice([0.0, 0.0, 45.0])
    schedule = replayed(options(rng), trace, pools, options=Options(resume_cost=cost))
    labels = {job_id: promised.label for job_id, promised in schedule.promises.items()}
    assert LOST not in labels.values()
    for (job, _), end in zip(trace.arrivals, schedule.ends, strict=True):
        assert end is not None or job.width > sum(pool.quota for pool in pools) - 32, job
        if labels.get(job.id) == GUARANTEED:
            assert job.step_met(end) is not None, (job, end, schedule.promises[job.id])


def test_an_estimate_that_is_up_as_a_cycle_begins_keeps_no_gpus_from_other_promises():
    """The first job runs longer than it says; its one lease more would break the second promise."""
    pools = [Pool("p", 8)]
    long = Job("long", "p", 0.0, 8, deadline=1300.0, estimate=1200.0)
    due = Job("due", "p", 0.0, 8, deadline=2400.0, estimate=1100.0)
    trace = Trace([Arrival(long, 1500.0), Arrival(due, 1100.0)])
    schedule = replayed("chronus:profile=0", trace, pools, durations="stated")
    assert schedule.promises["long"].label == LOST
    assert schedule.promises["due"] == (GUARANTEED, 2300.0)
    assert schedule.ends == [2700.0, 2300.0]
