"""The oracle's results as files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from oracle.run import Outcome
from replay.output import write_json, write_pools, write_schedule, write_trace
from replay.run import Settings
from replay.schedule import Result
from replay.summary import jct_pairs
from sia import __version__
from sia.metrics import measure

PLANNED = ("trace.csv", "pools.csv", "jobs.csv", "loans.csv", "oracle.json", "real/")


def write_outcome(folder: Path, outcome: Outcome) -> None:
    """Write everything; the schedules as `sia replay` writes them."""
    write_schedule_of(folder, outcome)
    write_schedule(folder / "real", outcome.instance.log, outcome.real)
    write_json(folder / "oracle.json", as_json(outcome))


def write_schedule_of(folder: Path, outcome: Outcome) -> None:
    """Write the jobs on the grid, their pools and their schedule."""
    instance = outcome.instance
    write_trace(folder / "trace.csv", instance.trace)
    write_pools(folder / "pools.csv", instance.table)
    own = folder / "own"
    write_schedule(own, instance.trace, outcome.schedule)
    for path in sorted(own.iterdir()):
        path.rename(folder / path.name)
    own.rmdir()


def as_json(outcome: Outcome) -> dict[str, Any]:
    """The figures, as plain values. All but `real` are of the slotted jobs."""
    goal, instance = outcome.task.goal, outcome.instance
    return {
        "version": __version__,
        "status": outcome.status,
        "total_wait_s": outcome.wait,
        "bound_wait_s": outcome.wait_bound,
        "objective": outcome.cost,
        "objective_bound": outcome.cost_bound,
        "gap": outcome.gap,
        "baseline_wait_s": outcome.alone,
        "seconds": outcome.seconds,
        "variables": sum(answer.variables for answer in outcome.answers),
        "nonzeros": sum(answer.nonzeros for answer in outcome.answers),
        "slot_s": outcome.task.slot,
        "form": outcome.task.form,
        "beta": goal.beta,
        "weighted": goal.weighted,
        "slowdown_allowed_pct": goal.slowdown_pct,
        "slowdown_price": goal.price,
        "jobs": len(instance.trace.arrivals),
        "dropped": dict(sorted(instance.trace.dropped.items())),
        "measures": _measures(Result(instance.trace, instance.baseline, outcome.schedule)),
        "real": _measures(Result(instance.log, outcome.real_baseline, outcome.real)),
    }


def _measures(result: Result) -> dict[str, Any]:
    pairs = jct_pairs(result, Settings([]))
    return msgspec.structs.asdict(measure([pair for pair in pairs if pair is not None]))
