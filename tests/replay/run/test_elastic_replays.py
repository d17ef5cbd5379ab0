"""Replays of wfq and its rivals, with predictions, beside a naive replay of the same rules."""

from random import Random

import pytest

from predictors.run_time_errors import NoisyRunTimes, WithinRunTimes
from replay.logs.trace import PoolTable, Trace, playable
from replay.run.run import Settings, replay_all
from sia import Job, Options, Pool
from sia.core.playout import Arrival
from tests.sia.policies.test_wfq import elastic
from tests.support.naive import naive_pcs
from tests.support.naive.naive_pcs import NaiveJob, NaivePool

LEASE = 20.0

POLICIES = {
    "elastic-fifo": (naive_pcs.fifo, None),
    "elastic-srtf": (naive_pcs.srtf, None),
    "elastic-srsf": (naive_pcs.srsf, None),
    "afs": (naive_pcs.afs, None),
    f"themis-lease:lease={LEASE:g}": (naive_pcs.themis, LEASE),
    "wfq:weights=1:zeta=0": (naive_pcs.wfq((), (1,), 0.0, 0.1), None),
    "wfq:sizes=150+400:weights=1+3+2:zeta=0.6:delta=0.2": (
        naive_pcs.wfq((150.0, 400.0), (1, 3, 2), 0.6, 0.2),
        None,
    ),
}


def log(rng):
    """Jobs of any kind, in bursts and with pauses; some are submitted together."""
    arrivals, now = [], 0.0
    for i in range(rng.randint(4, 14)):
        now += rng.choice([0.0, rng.expovariate(1 / 20), rng.expovariate(1 / 200)])
        arrivals.append(Arrival(elastic(rng, f"j{i}", now), rng.uniform(1, 150)))
    return arrivals


def estimates_of(durations, arrivals):
    run_times = {job.id: duration for job, duration in arrivals}
    if durations == "perfect":
        return run_times
    kind = {"within:20": WithinRunTimes, "noisy:40": NoisyRunTimes}[durations]
    wrong = kind(run_times, float(durations.partition(":")[2]) / 100)
    return {job.id: wrong.run_time(job) for job, _ in arrivals}


@pytest.mark.parametrize("seed", range(24))
def test_ends_and_predictions_are_those_of_a_naive_replay(seed):
    rng = Random(seed)
    gpus, cost = rng.choice([3, 5, 8]), rng.choice([0.0, 5.0])
    durations = rng.choice(["perfect", "within:20", "noisy:40"])
    table = PoolTable([Pool("a", gpus)])
    trace = playable(Trace(log(rng)), table, narrow=True)
    settings = Settings([*POLICIES], options=Options(resume_cost=cost), durations=durations)
    believed = estimates_of(durations, trace.arrivals)
    for label, result in zip(POLICIES, replay_all(trace, table, settings), strict=True):
        deal, lease = POLICIES[label]
        pool = NaivePool(gpus, deal, cost, lease)
        jobs = [NaiveJob(job, duration, believed[job.id]) for job, duration in trace.arrivals]
        told, ends = pool.replay(jobs)
        names = [job.id for job, _ in trace.arrivals]
        assert result.schedule.ends == pytest.approx([ends[name] for name in names]), label
        assert result.schedule.predictions == pytest.approx([told[name] for name in names]), label


def test_leases_that_end_while_nobody_is_there_are_seen_by_nobody():
    """Two jobs that come together divide a pool alike, however long it was idle before."""
    table = PoolTable([Pool("a", 2)])

    def widths(idle):
        jobs = [("first", 0.0, 2, 5.0), ("x", 5.0 + idle, 2, 30.0), ("y", 5.0 + idle, 1, 30.0)]
        trace = Trace([Arrival(Job(name, "a", at, gpus), run) for name, at, gpus, run in jobs])
        settings = Settings(["themis-lease:lease=1"])
        ends = replay_all(trace, table, settings)[0].schedule.ends
        return [end - idle for end in ends[1:] if end is not None]

    assert widths(100_000.0) == pytest.approx(widths(1.0))
