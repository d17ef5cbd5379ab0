"""The core run forward in virtual time: replays, virtual clocks, what-if questions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from sia.core import Core
from sia.decisions import Decision, StartJob, WakeAt
from sia.events import (
    Event,
    ForecastUpdated,
    FutureRevealed,
    JobFinished,
    JobSubmitted,
    PoolChanged,
    TimePassed,
)
from sia.forecasts import Loads, RunTimes
from sia.limits import MAX_IDLE_WAKES
from sia.model import Job


class Arrival(NamedTuple):
    """A job that will be submitted at `job.submit`, and how long it will in truth run (seconds)."""

    job: Job
    duration: float


class Instant(NamedTuple):
    """What happened at one moment, and what was decided."""

    now: float
    events: Sequence[Event]
    decisions: Sequence[Decision]


def play(
    core: Core,
    arrivals: Sequence[Arrival],
    *,
    run_times: RunTimes | None = None,
    loads: Loads | None = None,
    facts: Sequence[PoolChanged | FutureRevealed] = (),
    running: Sequence[tuple[float, str]] = (),
) -> Iterator[Instant]:
    """Play until every job has ended or nothing can happen any more; one step an instant.

    `arrivals` and the other `facts` are in order of time; `running` are the (end, job id) of jobs
    that the core already runs. Without `run_times` jobs come with the estimate 0, without `loads` nothing is
    foreseen. Jobs that can never start stay in the core's queues.
    """
    names = [job_id for _, job_id in running]
    ends = [  # time, order of the start, position in arrivals (negative: in names)
        (end, i - len(names), i - len(names)) for i, (end, _) in enumerate(running)
    ]
    heapify(ends)
    positions = {arrival.job.id: i for i, arrival in enumerate(arrivals)}
    infinity = float("inf")
    submits = [arrival.job.submit for arrival in arrivals]
    submits.append(infinity)
    fact_times = [fact.time for fact in facts]
    fact_times.append(infinity)
    next_arrival = next_fact = starts = 0
    wake = infinity
    idle_wakes = 0
    step = core.step
    while True:
        now = min(submits[next_arrival], fact_times[next_fact], wake)
        if ends and ends[0][0] < now:
            now = ends[0][0]
        if now == infinity:
            return
        events: list[Event] = []
        while ends and ends[0][0] == now:
            position = heappop(ends)[2]
            job_id = names[position] if position < 0 else arrivals[position].job.id
            if run_times is not None and position >= 0:
                run_times.finished(*arrivals[position])
            events.append(JobFinished(now, job_id))
        while fact_times[next_fact] == now:
            events.append(facts[next_fact])
            next_fact += 1
        while submits[next_arrival] == now:
            job = arrivals[next_arrival].job
            next_arrival += 1
            estimate = 0.0 if run_times is None else run_times.run_time(job)
            if loads is not None:
                loads.submitted(now, job)
            events.append(JobSubmitted(now, job, estimate))
        if loads is not None and (updates := loads.changes(now)):
            events.append(ForecastUpdated(now, updates))
        if wake == now:
            events.append(TimePassed(now))
            wake = infinity
        decisions = step(now, events)
        idle_wakes = idle_wakes + 1 if len(events) == len(decisions) == 1 and not ends else 0
        if idle_wakes > MAX_IDLE_WAKES:
            return
        for decision in decisions:
            if type(decision) is StartJob:
                position = positions[decision.job_id]
                starts += 1
                heappush(ends, (now + arrivals[position].duration, starts, position))
            elif type(decision) is WakeAt:
                wake = decision.time
        yield Instant(now, events, decisions)
