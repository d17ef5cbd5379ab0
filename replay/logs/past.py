"""What was known before a piece of a log begins: forecasts learn from it, and nothing else does."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from math import ceil
from typing import NamedTuple

import msgspec

from replay.logs.trace import PoolTable
from sia.core.playout import Arrival
from sia.forecasts import Loads, RunTimes
from sia.limits import TICK
from sia.model import Job
from sia.wording import DAY

SPAN = 28 * DAY
"""How far back it goes: twice what the forecasts look back on, and no month of work a piece."""

ENDED, SUBMITTED, STARTED, ENDED_AT_ONCE = range(4)
"""The order of what happens at one instant."""


_Event = tuple[float, int, int, Arrival]
"""When, what, the job's place in the past, the job."""


class PastJobs(NamedTuple):
    """Jobs submitted from `begin` on and before second 0, with when they started."""

    begin: float
    jobs: Sequence[tuple[Arrival, float]]


def past_of(
    arrivals: Sequence[Arrival], starts: Mapping[str, float], table: PoolTable, begin: float
) -> PastJobs:
    """The jobs of these pools before second `begin` of a log, which becomes second 0.

    `starts` says when each job of the log started; jobs that are not in it, or too wide for their
    pool as it is now, are left out.
    """
    quotas = {pool.name: pool.quota for pool in table.pools}
    since = max(begin - SPAN, arrivals[0].job.submit)  # before the log nothing was seen
    low, high = (bisect_left(arrivals, t, key=_submit) for t in (since, begin))
    jobs = []
    for job, duration in arrivals[low:high]:
        if job.id in starts and job.width <= quotas.get(job.pool, 0):
            moved = msgspec.structs.replace(job, submit=job.submit - begin)
            jobs.append((Arrival(moved, duration), starts[job.id] - begin))
    return PastJobs(since - begin, jobs)


def _submit(arrival: Arrival) -> float:
    return arrival.job.submit


def tell(past: PastJobs, run_times: RunTimes | None, loads: Loads | None) -> None:
    """Tell forecasts what happened before second 0; who is there then is gone.

    A piece begins with empty pools, so nobody is left to run or to wait in it.
    """
    events = _events(past)
    estimates: dict[str, float] = {}
    if run_times is not None:
        estimates = _tell_run_times(events, run_times)
    if loads is not None:
        _tell_loads(past.begin, events, loads, estimates)


def _tell_run_times(events: Sequence[_Event], run_times: RunTimes) -> dict[str, float]:
    estimates = {}
    left: dict[str, Job] = {}
    for when, kind, _, (job, duration) in events:
        if kind == SUBMITTED:
            left[job.id] = job
            estimates[job.id] = run_times.run_time(job)
        elif kind == STARTED:
            run_times.started(when, job)
        else:
            run_times.finished(when, left.pop(job.id), duration)
    for job in left.values():
        run_times.withdrawn(0.0, job)
    return estimates


def _tell_loads(
    begin: float, events: Sequence[_Event], loads: Loads, estimates: Mapping[str, float]
) -> None:
    """At each tick, as in a replay, after all that happens then."""
    left: dict[str, Job] = {}
    tick = ceil(begin / TICK)
    for when, kind, _, (job, _) in events:
        while tick * TICK < when:
            loads.unasked(tick * TICK)
            tick += 1
        if kind == SUBMITTED:
            left[job.id] = job
            loads.submitted(when, job)
        elif kind == STARTED:
            loads.started(when, job, estimates.get(job.id, 0.0))
        else:
            loads.finished(when, left.pop(job.id))
    for silent in range(tick, 0):
        loads.unasked(silent * TICK)
    for job in left.values():
        loads.withdrawn(0.0, job)


def _events(past: PastJobs) -> list[_Event]:
    """All that happened before second 0, in order."""
    events = []
    for i, (arrival, start) in enumerate(past.jobs):
        end = start + arrival.duration
        events.append((arrival.job.submit, SUBMITTED, i, arrival))
        if start < 0:
            events.append((start, STARTED, i, arrival))
        if end < 0:
            kind = ENDED if arrival.duration else ENDED_AT_ONCE
            events.append((end, kind, i, arrival))
    events.sort(key=lambda event: event[:3])
    return events
