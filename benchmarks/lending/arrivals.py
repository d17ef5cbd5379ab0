"""Train load forecasts on Philly: time to train, time per tick, and accuracy.

Everything runs in one thread, so that CPU time equals the time on an idle machine.
"""

from __future__ import annotations

import time
from random import Random
from typing import Any

from benchmarks.common import TRACES, keep, philly, spread
from predictors.learning.model import Model
from predictors.loads.learned import LearnedLoads
from predictors.run_times.history import HistoryRunTimes
from replay.forecast.arrivals import evaluate_arrivals
from replay.forecast.train import checksum_of_jobs, learn, observe
from replay.logs.read import read_pools, read_trace
from replay.logs.trace import PoolTable, Trace, playable
from sia import Core, Job
from sia.core.playout import play
from sia.limits import TICK
from sia.policies.queues.fcfs import Fcfs

LOGS = {
    "philly": "philly_pools.csv",
    "helios_venus": None,
    "helios_venus_2vc": "helios_venus_2vc_pools.csv",
}

CAUTIOUS = 0.95
"""The quantile of the load forecast that is timed together with WillJobsArrive."""

TICKS = 300
"""A day: the first half of it, in which the longest window is not yet whole, is not timed."""

JOBS_A_TICK = 0.25
"""Of each pool, as on Philly."""


class Timed(LearnedLoads):
    """CPU seconds of each tick that something was asked at."""

    def __init__(self, *args: Any, **options: Any) -> None:
        """Accept the arguments of `LearnedLoads`."""
        super().__init__(*args, **options)
        self.seconds: list[float] = []

    def changes(self, now: float) -> list[Any]:
        """Answer, and note how long it took."""
        before = self._tick
        began = time.process_time()
        changed = super().changes(now)
        if self._tick != before:
            self.seconds.append(time.process_time() - began)
        return changed


def milliseconds(seconds: list[float]) -> dict[str, float]:
    late = sorted(seconds)[int(0.95 * len(seconds))]
    return {**spread([1e3 * second for second in seconds]), "p95": round(1e3 * late, 4)}


def ticks(model: Model, pools: int, quantile: float | None) -> dict[str, float]:
    """A tick of so many pools, features and inference, after all windows have been seen."""
    rng, names = Random(0), [f"p{i}" for i in range(pools)]
    loads = Timed(names, model.manifest.windows, 0.0, model, load_quantile=quantile)
    for tick in range(1, TICKS):
        now = tick * TICK
        for i in range(max(1, int(JOBS_A_TICK * pools))):
            job = Job(f"j{tick}-{i}", rng.choice(names), now - 1, rng.randint(1, 8))
            loads.submitted(now - 1, job)
            loads.started(now - 1, job, rng.random() * 1e5)
            if rng.random() < 0.8:
                loads.finished(now - 1, job)
        loads.changes(now)
    return milliseconds(loads.seconds[TICKS // 2 :])


def replayed(model: Model, trace: Trace, table: PoolTable) -> dict[str, float]:
    """A tick inside a replay of Philly's first 20,000 jobs."""
    arrivals = trace.arrivals[:20_000]
    pools = [pool.name for pool in table.pools]
    loads = Timed(pools, model.manifest.windows, arrivals[0].job.submit, model)
    for _ in play(Core(table.pools, Fcfs()), arrivals, run_times=HistoryRunTimes(), loads=loads):
        pass
    return milliseconds(loads.seconds)


def judged(name: str, pools: str | None) -> tuple[Model, dict[str, Any]]:
    """Learn from three quarters of a log's time, and judge the rest."""
    table = None if pools is None else read_pools(TRACES / pools)
    trace = read_trace(TRACES / f"{name}.csv.gz")
    trace = trace if table is None else playable(trace, table)
    began = time.process_time()
    rows = observe(trace, table)
    seen = time.process_time()
    until = float(rows.times[0] + 0.75 * (rows.end - rows.times[0]))
    model = learn(rows, until=until, trace_sha256=checksum_of_jobs(trace, until))
    done = time.process_time()
    owned = [pool.name for pool in table.pools] if table else ["venus"]
    scores = evaluate_arrivals(rows, model, trace, owned, name=name, since=until)
    return model, {
        "observing_cpu_s": round(seen - began, 1),
        "learning_cpu_s": round(done - seen, 1),
        "table": scores.table,
        "reliability": scores.reliability,
    }


def main() -> None:
    found = {name: judged(name, pools) for name, pools in LOGS.items()}
    model = found["philly"][0]
    trace, table = philly()
    keep(
        "lending/arrivals",
        {
            "CPU ms a tick, 11 pools, in a replay of Philly": replayed(model, trace, table),
            **{
                f"CPU ms a tick, {pools} pools, {what}": ticks(model, pools, quantile)
                for pools in (8, 1000)
                for what, quantile in (("WillJobsArrive", None), ("quantile", CAUTIOUS))
            },
            **{name: facts for name, (_, facts) in found.items()},
        },
    )


if __name__ == "__main__":
    main()
