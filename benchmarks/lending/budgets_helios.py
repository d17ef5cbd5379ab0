"""Budgets on the bursty two-pool Helios log and on Philly: slowed jobs, and what budgets prevent.

The daemon's engine and forecasters replay the log in virtual time with the logged run times. The
engine's accounts count a job as slowed if it started after its virtual start time.

    python -m benchmarks.lending.budgets_helios [--trace ../shared/traces/helios_venus_2vc.csv.gz]
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from heapq import heappop, heappush
from math import inf
from pathlib import Path
from time import perf_counter
from typing import Any

from benchmarks.common import TRACES, keep, philly
from daemon.engine.engine import Engine
from daemon.forecasts.forecaster import Predictors
from daemon.forecasts.history import JournalHistory
from daemon.model.inputs import Ended, Input, Started, Submit, Tick
from daemon.model.job import JobSpec
from daemon.model.outputs import Notice, StartEffect
from daemon.model.setup import Budget, Setup
from replay.logs.read import read_pools, read_trace
from replay.logs.trace import PoolTable, Trace, playable

LABELS = ("peaks+survival", "peaks+survival+guard", "sliding-max+survival")

BUDGETS = (None, 5.0, 1.0, 0.1)
"""Percent."""


class Lived:
    """An engine that has lived through a log."""

    def __init__(self, trace: Trace, table: PoolTable, label: str, budget: float | None) -> None:
        """Live through it, with this budget (percent) for each pool."""
        pools = tuple(table.pools)
        budgets = {} if budget is None else {p.name: Budget(None, budget) for p in pools}
        setup = Setup(pools, budgets=budgets)
        self.engine = Engine.new(setup)
        self.notices: list[Notice] = []
        self._forecaster = Predictors(setup, label).make(JournalHistory(0.0, 0.0), None, None)
        self._lasts = {arrival.job.id: arrival.duration for arrival in trace.arrivals}
        self._ends: list[tuple[float, int, str, int]] = []
        self._number = 0
        self._live(trace)

    def _live(self, trace: Trace) -> None:
        arrivals, place = trace.arrivals, 0
        while True:
            coming = arrivals[place].job.submit if place < len(arrivals) else inf
            ends = self._ends[0][0] if self._ends else inf
            if coming == ends == inf:
                return
            due = min(self.engine.due, self._forecaster.due)
            now = min(coming, ends, max(due, self.engine.core.state.now, 0.0))
            inputs: list[Input] = []
            while self._ends and self._ends[0][0] <= now:
                _, _, job_id, attempt = heappop(self._ends)
                inputs.append(Ended(job_id, attempt, 0))
            while place < len(arrivals) and arrivals[place].job.submit <= now:
                job = arrivals[place].job
                inputs.append(Submit(JobSpec(job.id, job.pool, job.width, user=job.user)))
                place += 1
            self._step(now, inputs or [Tick()])

    def _step(self, now: float, inputs: list[Input]) -> None:
        asked = self._forecaster.before(now, inputs, self.engine.book)
        step = self.engine.step(now, asked)
        self._forecaster.after(now, step)
        self.notices += [n for n in step.notices if n.kind.startswith("lending_")]
        begun: list[Input] = []
        for effect in step.effects:
            if isinstance(effect, StartEffect):
                self._number += 1
                end = now + self._lasts[effect.job]
                heappush(self._ends, (end, self._number, effect.job, effect.attempt))
                begun.append(Started(effect.job, effect.attempt))
        if begun:
            self._step(now, begun)


def measured(lived: Lived) -> dict[str, Any]:
    """Return the accounts of each pool, and the actions of the guard rails."""
    pools = {}
    for name, account in lived.engine.book.accounts.items():
        pools[name] = {
            "jobs": account.jobs,
            "slowed": account.slowed,
            "slowed_pct": round(100 * account.slowed / max(1, account.jobs), 3),
            "lost_hours": round(account.lost / 3600, 2),
            "gained_hours": round(account.gained / 3600, 1),
            "lent_gpu_hours": round(account.lent / 3600, 1),
        }
    kinds = Counter(f"{n.kind} {n.pool} {n.data['reason']}" for n in lived.notices)
    shown = [
        {"hour": round(n.time / 3600, 1), "kind": n.kind, "pool": n.pool, "why": n.data["why"]}
        for n in lived.notices[:12]
    ]
    return {"pools": pools, "actions": dict(kinds), "first": shown}


def lives(
    trace: Trace,
    table: PoolTable,
    labels: Sequence[str] = LABELS,
    budgets: Sequence[float | None] = BUDGETS,
) -> dict[str, Any]:
    """With each forecast and budget."""
    runs: dict[str, Any] = {}
    for label in labels:
        for budget in budgets:
            began = perf_counter()
            name = f"sia@{label}, {'no budget' if budget is None else f'{budget:g} %'}"
            runs[name] = found = measured(Lived(trace, table, label, budget))
            pools = found["pools"].values()
            found["all"] = {
                key: round(sum(pool[key] for pool in pools), 2)
                for key in ("jobs", "slowed", "lost_hours", "gained_hours", "lent_gpu_hours")
            }
            print(f"{name}: {perf_counter() - began:.0f} s, {found['all']}")
            print(f"  {found['actions']}")
    return {"jobs": len(trace.arrivals), "runs": runs}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trace", type=Path, default=TRACES / "helios_venus_2vc.csv.gz")
    parser.add_argument("--pools", type=Path, default=TRACES / "helios_venus_2vc_pools.csv")
    options = parser.parse_args()
    table = read_pools(options.pools)
    trace = playable(read_trace(options.trace), table)
    found = {"log": options.trace.name, **lives(trace, table)}
    keep("lending/budgets_helios", {**found, "philly": lives(*philly(), LABELS[:1], (None, 0.1))})


if __name__ == "__main__":
    main()
