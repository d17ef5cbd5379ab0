"""Replays of Shockwave and its rivals beside naive models of their rules."""

from fractions import Fraction
from random import Random

import pytest

from replay.logs.trace import PoolTable, Trace
from replay.run.run import Settings, replay_one
from sia import Job, Options, Pool
from sia.core.playout import Arrival
from sia.model import Regime
from tests.support.naive.naive_rounds import (
    NaiveFilter,
    NaiveJob,
    NaiveShares,
    NaiveShockwave,
    allox,
    even,
    max_min,
    open_shop,
    play,
)

SPEEDS = {"8": 61.3, "16": 30.1, "32": 20.7, "64": 13.9}
"""Seconds of an epoch by batch size: no two jobs are alike, so that plans are unique."""

CONFIGS = {"static": ["8"], "gns": ["8", "16", "32"], "accordion": ["8", "64", "8"]}


def job(rng, number, now, gpus):
    mode, regimes, duration = "", (), rng.uniform(50, 800)
    if rng.random() < 0.7:
        mode = rng.choice([*CONFIGS])
        configs = CONFIGS[mode][: rng.randint(1, 3)]
        faster = rng.uniform(0.7, 1.3)
        regimes = tuple(
            Regime(config, float(rng.randint(1, 9)), SPEEDS[config] * faster, 1.0)
            for config in configs
        )
        duration = sum(regime.epochs * regime.seconds for regime in regimes)
    cost, budget = rng.choice([None, None, 0.0, 45.0]), rng.choice([None, None, 2.0, 0.5])
    width = rng.randint(1, gpus)
    real = Job(
        f"j{number}", "all", now, width,
        mode=mode, regimes=regimes, preemptible=cost, budget=budget,
    )  # fmt: skip
    naive = NaiveJob(real.id, now, width, duration, regimes, cost, budget or 1.0)
    return Arrival(real, duration), naive


def drawn(seed):
    rng = Random(seed)
    gpus, now, jobs = rng.randint(1, 4), 0.0, []
    for number in range(rng.randint(2, 5)):
        now += rng.choice([rng.uniform(0, 10), 120.0, rng.uniform(0, 400)])
        jobs.append(job(rng, number, now, gpus))
    return rng, gpus, jobs, rng.choice([0.0, 30.0])


def check(label, gpus, jobs, cost, choose):
    settings = Settings([label], options=Options(resume_cost=cost))
    trace, table = Trace([arrival for arrival, _ in jobs]), PoolTable([Pool("all", gpus)])
    found = replay_one(trace, table, label, settings, None).segments or ()
    got = sorted((segment[0], segment[1], segment[2]) for segment in found)
    naive = play([job for _, job in jobs], gpus, choose, cost)
    assert [part[0] for part in got] == [part[0] for part in naive]
    for (_, start, end), (_, begin, over) in zip(got, naive, strict=True):
        assert (start, end) == pytest.approx((begin, over), abs=1e-5)


@pytest.mark.parametrize("seed", range(24))
def test_a_replay_of_shockwave_is_that_of_a_naive_model(seed):
    rng, gpus, jobs, cost = drawn(seed)
    k, lam, rounds = rng.choice([0, 1, 5, 20]), rng.choice([0, 1e-3, 1, 30]), rng.randint(1, 4)
    rule, lazy = rng.choice(["restate", "restate", "last", "perfect"]), rng.random() < 0.2
    label = f"shockwave:k={k}:lambda={lam}:rounds={rounds}:predict={rule}" + ":lazy=yes" * lazy
    check(label, gpus, jobs, cost, NaiveShockwave(gpus, k, lam, rounds, rule, lazy))


RIVALS = {
    "allox": lambda _: allox,
    "filter": lambda _: NaiveFilter([Fraction(1, 5)]),
    "filter:f=2/3*3+1/3": lambda _: NaiveFilter([Fraction(2, 3)] * 3 + [Fraction(1, 3)]),
    "gandiva-fair": lambda gpus: NaiveShares(gpus, even),
    "gavel": lambda gpus: NaiveShares(gpus, max_min),
    "ossp": lambda gpus: NaiveShares(gpus, open_shop),
}
"""How a naive model of each rival on so many GPUs chooses."""


@pytest.mark.parametrize("label", RIVALS)
def test_replays_of_its_rivals_are_those_of_naive_models(label):
    for seed in range(100, 112):
        _, gpus, jobs, cost = drawn(seed)
        check(label, gpus, jobs, cost, RIVALS[label](gpus))
