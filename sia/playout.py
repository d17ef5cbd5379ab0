"""The core run forward in virtual time: replays, virtual clocks, what-if questions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import heapify, heappop, heappush
from math import inf
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
    that the core already runs. Without `run_times` jobs come with the estimate 0, without `loads`
    nothing is foreseen. Jobs that can never start stay in the core's queues.
    """
    world = _World(arrivals, run_times, loads, facts, running)
    next_time, happen, step = world.next_time, world.happen, core.step
    idle_wakes = 0
    while (now := next_time()) < inf:
        events = happen(now)
        decisions = step(now, events)
        yield Instant(now, events, decisions)
        for decision in decisions:
            if type(decision) is StartJob:
                world.run(decision.job_id, now)
            elif type(decision) is WakeAt:
                world.wake = decision.time
        if type(events[0]) is TimePassed and len(events) == len(decisions) == 1 and world.over:
            idle_wakes += 1
            if idle_wakes > MAX_IDLE_WAKES:
                return
        else:
            idle_wakes = 0


class _World:
    """What will happen in virtual time: arrivals and facts in their order, ends from a heap."""

    def __init__(
        self,
        arrivals: Sequence[Arrival],
        run_times: RunTimes | None,
        loads: Loads | None,
        facts: Sequence[PoolChanged | FutureRevealed],
        running: Sequence[tuple[float, str]],
    ) -> None:
        self.wake = inf
        self._arrivals, self._facts = arrivals, facts
        self._run_times, self._loads = run_times, loads
        self._submits = [*(arrival.job.submit for arrival in arrivals), inf]
        self._fact_times = [*(fact.time for fact in facts), inf]
        self._next_arrival = self._next_fact = 0
        self._positions = {arrival.job.id: i for i, arrival in enumerate(arrivals)}
        self._earlier = [job_id for _, job_id in running]
        # End, order of the start, position in arrivals; negative for those that ran already.
        self._ends = [(end, i, i) for i, (end, _) in enumerate(running, -len(running))]
        self._starts = 0
        heapify(self._ends)

    @property
    def over(self) -> bool:
        """Nothing runs, and nothing more will happen."""
        return (
            not self._ends
            and self._next_arrival == len(self._arrivals)
            and self._next_fact == len(self._facts)
        )

    def next_time(self) -> float:
        """When the next thing happens; infinite if nothing does."""
        now = min(self._submits[self._next_arrival], self._fact_times[self._next_fact], self.wake)
        return self._ends[0][0] if self._ends and self._ends[0][0] < now else now

    def run(self, job_id: str, now: float) -> None:
        """Have a job that was started end when its duration is over."""
        position = self._positions[job_id]
        self._starts += 1
        heappush(self._ends, (now + self._arrivals[position].duration, self._starts, position))

    def happen(self, now: float) -> list[Event]:
        """All that happens at this moment, ends first; predictors hear of it and are asked."""
        events: list[Event] = []
        ends, arrivals, run_times, loads = self._ends, self._arrivals, self._run_times, self._loads
        while ends and ends[0][0] == now:
            position = heappop(ends)[2]
            if position < 0:
                events.append(JobFinished(now, self._earlier[position]))
                continue
            events.append(JobFinished(now, arrivals[position].job.id))
            if run_times is not None:
                run_times.finished(*arrivals[position])
        while self._fact_times[self._next_fact] == now:
            events.append(self._facts[self._next_fact])
            self._next_fact += 1
        while self._submits[self._next_arrival] == now:
            job = arrivals[self._next_arrival].job
            self._next_arrival += 1
            estimate = 0.0 if run_times is None else run_times.run_time(job)
            if loads is not None:
                loads.submitted(now, job)
            events.append(JobSubmitted(now, job, estimate))
        if loads is not None and (updates := loads.changes(now)):
            events.append(ForecastUpdated(now, updates))
        if self.wake == now:
            events.append(TimePassed(now))
            self.wake = inf
        return events
