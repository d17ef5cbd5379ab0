"""Running the core forward in virtual time: replays, virtual clocks, what-if questions."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from heapq import heapify, heappop, heappush
from math import inf
from operator import itemgetter
from typing import NamedTuple

from sia.core.core import Core
from sia.decisions import Decision, PreemptJob, ResizeJob, StartJob, WakeAt
from sia.events import (
    Event,
    ForecastUpdated,
    FutureRevealed,
    GpusOut,
    JobFinished,
    JobProgressed,
    JobSubmitted,
    LendingSwitched,
    NodeBack,
    NodeOut,
    PoolChanged,
    PriorityChanged,
    RunTimesUpdated,
    TimePassed,
)
from sia.forecasts import Loads, RunTimes
from sia.limits import MAX_IDLE_WAKES
from sia.model import Job
from sia.state.state import JobState


class Arrival(NamedTuple):
    """A job that is submitted at `job.submit`, and its real run time in seconds."""

    job: Job
    duration: float


Followers = Callable[[float, str], Sequence[Arrival]]
"""Called with time and id of each job that ends; returns jobs to submit then or later."""


Fact = (
    PoolChanged | LendingSwitched | GpusOut | NodeOut | NodeBack | PriorityChanged | FutureRevealed
)  # fmt: skip
"""Events besides submissions and ends of jobs."""


NOTHING: Mapping[str, float] = {}


class ProgressPoint(NamedTuple):
    """A report that a job makes when it has done the share `done` of its work.

    From then on it does `speed` seconds of work per second on its own number of GPUs. Before its
    first point it does 1.
    """

    done: float
    speed: float
    regime: int | None = None


ProgressPoints = Mapping[str, Sequence[ProgressPoint]]
"""The reports of jobs by id, each in ascending order of `done`, which is at least 0 and below 1."""

NO_REPORTS: ProgressPoints = {}


class Instant(NamedTuple):
    """The events and decisions of one moment."""

    now: float
    events: Sequence[Event]
    decisions: Sequence[Decision]


def play(
    core: Core,
    arrivals: Sequence[Arrival],
    *,
    run_times: RunTimes | None = None,
    loads: Loads | None = None,
    facts: Sequence[Fact] = (),
    running: Sequence[tuple[float, str]] = (),
    durations: Mapping[str, float] = NOTHING,
    followers: Followers | None = None,
    reports: ProgressPoints = NO_REPORTS,
) -> Iterator[Instant]:
    """Yield one step per instant until every job has ended or nothing more can happen.

    Jobs that can never start stay in the core's queues.

    Args:
        core: The core, which is changed.
        arrivals: Jobs to submit, in order of time.
        run_times: Predictor of run times. Without one every estimate is 0.
        loads: Predictor of loads. Without one every forecast is 0.
        facts: Other events, in order of time.
        running: End and id of each job that runs in the core already; no end is past.
        durations: Real run times of jobs pending in the core, by id, read when they start.
        followers: Submits jobs in response to ends (a closed loop). Without it no job depends on
            another job's end.
        reports: What jobs report while they run. The speeds are real: a job whose speed changes
            ends sooner or later than its run time says, which is its work at the nominal speed.
    """
    world = _World(core, arrivals, run_times, loads, facts, running, durations, followers, reports)
    next_time, happen, step = world.next_time, world.happen, core.step
    idle_wakes = 0
    while (now := next_time()) < inf:
        events = happen(now)
        decisions = step(now, events)
        yield Instant(now, events, decisions)
        moved: dict[str, None] = {}  # jobs that were started or resized
        for decision in decisions:
            kind = type(decision)
            if kind is StartJob:
                moved[decision.job_id] = None  # type: ignore[union-attr]
            elif kind is WakeAt:
                world.wake = decision.time  # type: ignore[union-attr]
            elif kind is PreemptJob:
                world.stopped = True
            elif kind is ResizeJob:
                world.stopped = True
                moved[decision.job_id] = None  # type: ignore[union-attr]
        world.move(now, moved)
        if type(events[0]) is TimePassed and len(events) == len(decisions) == 1 and world.over:
            idle_wakes += core.policy.due() == inf
            if idle_wakes > MAX_IDLE_WAKES:
                return
        else:
            idle_wakes = 0


class _World:
    """The future in virtual time: arrivals and other events in order, and ends in a heap."""

    def __init__(
        self,
        core: Core,
        arrivals: Sequence[Arrival],
        run_times: RunTimes | None,
        loads: Loads | None,
        facts: Sequence[Fact],
        running: Sequence[tuple[float, str]],
        durations: Mapping[str, float],
        followers: Followers | None,
        reports: ProgressPoints,
    ) -> None:
        self.wake = core.wake if core.wake > -inf else inf
        self.stopped = bool(reports)  # whether ends may be stale: of attempts that were stopped
        # early, and of jobs whose speed has changed
        self._points = reports
        self._due: list[tuple[float, int, str, int, int]] = []
        """Heap of reports: time, order, job, attempt, number of the point."""
        self._newest: dict[str, int] = {}  # order of the newest end of each job that reports
        self._reporting: list[tuple[str, int]] = []  # reports at this moment: job, number
        self._jobs = core.state.jobs
        self._updates = run_times if core.policy.needs.updates else None
        self._arrivals, self._facts = arrivals, facts
        self._run_times, self._loads, self._followers = run_times, loads, followers
        self._submits = [*(arrival.job.submit for arrival in arrivals), inf]
        self._fact_times = [*(fact.time for fact in facts), inf]
        self._next_arrival = self._next_fact = 0
        self._durations = {arrival.job.id: arrival.duration for arrival in arrivals}
        self._waiting = durations
        self._following: list[tuple[float, int, Arrival]] = []  # submission, order
        self._follow_ups = 0
        # End, order of the start, job, attempt. Ends of earlier attempts are stale.
        self._ends: list[tuple[float, int, str, int]] = []
        self._starts = 0
        for i, (end, job_id) in enumerate(running, -len(running)):
            job = self._jobs[job_id]
            self._durations[job_id] = job.work(end)
            self._ends.append((end, i, job_id, job.attempt))
        heapify(self._ends)

    @property
    def over(self) -> bool:
        """Whether nothing runs and nothing is to come."""
        return (
            not self._ends
            and not self._following
            and self._next_arrival == len(self._arrivals)
            and self._next_fact == len(self._facts)
        )

    def next_time(self) -> float:
        """Return when the next event happens, or infinity."""
        now = min(self._submits[self._next_arrival], self._fact_times[self._next_fact], self.wake)
        if self._following and self._following[0][0] < now:
            now = self._following[0][0]
        due = self._due
        while due and due[0][0] <= now:
            if self._runs(due[0][2], due[0][3]):
                now = due[0][0]
                break
            heappop(due)
        ends = self._ends
        while ends and ends[0][0] <= now:
            if not self.stopped or self._holds(ends[0]):
                return ends[0][0]
            heappop(ends)
        return now

    def _holds(self, end: tuple[float, int, str, int]) -> bool:
        """Return whether the attempt with this end still runs, at the speed of this end."""
        newest = self._newest.get(end[2])
        return self._runs(end[2], end[3]) and newest in (None, end[1])

    def _runs(self, job_id: str, attempt: int) -> bool:
        job = self._jobs.get(job_id)
        return job is not None and job.attempt == attempt and job.stream is not None

    def move(self, now: float, moved: Collection[str]) -> None:
        """Schedule the ends of jobs that were started or resized, and of those that reported."""
        for job_id in moved:
            self._run(now, job_id)
        for job_id, number in self._reporting:
            job = self._jobs.get(job_id)
            if job is not None and job.stream is not None and job_id not in moved:
                self._schedule_end(job, self._durations[job_id])
                self._schedule_report(job, number + 1)
        self._reporting.clear()

    def _run(self, now: float, job_id: str) -> None:
        job = self._jobs[job_id]
        if job.stream is not None:  # it may have been preempted in the same pass
            if job.attempt == 1:
                if self._run_times is not None:
                    self._run_times.started(now, job.job)
                if self._loads is not None:
                    self._loads.started(now, job.job, job.run_time)
            duration = self._durations.get(job_id)
            if duration is None:
                duration = self._durations[job_id] = self._waiting[job_id]
            self._schedule_end(job, duration)
            points = self._points.get(job_id)
            if points:
                # What it has reported before says how fast it goes on.
                self._schedule_report(
                    job, max(0, bisect_right(points, job.done / duration, key=itemgetter(0)) - 1)
                )

    def _schedule_end(self, job: JobState, duration: float) -> None:
        self._starts += 1
        job_id = job.job.id
        if job_id in self._points:
            self._newest[job_id] = self._starts
        heappush(self._ends, (job.end(duration), self._starts, job_id, job.attempt))

    def _schedule_report(self, job: JobState, number: int) -> None:
        """Schedule a report for when the job has done so much, or begins to work again."""
        points = self._points[job.job.id]
        if number < len(points):
            time = job.end(points[number].done * self._durations[job.job.id])
            self._starts += 1
            heappush(self._due, (time, self._starts, job.job.id, job.attempt, number))

    def happen(self, now: float) -> list[Event]:
        """Return the events of this moment, ends first. Predictors are informed and queried."""
        events: list[Event] = []
        ends = self._ends
        while ends and ends[0][0] <= now:
            end = heappop(ends)
            if not self.stopped or self._holds(end):
                self._finish(now, end[2], events)
        if self._due:
            self._report(now, events)
        while self._fact_times[self._next_fact] == now:
            events.append(self._facts[self._next_fact])
            self._next_fact += 1
        while self._submits[self._next_arrival] == now:
            self._submit(now, self._arrivals[self._next_arrival].job, events)
            self._next_arrival += 1
        while self._following and self._following[0][0] == now:
            self._submit(now, heappop(self._following)[2].job, events)
        if self._loads is not None and (updates := self._loads.changes(now)):
            events.append(ForecastUpdated(now, updates))
        if self._updates is not None and (estimates := self._updates.changes(now)):
            events.append(RunTimesUpdated(now, estimates))
        if self.wake == now:
            events.append(TimePassed(now))
            self.wake = inf
        return events

    def _report(self, now: float, events: list[Event]) -> None:
        """Append the reports of this moment. A job that ends now reports nothing more."""
        ended = {event.job_id for event in events if type(event) is JobFinished}
        while self._due and self._due[0][0] <= now:
            _, _, job_id, attempt, number = heappop(self._due)
            if job_id in ended or not self._runs(job_id, attempt):
                continue
            job, point, whole = (
                self._jobs[job_id],
                self._points[job_id][number],
                self._durations[job_id],
            )
            done = max(point.done * whole, job.done)
            speed = point.speed * job.job.speed(job.width)
            run_time = whole if done else None
            events.append(JobProgressed(now, job_id, done, speed, run_time, point.regime))
            if self._run_times is not None:
                self._run_times.progressed(now, job.job, done, speed)
            self._reporting.append((job_id, number))

    def _finish(self, now: float, job_id: str, events: list[Event]) -> None:
        events.append(JobFinished(now, job_id))
        if self._run_times is not None:
            self._run_times.finished(now, self._jobs[job_id].job, self._durations[job_id])
        if self._loads is not None:
            self._loads.finished(now, self._jobs[job_id].job)
        if self._followers is not None:
            for arrival in self._followers(now, job_id):
                self._follow_ups += 1
                self._durations[arrival.job.id] = arrival.duration
                heappush(self._following, (arrival.job.submit, self._follow_ups, arrival))

    def _submit(self, now: float, job: Job, events: list[Event]) -> None:
        estimate = 0.0 if self._run_times is None else self._run_times.run_time(job)
        if self._loads is not None:
            self._loads.submitted(now, job)
        events.append(JobSubmitted(now, job, estimate))
