"""Schedules, and the recorder that builds one while the core runs."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import inf
from typing import NamedTuple

from replay.deadlines.rewards import GUARANTEED, IN_PROFILER, LOST, UNGUARANTEED, Promised
from replay.logs.trace import Trace
from replay.run.solving import ReplaySolver
from sia.core.playout import Instant
from sia.decisions import (
    Decision,
    DedicateJob,
    JobPromised,
    JobRejected,
    JobTried,
    MoveLoan,
    PreemptJob,
    ProposalRefused,
    ResizeJob,
    RowRecorded,
    StartJob,
    WakeAt,
)
from sia.events import Event, ForecastUpdated, JobFinished, JobSubmitted
from sia.model import RESTART, Nodes, Stream

CACHED_PLACEMENTS = 65536
"""Placements whose text is cached: most jobs are narrow, so a few thousand placements recur."""


class LoanSpan(NamedTuple):
    """GPUs of a lender (`donor`) that a spare job used from `start` to `end`.

    The lender may be the job's own pool.
    """

    job_id: str
    donor: str
    gpus: float
    start: float
    end: float


class Segment(NamedTuple):
    """A period in which a job ran on the same GPUs, for policies that preempt or resize jobs."""

    job_id: str
    start: float
    end: float
    width: float
    """Number of GPUs; fractional only in fluid sharing and with GPUs cut into parts."""
    spare: bool
    nodes: Nodes = ()
    """As in `Schedule`."""
    lost: float = 0.0
    """GPU-seconds of work, at the job's own width, that the stop at the segment's end lost."""
    killed: bool = False
    """Whether this stop lost all of the job's work."""


class _Stop(NamedTuple):
    """The latest stop of a job, whose cost is due when the job resumes."""

    segment: int
    """Index of the segment that it ended."""
    done: float
    """Seconds of work, at the job's own width, done before it."""
    cost: float
    """Seconds that resuming takes."""


class RunSpan(NamedTuple):
    """A period in which the job at `position` of the trace ran on the same GPUs."""

    position: int
    start: float
    end: float
    width: float
    spare: bool
    nodes: Nodes = ()
    """As in `Schedule`."""


class ForecastLog:
    """The load forecasts that a policy was given, in order of time, one entry for each change."""

    def __init__(self) -> None:
        """Start empty."""
        self.times = array("d")
        self.pools = array("l")
        """Indices of the pools in the pool table."""
        self.windows = array("l")
        self.gpus = array("q")

    def add(self, event: ForecastUpdated, places: Mapping[str, int]) -> None:
        """Add the changes of one event; `places` are the indices of the pools."""
        for load in event.loads:
            self.times.append(event.time)
            self.pools.append(places[load.pool])
            self.windows.append(load.window)
            self.gpus.append(load.gpus)


@dataclass
class Schedule:
    """The start and end of every job under one policy, in seconds, by position in the trace.

    A job that is preempted or resized runs in segments; its start and end are those of the first
    and last segment. `segments` is None for policies that run every job to completion.
    """

    policy: str
    starts: list[float | None]
    ends: list[float | None]
    spare: list[bool]
    loans: list[LoanSpan] = field(default_factory=list)
    segments: list[Segment] | None = None
    stops: Counter[str] = field(default_factory=Counter)
    """Number of stops of each job, by ID; ends of trials and stops in the instant of the start do
    not count."""
    nodes: list[Nodes] | None = None
    """With cells: the GPUs on which each job ran; `nodes_text` formats them."""
    predictions: list[float | None] | None = None
    """The end of each job as predicted at its submission; None without predictions."""
    fair_ends: list[float | None] | None = None
    """With predictions: the end of each job under fluid fair share of the same log."""
    too_wide: int = 0
    """Number of jobs that are wider than their pool; only elastic policies run them."""
    peak_gpus: float = 0
    reports: int = 0
    """Number of progress reports; a job that resumes repeats its latest one."""
    solver: ReplaySolver | None = None
    """The solver of the policy's programs, if it needs one."""
    promises: dict[str, Promised] = field(default_factory=dict)
    """By job ID, what became of the deadlines that the policy was asked to promise."""
    tables: dict[str, list[tuple[float | str, ...]]] = field(default_factory=dict)
    """The rows of the tables that the policy keeps, by table name."""
    forecasts: ForecastLog | None = None
    """None for policies without load forecasts, or with forecasts that are read from the log."""
    estimates: list[float | None] | None = None
    """The estimated run time of each job at its submission; None as for `forecasts`."""
    instants: int = 0
    seconds: float = 0.0
    """Wall-clock time from the first event to the last decision."""

    def runs(self, trace: Trace) -> Iterator[RunSpan]:
        """Yield the period and width of every run, by segment if there are segments."""
        if self.segments is not None:
            positions = {arrival.job.id: i for i, arrival in enumerate(trace.arrivals)}
            for job_id, start, end, width, spare, nodes, *_ in self.segments:
                yield RunSpan(positions[job_id], start, end, width, spare, nodes)
            return
        places = self.nodes or [()] * len(trace.arrivals)
        for i, (begun, ended) in enumerate(zip(self.starts, self.ends, strict=True)):
            if begun is not None and ended is not None:
                width = trace.arrivals[i].job.width
                yield RunSpan(i, begun, ended, width, self.spare[i], places[i])

    def leave_out_trials(self) -> None:
        """Recompute the peak of GPUs in use without trials, which have no segments. O(n log n)."""
        if "profiling" not in self.tables:
            return
        changes = [(each.end, -float(each.width)) for each in self.segments or ()]
        changes += [(each.start, float(each.width)) for each in self.segments or ()]
        running = most = 0.0
        for _, gpus in sorted(changes):  # at equal times, ends come first
            running += gpus
            most = max(most, running)
        self.peak_gpus = round(most)


class Recorder:
    """Build a schedule from the events and decisions of a core."""

    def __init__(self, label: str, trace: Trace, *, segments: bool, cells: bool = False) -> None:
        """Start an empty schedule of the jobs of `trace`.

        `segments` is true for policies that preempt or resize jobs, `cells` if jobs have a
        placement.
        """
        jobs = len(trace.arrivals)
        self._arrivals = trace.arrivals
        self._positions = {arrival.job.id: i for i, arrival in enumerate(trace.arrivals)}
        self._widths = [arrival.job.width for arrival in trace.arrivals]
        self._running = 0  # GPUs
        self.schedule = Schedule(label, [None] * jobs, [None] * jobs, [False] * jobs)
        if segments:
            self.schedule.segments = []
        if cells:
            self.schedule.nodes = [()] * jobs
        self.ended = 0
        self._foresees = False
        self._places: Mapping[str, int] = {}
        self._lent: dict[str, dict[str, tuple[int, float]]] = {}  # job, donor: GPUs, since
        self._trials: dict[str, None] = {}  # jobs whose present run is a trial
        self._segments: dict[str, tuple[float, int, bool, Nodes]] = {}  # since, GPUs, spare, nodes
        self._owing: dict[str, _Stop] = {}  # jobs with their own cost of a stop

    def take(self, instant: Instant) -> None:
        """Record the events and decisions of one instant."""
        now, decisions = instant.now, instant.decisions
        schedule, positions = self.schedule, self._positions
        schedule.instants += 1
        for event in instant.events:
            if type(event) is JobFinished:
                self.ended += 1
                position = positions[event.job_id]
                self._running -= self._widths[position]
                schedule.ends[position] = now
                if event.job_id in self._lent:
                    self._close_loans(event.job_id, now)
                if event.job_id in self._trials:
                    self._end_trial(event.job_id, position)
                if event.job_id in self._segments:
                    self._close_segment(event.job_id, now)
        if self._foresees:
            self._record_forecasts(instant.events)
        if decisions:
            self._carry_out(decisions, now)
        if self._running > schedule.peak_gpus:  # noqa: PLR1730  three times as fast as max()
            schedule.peak_gpus = self._running

    def record_forecasts(self, pools: Sequence[str], *, loads: bool, run_times: bool) -> None:
        """Record forecasts from now on, of load, of run times or of both."""
        self._places = {pool: i for i, pool in enumerate(pools)}
        self._foresees = loads or run_times
        if loads:
            self.schedule.forecasts = ForecastLog()
        if run_times:
            self.schedule.estimates = [None] * len(self._arrivals)

    def _record_forecasts(self, events: Sequence[Event]) -> None:
        forecasts, estimates = self.schedule.forecasts, self.schedule.estimates
        for event in events:
            if type(event) is ForecastUpdated and forecasts is not None:
                forecasts.add(event, self._places)
            elif type(event) is JobSubmitted and estimates is not None:
                estimates[self._positions[event.job.id]] = event.run_time

    def _carry_out(self, decisions: Sequence[Decision], now: float) -> None:
        for decision in decisions:
            if type(decision) is StartJob:
                self._start(decision, now)
            elif type(decision) is WakeAt:
                continue  # checked first because it is the most frequent of the others
            elif type(decision) is PreemptJob:
                is_trial = decision.job_id in self._trials  # its end is no stop
                if now > self._segments[decision.job_id][0] and not is_trial:
                    self.schedule.stops[decision.job_id] += 1
                self._stop(decision.job_id, now, kill=decision.kill)
                position = self._positions[decision.job_id]
                if self.schedule.starts[position] == now:  # it has not run yet
                    self.schedule.starts[position] = None
            elif type(decision) is ResizeJob:
                self._stop(decision.job_id, now)
                self._open_segment(decision, now)
            elif type(decision) is DedicateJob:
                self._close_loans(decision.job_id, now)
            elif type(decision) is MoveLoan:
                self._move(decision, now)
            else:
                self._note(decision)

    def _note(self, decision: Decision) -> None:
        """Record promises, trials and rows of tables.

        Raises AssertionError for a proposal that is wrong in any state.
        """
        schedule = self.schedule
        if type(decision) is ProposalRefused and decision.impossible:
            raise AssertionError(f"{schedule.policy}: {decision.job_id}: {decision.why}")
        if type(decision) is JobTried:
            self._trials[decision.job_id] = None
        elif type(decision) is RowRecorded:
            schedule.tables.setdefault(decision.table, []).append(decision.row)
        elif type(decision) is JobPromised:
            first = Promised(GUARANTEED, decision.planned)
            schedule.promises.setdefault(decision.job_id, first)
        elif type(decision) is JobRejected:
            before = schedule.promises.get(decision.job_id)
            kept = before is not None and before.label != UNGUARANTEED
            planned = None if before is None else before.planned
            label = LOST if kept else UNGUARANTEED
            schedule.promises[decision.job_id] = Promised(label, planned)

    def _start(self, start: StartJob, now: float) -> None:
        schedule, position = self.schedule, self._positions[start.job_id]
        if schedule.nodes is not None:
            schedule.nodes[position] = start.nodes
        if schedule.segments is not None:
            if schedule.starts[position] is None and start.job_id not in self._trials:
                schedule.starts[position] = now
            self._open_segment(start, now)
            return
        self._running += self._widths[position]
        schedule.starts[position] = now
        if start.stream is Stream.SPARE:
            schedule.spare[position] = True
            self._lent[start.job_id] = {donor: (gpus, now) for donor, gpus in start.loans}

    def _open_segment(self, start: StartJob | ResizeJob, now: float) -> None:
        """Open a segment. A job that borrows in any segment counts as spare."""
        position, spare = self._positions[start.job_id], start.stream is Stream.SPARE
        width = start.width or self._arrivals[position].job.width
        self._widths[position] = width
        self._running += width
        nodes = start.nodes if isinstance(start, StartJob) else ()
        self._segments[start.job_id] = (now, width, spare, nodes)
        if spare:
            self.schedule.spare[position] = True
            self._lent[start.job_id] = {donor: (gpus, now) for donor, gpus in start.loans}

    def _end_trial(self, job_id: str, position: int) -> None:
        """Record that a job ended in its trial."""
        del self._trials[job_id]
        self.schedule.starts[position] = self._segments[job_id][0]
        if self._arrivals[position].job.deadline is not None:
            self.schedule.promises[job_id] = Promised(IN_PROFILER)

    def _stop(self, job_id: str, now: float, *, kill: bool = False) -> None:
        self._running -= self._segments[job_id][1]
        if job_id in self._trials:  # the work of a trial is lost
            del self._trials[job_id], self._segments[job_id]
            self._lent.pop(job_id, None)
        else:
            job = self._arrivals[self._positions[job_id]].job
            killed = kill or job.preemptible == RESTART
            cost = inf if killed else job.stop_seconds or 0.0
            self._close_segment(job_id, now, cost, killed=killed)
        if job_id in self._lent:
            self._close_loans(job_id, now)

    def _close_segment(
        self, job_id: str, now: float, cost: float = 0.0, *, killed: bool = False
    ) -> None:
        """Close a segment, and record the work that the stop at its end loses."""
        since, width, spare, nodes = self._segments.pop(job_id)
        segments, job = self.schedule.segments, self._arrivals[self._positions[job_id]].job
        assert segments is not None, "the policy does not preempt"
        if now <= since:
            return
        if not cost and job.preemptible is None:  # most segments end like this
            segments.append(Segment(job_id, since, now, width, spare, nodes))
            return
        rate = job.speed(width) * job.width if job.demand else width
        lost = min(cost, now - since) * rate
        if job.stop_seconds:
            paid = 0.0
            if (stop := self._owing.pop(job_id, None)) is not None:
                paid = min(stop.cost, now - since)
                segments[stop.segment] = segments[stop.segment]._replace(lost=paid * rate)
            if cost and not killed:
                done = (stop.done if stop else 0.0) + (now - since - paid) * job.speed(width)
                self._owing[job_id] = _Stop(len(segments), done, min(cost, done))
                lost = min(cost, done) * rate  # provisional, until it resumes
        segments.append(Segment(job_id, since, now, width, spare, nodes, lost, killed))

    def _move(self, move: MoveLoan, now: float) -> None:
        donors = self._lent[move.job_id]
        left = self._close(move.job_id, move.previous, now) - move.gpus
        if left:
            donors[move.previous] = (left, now)
        more = self._close(move.job_id, move.donor, now) if move.donor in donors else 0
        donors[move.donor] = (more + move.gpus, now)

    def _close_loans(self, job_id: str, now: float) -> None:
        for donor in [*self._lent[job_id]]:
            self._close(job_id, donor, now)
        del self._lent[job_id]

    def _close(self, job_id: str, donor: str, now: float) -> int:
        gpus, since = self._lent[job_id].pop(donor)
        if now > since:
            self.schedule.loans.append(LoanSpan(job_id, donor, gpus, since, now))
        return gpus


def in_gpus(result: Result, trace: Trace, parts: int) -> Result:
    """Convert the result of a replay in parts of GPUs back to GPUs; `trace` is the log in GPUs."""
    return result._replace(
        trace=trace,
        baseline=_in_gpus(result.baseline, parts),
        schedule=_in_gpus(result.schedule, parts),
    )


def _in_gpus(schedule: Schedule, parts: int) -> Schedule:
    segments = schedule.segments
    return replace(
        schedule,
        segments=segments
        and [s._replace(width=_gpus(s.width, parts), lost=s.lost / parts) for s in segments],
        loans=[loan._replace(gpus=_gpus(loan.gpus, parts)) for loan in schedule.loans],
        peak_gpus=_gpus(schedule.peak_gpus, parts),
    )


def _gpus(width: float, parts: int) -> float:
    """Convert a number of parts to GPUs, as an int if it is whole."""
    gpus = width / parts
    return int(gpus) if gpus == int(gpus) else gpus


@lru_cache(maxsize=CACHED_PLACEMENTS)
def nodes_text(nodes: Nodes) -> str:
    """Format GPUs by node, like `n3:0-3;n4:5,7`."""
    return ";".join(f"{node}:{_ranges(gpus)}" for node, gpus in nodes)


def _ranges(numbers: Sequence[int]) -> str:
    """Format numbers as ranges: `0-3,5` for 0, 1, 2, 3, 5."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in parts)


class ClosedLoopLog(NamedTuple):
    """The original log of a closed loop, and the effect of the loop (`replay.run.closed_loop`)."""

    log: Trace
    sooner: float | None
    """Mean time, in seconds, by which measured jobs end earlier than under FCFS on `log`."""


class Result(NamedTuple):
    """A schedule, its log, and the FCFS baseline of the same log."""

    trace: Trace
    baseline: Schedule
    schedule: Schedule
    loop: ClosedLoopLog | None = None
