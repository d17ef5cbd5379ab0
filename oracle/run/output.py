"""Write the oracle's results."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from oracle.run.console import unit_of
from oracle.run.run import RunResult, measured, waiting
from replay.logs.trace import Trace
from replay.run.output import write_json, write_pools, write_schedule, write_trace
from replay.run.schedule import Schedule


def write_outcome(folder: Path, outcome: RunResult, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Write all results, and return oracle.json. `settings` are the command's settings."""
    write_schedule_of(folder, outcome)
    write_schedule(folder / "real", outcome.instance.log, outcome.real)
    found = {**settings, **as_json(outcome)}
    write_json(folder / "oracle.json", found)
    return found


def write_schedule_of(folder: Path, outcome: RunResult) -> None:
    """Write the jobs on the slot grid, their pools and their schedule."""
    instance = outcome.instance
    write_trace(folder / "trace.csv", instance.trace)
    write_pools(folder / "pools.csv", instance.table)
    own = folder / "own"
    write_schedule(own, instance.trace, outcome.schedule)
    for path in sorted(own.iterdir()):
        path.rename(folder / path.name)
    own.rmdir()


def as_json(outcome: RunResult) -> dict[str, Any]:
    """Return the measures as plain values. All but `real` apply to the jobs on the slot grid."""
    instance = outcome.instance
    return {
        "jobs": len(instance.trace.arrivals),
        "dropped": dict(sorted(instance.trace.dropped.items())),
        "status": outcome.status,
        "total_wait_s": outcome.wait,
        "bound_wait_s": outcome.wait_bound,
        "baseline_wait_s": outcome.alone,
        "objective": outcome.cost,
        "objective_bound": outcome.cost_bound,
        "objective_unit": unit_of(outcome.task.goal),
        "gap": outcome.gap,
        "seconds": outcome.seconds,
        "variables": sum(answer.variables for answer in outcome.answers),
        "nonzeros": sum(answer.nonzeros for answer in outcome.answers),
        "measures": _measures(instance.trace, instance.baseline, outcome.schedule),
        "real": {
            "total_wait_s": waiting(instance.log, outcome.real),
            "baseline_wait_s": waiting(instance.log, outcome.real_baseline),
            **_measures(instance.log, outcome.real_baseline, outcome.real),
        },
    }


def _measures(trace: Trace, baseline: Schedule, schedule: Schedule) -> dict[str, Any]:
    return msgspec.structs.asdict(measured(trace, baseline, schedule))
