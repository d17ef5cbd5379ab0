"""When the jobs of a log started, as far as that can be known."""

from __future__ import annotations

from replay.logs.trace import PoolTable, Trace
from replay.run.run import BASELINE, Settings, replay_one
from sia.console.errors import UserError
from sia.core.playout import Arrival
from sia.limits import MAX_TIME

WAIT = "wait"
"""The column that says how many seconds a job waited."""


def told_by(trace: Trace, table: PoolTable | None) -> str:
    """By what `starts_of` knows, as a sentence."""
    if WAIT in trace.columns:
        return "jobs start and end when the log says: it tells how long each waited"
    if table is None:
        return (
            "jobs are taken to start when submitted: the log tells no waits, and no pools are "
            "given to replay it in"
        )
    return "jobs start as in a replay, first come, first served in the pools given"


def starts_of(trace: Trace, table: PoolTable | None = None) -> list[float | None]:
    """Seconds for each job: after the wait that the log tells, else first come, first served.

    Without waits and without pools every job starts at its submission; with pools, which all jobs
    must fit, None stands for one that never starts. Raises UserError where a wait is no number of
    seconds.
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
            f"job {arrival.job.id}, column {WAIT}: {cell[:40]!r} is no wait; "
            "write seconds, 0 or more, or leave it empty"
        )
    return wait
