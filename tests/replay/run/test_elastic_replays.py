"""Replays of wfq and its rivals, with predictions, beside a naive replay of the same rules."""

from random import Random

import pytest
from msgspec.structs import replace

from predictors.run_time_errors import BiasedRunTimes, NoisyRunTimes, WithinRunTimes
from replay.logs.trace import PoolTable, Trace, playable
from replay.run.parts import in_parts
from replay.run.run import Settings, replay_all
from sia import Job, Options, Pool
from sia.core.playout import Arrival
from tests.sia.policies.test_wfq import elastic
from tests.support.naive import naive_pcs
from tests.support.naive.naive_pcs import NaiveJob, NaivePool

LEASE = 20.0

POLICIES = {
    "elastic-fifo": lambda _: (naive_pcs.fifo, None),
    "elastic-srtf": lambda _: (naive_pcs.srtf, None),
    "elastic-srsf": lambda _: (naive_pcs.srsf, None),
    "afs": lambda _: (naive_pcs.afs, None),
    f"themis-lease:lease={LEASE:g}": lambda _: (naive_pcs.themis, LEASE),
    "wfq:weights=1:zeta=0": lambda _: (naive_pcs.wfq((), (1,), 0.0, 0.1), None),
    "wfq:sizes=150+400:weights=1+3+2:zeta=0.6:delta=0.2": lambda parts: (
        naive_pcs.wfq((150.0 * parts, 400.0 * parts), (1, 3, 2), 0.6, 0.2),
        None,
    ),
}
"""How a naive pool deals under each policy, with GPUs cut into so many parts, and its lease."""


def log(rng, pools):
    """Jobs of any kind, in bursts and with pauses; some are submitted together."""
    arrivals, now = [], 0.0
    for i in range(rng.randint(4, 14)):
        now += rng.choice([0.0, rng.expovariate(1 / 20), rng.expovariate(1 / 200)])
        seconds = rng.uniform(1, 150)
        job = replace(
            elastic(rng, f"j{i}", now),
            pool=rng.choice(pools),
            estimate=seconds * rng.uniform(0.5, 2),
        )
        arrivals.append(Arrival(job, seconds))
    return arrivals


def estimates_of(durations, arrivals):
    run_times = {job.id: duration for job, duration in arrivals}
    if durations == "perfect":
        return run_times
    if durations == "stated":
        return {job.id: job.estimate for job, _ in arrivals}
    name, _, percent = durations.partition(":")
    kind = {"within": WithinRunTimes, "noisy": NoisyRunTimes, "biased": BiasedRunTimes}[name]
    wrong = kind(run_times, float(percent) / 100)
    return {job.id: wrong.run_time(job) for job, _ in arrivals}


DURATIONS = ("perfect", "within:20", "noisy:40", "biased:-40", "biased:60", "stated")


@pytest.mark.parametrize("seed", range(24))
def test_ends_and_predictions_are_those_of_a_naive_replay(seed):
    rng = Random(seed)
    cost, parts = rng.choice([0.0, 5.0]), rng.choice([1, 1, 3])
    pools = [Pool(name, rng.choice([3, 5, 8])) for name in rng.choice([["a"], ["a", "b"]])]
    durations = rng.choice(DURATIONS)
    table = PoolTable(pools)
    trace = playable(Trace(log(rng, [pool.name for pool in pools])), table, narrow=True)
    trace, table = in_parts(trace, table, parts)
    settings = Settings(
        [*POLICIES], options=Options(resume_cost=cost), durations=durations, parts=parts
    )
    believed = estimates_of(durations, trace.arrivals)
    for label, result in zip(POLICIES, replay_all(trace, table, settings), strict=True):
        deal, lease = POLICIES[label](parts)
        told, ends = {}, {}
        for pool in table.pools:
            jobs = [
                NaiveJob(job, duration, believed[job.id])
                for job, duration in trace.arrivals
                if job.pool == pool.name
            ]
            naive = NaivePool(pool.quota, deal, cost, lease).replay(jobs)
            told, ends = told | naive[0], ends | naive[1]
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
