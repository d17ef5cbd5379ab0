"""The oracle's results as files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from oracle.run import Outcome
from replay.output import write_json, write_pools, write_schedule, write_trace
from replay.run import Settings
from replay.schedule import Result, Schedule
from replay.summary import jct_pairs
from replay.trace import PoolTable, Trace
from sia import __version__
from sia.metrics import measure

PLANNED = ("trace.csv", "pools.csv", "jobs.csv", "loans.csv", "oracle.json")


def write_outcome(folder: Path, table: PoolTable, outcome: Outcome) -> None:
    """Write everything; the schedule as `sia replay` writes one."""
    write_trace(folder / "trace.csv", outcome.trace)
    write_pools(folder / "pools.csv", table)
    own = folder / "own"
    write_schedule(own, outcome.trace, outcome.schedule)
    for path in sorted(own.iterdir()):
        path.rename(folder / path.name)
    own.rmdir()
    write_json(folder / "oracle.json", as_json(outcome))


def as_json(outcome: Outcome) -> dict[str, Any]:
    """The figures, as plain values."""
    return {
        "version": __version__,
        "status": outcome.status,
        "total_wait_s": outcome.wait,
        "bound_wait_s": outcome.wait_bound,
        "gap": outcome.gap,
        "baseline_wait_s": outcome.alone,
        "seconds": outcome.seconds,
        "variables": sum(answer.variables for answer in outcome.answers),
        "nonzeros": sum(answer.nonzeros for answer in outcome.answers),
        "slot_s": outcome.task.slot,
        "form": outcome.task.form,
        "slotted": _measures(outcome.trace, outcome.baseline, outcome.schedule),
    }


def _measures(trace: Trace, baseline: Schedule, schedule: Schedule) -> dict[str, Any]:
    pairs = jct_pairs(Result(trace, baseline, schedule), Settings([]))
    metrics = measure([pair for pair in pairs if pair is not None])
    return {name: getattr(metrics, name) for name in metrics.__struct_fields__}
