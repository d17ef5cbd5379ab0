"""The history before a slice of a log. Only forecasts use it, to learn before the replay begins."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from math import ceil
from typing import NamedTuple

from replay.logs.trace import PoolTable
from sia.core.playout import Arrival
from sia.forecasts import Loads, RunTimes
from sia.limits import TICK
from sia.model import Job
from sia.wording import DAY

SPAN = 28 * DAY
"""Length of the history in seconds: twice the period that forecasts look back on. A longer history
would add work to every slice."""

ENDED, SUBMITTED, STARTED, ENDED_AT_ONCE = range(4)
"""Order of events at the same instant."""


_Event = tuple[float, int, int, Arrival]
"""Time, kind, the job's index in the history, the job."""


class PastJobs(NamedTuple):
    """Jobs submitted in [begin, 0), each with its start time, in seconds."""

    begin: float
    jobs: Sequence[tuple[Arrival, float]]


def past_of(
    arrivals: Sequence[Arrival], starts: Mapping[str, float], table: PoolTable, begin: float
) -> PastJobs:
    """Return the jobs of the pools in `table` before second `begin`, which becomes second 0.

    `starts` gives the start time of each job of the log. Jobs that are missing from `starts` or
    wider than their pool's quota in `table` are omitted.
    """
    quotas = {pool.name: pool.quota for pool in table.pools}
    since = max(begin - SPAN, arrivals[0].job.submit)  # no observations before the log begins
    low, high = (bisect_left(arrivals, t, key=_submit) for t in (since, begin))
    jobs = []
    for job, duration in arrivals[low:high]:
        if job.id in starts and job.width <= quotas.get(job.pool, 0):
            moved = job.submitted_at(job.submit - begin)
            jobs.append((Arrival(moved, duration), starts[job.id] - begin))
    return PastJobs(since - begin, jobs)


def _submit(arrival: Arrival) -> float:
    return arrival.job.submit


def warm_up(past: PastJobs, run_times: RunTimes | None, loads: Loads | None) -> None:
    """Feed the forecasts the events before second 0.

    A slice begins with empty pools, so jobs that are pending or running at second 0 are withdrawn.
    """
    events = _events(past)
    estimates: dict[str, float] = {}
    if run_times is not None:
        estimates = _feed_run_times(events, run_times)
    if loads is not None:
        _feed_loads(past.begin, events, loads, estimates)


def _feed_run_times(events: Sequence[_Event], run_times: RunTimes) -> dict[str, float]:
    estimates = {}
    present: dict[str, Job] = {}
    for when, kind, _, (job, duration) in events:
        if kind == SUBMITTED:
            present[job.id] = job
            estimates[job.id] = run_times.run_time(job)
        elif kind == STARTED:
            run_times.started(when, job)
        else:
            run_times.finished(when, present.pop(job.id), duration)
    for job in present.values():
        run_times.withdrawn(0.0, job)
    return estimates


def _feed_loads(
    begin: float, events: Sequence[_Event], loads: Loads, estimates: Mapping[str, float]
) -> None:
    """Feed events to the load forecast, with a tick after the events of each instant."""
    present: dict[str, Job] = {}
    tick = ceil(begin / TICK)
    for when, kind, _, (job, _) in events:
        while tick * TICK < when:
            loads.unasked(tick * TICK)
            tick += 1
        if kind == SUBMITTED:
            present[job.id] = job
            loads.submitted(when, job)
        elif kind == STARTED:
            loads.started(when, job, estimates.get(job.id, 0.0))
        else:
            loads.finished(when, present.pop(job.id))
    for silent in range(tick, 0):
        loads.unasked(silent * TICK)
    for job in present.values():
        loads.withdrawn(0.0, job)


def _events(past: PastJobs) -> list[_Event]:
    """Return all events before second 0, in order."""
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
