"""Determine when the jobs of a log started."""

from __future__ import annotations

from replay.logs.trace import PoolTable, Trace
from replay.run.run import BASELINE, Settings, replay_one
from sia.console.errors import UserError
from sia.core.playout import Arrival
from sia.limits import MAX_TIME

WAIT = "wait"
"""Name of the column with the wait of a job, in seconds."""


def source_of_starts(trace: Trace, table: PoolTable | None) -> str:
    """Return a sentence that describes how `starts_of` determines the starts."""
    if WAIT in trace.columns:
        return "jobs start and end as in the log, which has the wait of each job"
    if table is None:
        return (
            "jobs are assumed to start when submitted: the log has no waits, and no pools file is "
            "given"
        )
    return "jobs start as in a replay, first come, first served, in the given pools"


def starts_of(trace: Trace, table: PoolTable | None = None) -> list[float | None]:
    """Return the start of each job in seconds; None if the job never starts.

    The start is the submission plus the wait in the log. If the log has no waits, the starts are
    those of an FCFS replay in the pools of `table`, which all jobs must fit. Without a table, jobs
    start when they are submitted. Raises UserError if a wait is invalid.
    """
    if WAIT in trace.columns:
        column = trace.columns.index(WAIT)
        cells = (trace.extras[arrival.job.id][column] for arrival in trace.arrivals)
        waits = map(_wait, trace.arrivals, cells)
        return [a.job.submit + wait for a, wait in zip(trace.arrivals, waits, strict=True)]
    if table is None:
        return [arrival.job.submit for arrival in trace.arrivals]
    return replay_one(trace, table, BASELINE, Settings([BASELINE]), None).starts


def _wait(arrival: Arrival, cell: str) -> float:
    try:
        wait = float(cell or 0)
    except ValueError:
        wait = -1.0
    if not 0 <= wait < MAX_TIME:
        raise UserError(
            f"job {arrival.job.id}, column {WAIT}: {cell[:40]!r} is not a wait; "
            "write seconds, 0 or more, or leave it empty"
        )
    return wait
