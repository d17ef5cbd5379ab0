"""How fast `sia-reclaim` replays a log, and how long its passes take in a daemon with many jobs.

    python -m benchmarks.lending.speed

All times are processor time of one process. The log is Microsoft's Philly log, of which every job
may be stopped at the cost of all its work. The daemon's engine has 1,000 pools and 50,000 pending
jobs. In one case a job ends and one comes. In the others a wide job ends, so that the pass makes
300 loans, or comes, so that as many guests are stopped. Idle work and garbage are done between the
steps, as the service does it. Under `sia`, which stops nobody, the first loans are timed alone.
"""

from __future__ import annotations

import time
from random import Random
from typing import Any

from benchmarks.common import keep, philly, spread
from benchmarks.daemon.core import PENDING, POOLS, QUOTA, percentiles, spec
from daemon.engine.engine import Engine
from daemon.model.inputs import Ended, Input, Stopped, Submit
from daemon.model.outputs import PreemptEffect, StartEffect
from daemon.model.setup import Setup
from daemon.runtime.gc import GcScheduler, collect_in_small_steps
from replay.logs.preemptible import PreemptibleShare, mark
from replay.run.run import Settings, replay_one
from sia.limits import MAX_STOPS
from sia.model import Pool

STOPS_NOBODY = ("sia", "sia:chance=0.1", "sia:risk=0.5")
RUNS = 3
PASSES = 300
ROUNDS = 40
WIDE = 1240
"""GPUs of the job that ends in one step: about 300 guests run on them then."""


def replays() -> dict[str, Any]:
    """Jobs that a second of processor time replays."""
    trace, table = philly()
    trace = mark(trace, PreemptibleShare(100, "restart"), 0)
    found = {}
    for label in ("sia-reclaim", "sia-reclaim@peaks+survival"):
        speeds = []
        for _ in range(RUNS):
            began = time.process_time()
            replay_one(trace, table, label, Settings([label]), None)
            speeds.append(len(trace.arrivals) / (time.process_time() - began))
        found[label] = spread(speeds)
    return {"jobs": len(trace.arrivals), "jobs_per_s": found}


def crowd(policy: str) -> tuple[Engine, list[str]]:
    """An engine in which all GPUs are in use, and the jobs that run in it."""
    owned = tuple(Pool(f"p{i:04}", QUOTA) for i in range(POOLS - 1))
    setup = Setup((*owned, Pool("wide", WIDE)), policy=policy, preemptible="restart")
    engine, rng, now, running = Engine.new(setup), Random(0), 1e9, list[str]()
    step = engine.step(now, [Submit(spec("w", "wide", WIDE), 1e6)])
    for first in range(0, POOLS * QUOTA + PENDING, 1000):
        now += 1.0
        inputs: list[Input] = []
        for i in range(first, first + 1000):
            gpus = 1 if i < len(owned) * QUOTA else rng.choice((1, 1, 2, 2, 4, 8))
            run_time = rng.choice((100.0, 1000.0, 20_000.0, 90_000.0))
            inputs.append(Submit(spec(f"job-{i}", owned[i % len(owned)].name, gpus), run_time))
        step = engine.step(now, inputs)
        running += [each.job for each in step.effects if isinstance(each, StartEffect)]
    return engine, running


def passes() -> dict[str, Any]:
    """Milliseconds of a step, with one job that ends, and with a wide one that ends or comes."""
    engine, running = crowd(f"sia-reclaim:stops={MAX_STOPS}")
    collect_in_small_steps()
    garbage = GcScheduler()
    garbage.freeze()
    rng, now, few, lending, loans = Random(1), engine.core.state.now, [], [], []
    reclaiming, stops, stopping = [], [], []

    def timed(inputs: list[Input], times: list[float]) -> list[Any]:
        nonlocal now
        now += 1.0
        began = time.process_time()
        step = engine.step(now, inputs)
        times.append(time.process_time() - began)
        engine.do_idle_work()
        garbage.tidy()
        return step.effects

    for i in range(PASSES):
        ending = running.pop(rng.randrange(len(running)))
        more = Submit(spec(f"n{i}", f"p{i % (POOLS - 1):04}", 2), 500.0)
        effects = timed([Ended(ending, 1, 0), more], few)
        running += [e.job for e in effects if isinstance(e, StartEffect) and e.attempt == 1]
    wide = "w"
    for i in range(ROUNDS):
        effects = timed([Ended(wide, 1, 0)], lending)
        guests = [each for each in effects if isinstance(each, StartEffect)]
        loans.append(len(guests))
        now += 60.0
        wide = f"w{i}"
        effects = timed([Submit(spec(wide, "wide", WIDE), 1e6)], reclaiming)
        stopped = [each for each in effects if isinstance(each, PreemptEffect)]
        stops.append(len(stopped))
        timed([Stopped(each.job, each.attempt) for each in stopped], stopping)
    return {
        "pending": engine.core.state.waiting,
        "one_ends": percentiles(few),
        "wide_ends": percentiles(lending) | {"loans": spread(loans)},
        "wide_comes": percentiles(reclaiming) | {"stops": spread(stops)},
        "guests_have_stopped": percentiles(stopping),
    }


def first_loans() -> dict[str, Any]:
    """Milliseconds of the step in which a wide job ends, and the number of its loans."""
    found = {}
    for policy in STOPS_NOBODY:
        engine, _ = crowd(policy)
        began = time.process_time()
        effects = engine.step(engine.core.state.now + 1.0, [Ended("w", 1, 0)]).effects
        taken = 1e3 * (time.process_time() - began)
        loans = sum(isinstance(each, StartEffect) for each in effects)
        found[policy] = {"ms": round(taken, 1), "loans": loans}
    return found


def main() -> None:
    found = {"passes_ms": passes(), "first_loans": first_loans(), "replay": replays()}
    keep("lending/speed", found)


if __name__ == "__main__":
    main()
