"""Run a scheduler forward in virtual time: for replays, estimates and what-if questions.

`Playout` has the loop and the ends of running attempts. `play` runs a core with it; the daemon runs
its whole engine with it (`daemon.answers.simulate.forward`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from heapq import heappop, heappush
from math import inf
from operator import itemgetter
from typing import Any, Generic, NamedTuple, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from sia.contract.policy import next_multiple
from sia.core.core import Core
from sia.decisions import (
    Decision,
    JobPromised,
    JobRejected,
    PreemptJob,
    ProposalRefused,
    ResizeJob,
    RowRecorded,
    SolveProgram,
    StartJob,
    WakeAt,
)
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
    PolicyTuned,
    PoolChanged,
    PriorityChanged,
    ProgramSolved,
    RunTimesUpdated,
    TimePassed,
)
from sia.forecasts import Loads, RunTimes
from sia.limits import MAX_ANSWERS, MAX_IDLE_WAKES
from sia.model import Job
from sia.state.state import JobState


class Arrival(NamedTuple):
    """A job that is submitted at `job.submit`, and its real run time in seconds."""

    job: Job
    duration: float


Followers = Callable[[float, str], Sequence[Arrival]]
"""Called with time and id of each job that ends; returns jobs to submit then or later."""


Fact = (
    PolicyTuned | PoolChanged | LendingSwitched | GpusOut | NodeOut | NodeBack | PriorityChanged
    | FutureRevealed
)  # fmt: skip
"""Events besides submissions and ends of jobs."""


NOTHING: Mapping[str, float] = {}


class ProgressPoint(NamedTuple):
    """A report that a job makes when it has done the share `done` of its work.

    From then on it does `speed` seconds of work per second on its own number of GPUs. Before its
    first report its speed is 1.
    """

    done: float
    speed: float
    regime: int | None = None
    widths: tuple[int, int] | None = None
    """The smallest and the largest width that its trials allow from then on, in GPUs. Only elastic
    policies get it."""


ProgressPoints = Mapping[str, Sequence[ProgressPoint]]
"""The reports of jobs by id, each in ascending order of `done`, which is at least 0 and below 1."""

NO_REPORTS: ProgressPoints = {}


Solve = Callable[[float, SolveProgram], ProgramSolved]
"""Called with the time and a request; returns the answer, whose time is when it arrives."""


def no_solver(now: float, asked: SolveProgram) -> ProgramSolved:
    """Return the answer `failed`: without a solver, the policy decides without a solution."""
    return ProgramSolved(now, asked.request, "failed")


NO_NEWS = (TimePassed, ProgramSolved)
NO_CHANGE = (
    WakeAt, SolveProgram, ProposalRefused, JobPromised, JobRejected, RowRecorded,
)  # fmt: skip
"""Events and decisions that have no effect if nothing else happens in the same step."""


class Instant(Struct, frozen=True, gc=False):
    """The events and decisions of one moment."""

    now: float
    events: Sequence[Event]
    decisions: Sequence[Decision]

    def __iter__(self) -> Iterator[Any]:
        """Yield the moment, its events and its decisions, to be unpacked."""
        return iter((self.now, self.events, self.decisions))


End = tuple[float, int, str, int]
"""The end of an attempt: time, order of scheduling, job, attempt."""


_Step = TypeVar("_Step")


class Playout(ABC, Generic[_Step]):
    """Virtual time: one step at each instant at which something happens.

    A subclass makes the steps. It schedules the end of each attempt that a step starts, and gets
    the attempts that have ended by an instant. Ends at the same instant come in order of starts.

    Attributes:
        due: When the next step is due if no attempt ends before, or infinity; set by each step.
        stops: Whether scheduled ends may become invalid, because attempts are stopped or change
            their speed. `is_valid` is called only then, because most replays stop no job.
    """

    def __init__(self, *, stops: bool, solve: Solve = no_solver) -> None:
        """Start without running attempts, and with no step due; `solve` solves programs."""
        self.due = inf
        self.stops = stops
        self._solve = solve
        self._answer: ProgramSolved | None = None  # to the open request
        self._heard, self._answers = -inf, 0  # time of the latest answer, number at that time
        self._scheduled = 0
        self._ends: list[End] = []

    def instants(self, until: float = inf) -> Iterator[_Step]:
        """Yield each step up to a time, or until nothing more can happen."""
        ends, step, next_time = self._ends, self.step, self.next_time
        while (now := next_time()) <= until and now < inf:
            ended = []
            while ends and ends[0][0] <= now:
                end = heappop(ends)
                if not self.stops or self.is_valid(end):
                    ended.append(end)
            yield step(now, ended)

    def next_time(self) -> float:
        """Return when the next step is due, or infinity."""
        now, ends = self.due, self._ends
        while ends and ends[0][0] <= now:
            if not self.stops or self.is_valid(ends[0]):
                return ends[0][0]
            heappop(ends)
        return now

    def schedule_end(self, end: float, job_id: str, attempt: int) -> None:
        """Schedule the end of an attempt."""
        self._scheduled += 1
        heappush(self._ends, (end, self._scheduled, job_id, attempt))

    def ask(self, now: float, asked: SolveProgram, tick: float) -> None:
        """Solve a program; the answer replaces an earlier one that has not been delivered.

        After `MAX_ANSWERS` answers at one instant, the next one is delivered a tick (seconds)
        later.
        """
        answer = self._solve(now, asked)
        if answer.time == self._heard and self._answers == MAX_ANSWERS:
            answer = replace(answer, time=next_multiple(now, tick))
        self._answer = answer

    def heard(self, now: float) -> ProgramSolved | None:
        """Return the answer that is due at this time, and forget it; None if there is none."""
        answer = self._answer
        if answer is None or answer.time != now:
            return None
        self._answers = self._answers + 1 if self._heard == now else 1
        self._heard, self._answer = now, None
        return answer

    @abstractmethod
    def step(self, now: float, ended: Sequence[End]) -> _Step:
        """Make the step of this instant, at which these attempts have ended."""

    @abstractmethod
    def is_valid(self, end: End) -> bool:
        """Return whether the attempt still runs and ends then; other ends are ignored."""


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
    solve: Solve = no_solver,
    asked: SolveProgram | None = None,
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
        durations: Real run times by job id: of jobs that are pending in the core, read when they
            start, and of running jobs whose run time cannot be computed exactly from their end.
        followers: Submits jobs in response to ends (a closed loop). Without it no job depends on
            another job's end.
        reports: Reports of jobs while they run. The speeds are real: a job whose speed changes
            ends earlier or later than its run time, which is its work at the nominal speed.
        solve: Solves the policy's programs. A newer request replaces an unanswered one. If answers
            take no time, at most `MAX_ANSWERS` are delivered at one instant and the next one at the
            following tick, so that a policy that asks again at each answer does not stop time.
        asked: The core's open request, if it has one. It is solved when the playout begins.
    """
    playout = _CorePlayout(
        core, arrivals, run_times, loads, facts, running, durations, followers, reports, solve
    )
    if asked is not None:
        playout.begin_with(asked)
    return playout.instants()


def _is_idle(events: Sequence[Event], decisions: Sequence[Decision]) -> bool:
    """Return whether a step had no events or decisions except wake-ups and the like."""
    return (
        bool(decisions)
        and all(type(event) in NO_NEWS for event in events)
        and all(type(decision) in NO_CHANGE for decision in decisions)
    )


class _Durations(dict[str, float]):
    """Real run times by job; those of pending jobs are read when they start."""

    def __init__(self, pending: Mapping[str, float]) -> None:
        super().__init__()
        self._pending = pending

    def __missing__(self, job_id: str) -> float:
        duration = self[job_id] = self._pending[job_id]
        return duration


class _CorePlayout(Playout[Instant]):
    """A playout of a core, with arrivals and other events in order, and predictors."""

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
        solve: Solve,
    ) -> None:
        super().__init__(stops=bool(reports), solve=solve)
        self._points = reports
        self._reports: list[tuple[float, int, str, int, int]] = []
        """Heap of reports: time, order, job, attempt, number of the point."""
        self._newest: dict[str, int] = {}  # order of the newest end of each job that reports
        self._reporting: list[tuple[str, int]] = []  # reports at this moment: job, number
        self._core, self._jobs = core, core.state.jobs
        self._step = core.step
        self._wake = core.wake
        self._idle_wakes = 0
        self._updates = run_times if core.policy.needs.updates else None
        self._run_times, self._loads, self._followers = run_times, loads, followers
        self._predicts = run_times is not None or loads is not None
        planned: list[tuple[float, Fact | Arrival]] = [(fact.time, fact) for fact in facts]
        planned += ((arrival.job.submit, arrival) for arrival in arrivals)
        planned.sort(key=itemgetter(0))  # at the same time, facts precede arrivals
        self._planned = [event for _, event in planned]
        self._times = [*(time for time, _ in planned), inf]
        self._next = 0
        self._durations = _Durations(durations)
        self._durations.update((arrival.job.id, arrival.duration) for arrival in arrivals)
        for end, job_id in running:
            job = self._jobs[job_id]
            known = durations[job_id] if job_id in durations else job.work(end)
            self._durations[job_id] = known
            self.schedule_end(end, job_id, job.attempt)
        self._following: list[tuple[float, int, Arrival]] = []  # submission, order
        self._follow_ups = 0
        self.due = min(self._times[0], self._wake)

    def begin_with(self, asked: SolveProgram) -> None:
        """Solve a request that was open before the first step."""
        state = self._core.state
        self.ask(self.due if self.due < inf else state.now, asked, state.options.tick)
        assert self._answer is not None, "it has been solved"
        self.due = min(self.due, self._answer.time)

    def is_valid(self, end: End) -> bool:
        _, order, job_id, attempt = end
        return self._runs(job_id, attempt) and self._newest.get(job_id, order) == order

    def _runs(self, job_id: str, attempt: int) -> bool:
        job = self._jobs.get(job_id)
        return job is not None and job.attempt == attempt and job.stream is not None

    def step(self, now: float, ended: Sequence[End]) -> Instant:
        """Inform and query the predictors, step the core, and schedule the ends of what starts."""
        events = self._happen(now, ended)
        decisions = self._step(now, events)
        if decisions:
            self._follow(now, decisions)
        if self._reporting:
            self._continue(decisions)
        if type(events[0]) in NO_NEWS and self._over and _is_idle(events, decisions):
            self._idle_wakes += self._core.policy.due() == inf
            if self._idle_wakes > MAX_IDLE_WAKES:
                # no event will follow, so the playout ends
                self._wake, self._answer = inf, None
        else:
            self._idle_wakes = 0
        due = self._times[self._next]
        if self._wake < due:  # noqa: PLR1730  three times as fast as min()
            due = self._wake
        if self._answer is not None:
            due = min(due, self._answer.time)
        if self._following:
            due = min(due, self._following[0][0])
        if self._reports:
            due = min(due, self._next_report())
        self.due = due
        return Instant(now, events, decisions)

    def _next_report(self) -> float:
        """Return when a running job makes the next report, or infinity."""
        while self._reports and not self._runs(*self._reports[0][2:4]):
            heappop(self._reports)
        return self._reports[0][0] if self._reports else inf

    def _happen(self, now: float, ended: Sequence[End]) -> list[Event]:
        """Return the events of this moment, ends first. Predictors are informed and queried."""
        events: list[Event] = []
        for _, _, job_id, _ in ended:
            self._finish(now, job_id, events)
        if self._reports:
            self._report(now, events)
        while self._times[self._next] == now:
            event = self._planned[self._next]
            self._next += 1
            if type(event) is Arrival:
                self._submit(now, event.job, events)
            else:
                events.append(event)  # type: ignore[arg-type]
        while self._following and self._following[0][0] == now:
            self._submit(now, heappop(self._following)[2].job, events)
        if self._loads is not None and (updates := self._loads.changes(now)):
            events.append(ForecastUpdated(now, updates))
        if self._updates is not None and (estimates := self._updates.changes(now)):
            events.append(RunTimesUpdated(now, estimates))
        if self._answer is not None and (answer := self.heard(now)) is not None:
            events.append(answer)
        if self._wake == now:
            events.append(TimePassed(now))
            self._wake = inf
        return events

    def _follow(self, now: float, decisions: Sequence[Decision]) -> None:
        """Carry out decisions: ends of jobs, the next wake-up, and programs to solve."""
        moved: dict[str, None] = {}  # a job may be started and resized in the same pass
        for decision in decisions:
            kind = type(decision)
            if kind is StartJob:
                moved[decision.job_id] = None  # type: ignore[union-attr]
            elif kind is WakeAt:
                self._wake = decision.time  # type: ignore[union-attr]
            elif kind is SolveProgram:
                self.ask(now, decision, self._core.state.options.tick)  # type: ignore[arg-type]
            elif kind is PreemptJob:
                self.stops = True
            elif kind is ResizeJob:
                self.stops = True
                moved[decision.job_id] = None  # type: ignore[union-attr]
        if moved:
            self._run(now, moved)

    def _run(self, now: float, moved: Iterable[str]) -> None:
        """Schedule the ends and reports of jobs that were started or resized."""
        for job_id in moved:
            job = self._jobs[job_id]
            if job.stream is None:
                continue  # it was preempted in the same pass
            if self._predicts and job.runs == 1:
                self._started(now, job)
            duration = self._durations[job_id]
            self.schedule_end(job.end(duration), job_id, job.attempt)
            if job_id in self._points:
                self._schedule_reports(job, duration)

    def _started(self, now: float, job: JobState) -> None:
        if self._run_times is not None:
            self._run_times.started(now, job.job)
        if self._loads is not None:
            self._loads.started(now, job.job, job.run_time)

    @property
    def _over(self) -> bool:
        """Whether nothing runs and nothing is to come."""
        return not self._ends and not self._following and self._next == len(self._planned)

    def _schedule_reports(self, job: JobState, duration: float) -> None:
        """Schedule the reports of a job that starts or resumes, or was resized."""
        job_id, points = job.job.id, self._points[job.job.id]
        self._newest[job_id] = self._scheduled
        if points:
            # The last point that it has reached has its present speed. Compare products, as
            # `_report` does: with rounded quotients it could report an earlier point again forever.
            reached = bisect_right(points, job.done, key=lambda point: point.done * duration)
            self._schedule_report(job, max(0, reached - 1))

    def _schedule_report(self, job: JobState, number: int) -> None:
        """Schedule a report for when the job reaches its share of work, or works again."""
        points = self._points[job.job.id]
        if number < len(points):
            time = job.end(points[number].done * self._durations[job.job.id])
            self._scheduled += 1
            heappush(self._reports, (time, self._scheduled, job.job.id, job.attempt, number))

    def _report(self, now: float, events: list[Event]) -> None:
        """Append the reports of this moment. A job that ends now reports nothing more."""
        ended = {event.job_id for event in events if type(event) is JobFinished}
        while self._reports and self._reports[0][0] <= now:
            _, _, job_id, attempt, number = heappop(self._reports)
            if job_id in ended or not self._runs(job_id, attempt):
                continue
            job, point = self._jobs[job_id], self._points[job_id][number]
            whole = self._durations[job_id]
            done = max(point.done * whole, job.done)
            speed = point.speed * job.job.speed(job.width) / job.slowdown
            run_time = whole if done else None
            widths = None
            if point.widths is not None and self._core.policy.narrows:
                least, most = point.widths
                widths = min(least, job.job.width), max(most, job.job.width)
            events.append(
                JobProgressed(now, job_id, done, speed, run_time, point.regime, widths=widths)
            )
            if self._run_times is not None:
                self._run_times.progressed(now, job.job, done, speed)
            self._reporting.append((job_id, number))

    def _continue(self, decisions: Sequence[Decision]) -> None:
        """Schedule the end and the next report of jobs that have reported and were not resized."""
        moved = {d.job_id for d in decisions if isinstance(d, StartJob | ResizeJob)}
        for job_id, number in self._reporting:
            job = self._jobs.get(job_id)
            if job is not None and job.stream is not None and job_id not in moved:
                self.schedule_end(job.end(self._durations[job_id]), job_id, job.attempt)
                self._newest[job_id] = self._scheduled
                self._schedule_report(job, number + 1)
        self._reporting.clear()

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
