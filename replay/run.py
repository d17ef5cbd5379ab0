"""One replay: the same trace through several policies, each against the FCFS baseline."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import NamedTuple

from predictors.history import HistoryRunTimes
from predictors.perfect import PerfectLoads, PerfectRunTimes
from predictors.sliding import RECENT, SlidingMaximum
from replay.trace import PoolTable, Trace
from sia import Core
from sia.decisions import MoveLoan, Refused, StartJob
from sia.events import FutureRevealed, JobFinished, PoolChanged
from sia.forecasts import Loads, RunTimes
from sia.limits import NEVER
from sia.model import FutureJob, Options, Stream
from sia.playout import Instant, play
from sia.policies import load, names

FORECASTS = ("perfect", "sliding-max", "random", "none")
DURATIONS = ("perfect", "random", "history")
BASELINE = "fcfs"

Progress = Callable[[str, int, int], None]
"""Called now and then with a policy's name, the jobs that have ended, and all jobs."""

PROGRESS_EVERY = 4096
"""Instants between two calls: often enough to look alive, too seldom to cost anything."""


class Choice(NamedTuple):
    """A policy, and what it is to foresee arrivals and run times by."""

    policy: str
    forecast: str
    durations: str


class Settings(NamedTuple):
    """What a replay is to do; nothing is measured before second `warmup` of the trace.

    `policies` are labels: the name of a policy, which then foresees by `forecast` and `durations`,
    or a name with others, like `sia@sliding-max+history`.
    """

    policies: Sequence[str]
    forecast: str = "perfect"
    durations: str = "perfect"
    options: Options = Options()
    warmup: float = 0.0
    seed: int = 0
    recent: int = RECENT
    closed_loop: bool = False

    def choice(self, label: str) -> Choice:
        """What a label stands for. Raises KeyError for what there is not."""
        policy, at, senses = label.partition("@")
        forecast, plus, durations = senses.partition("+")
        chosen = Choice(policy, forecast or self.forecast, durations or self.durations)
        known = {"policy": names(), "forecast": FORECASTS, "durations": DURATIONS}
        for what, name in zip(known, chosen, strict=True):
            if name not in known[what]:
                raise KeyError(f"there is no {what} {name!r}; there are {', '.join(known[what])}")
        if bool(at) != bool(senses) or bool(plus) != bool(durations):
            raise KeyError(f"{label!r}: write POLICY@FORECAST+DURATIONS")
        return chosen


class Loan(NamedTuple):
    """GPUs of `donor` that a spare job used for a while; `donor` may be the job's own pool."""

    job_id: str
    donor: str
    gpus: int
    start: float
    end: float


class Segment(NamedTuple):
    """A time in which a job that is preempted or resized ran without a change."""

    job_id: str
    start: float
    end: float
    width: int
    spare: bool


class Run(NamedTuple):
    """A time in which the job at that position of the trace ran without a change."""

    position: int
    start: float
    end: float
    width: int
    spare: bool


@dataclass
class Schedule:
    """What became of every job under one policy: by position in the trace, seconds.

    A job that is preempted or resized runs in segments, from the first one's start to the last
    one's end; `segments` is None under policies that run every job to completion.
    """

    policy: str
    starts: list[float | None]
    ends: list[float | None]
    spare: list[bool]
    loans: list[Loan] = field(default_factory=list)
    segments: list[Segment] | None = None
    peak_gpus: int = 0
    instants: int = 0
    seconds: float = 0.0
    """From the first event to the last decision, on the wall."""

    def runs(self, trace: Trace) -> Iterator[Run]:
        """Who runs when and how wide; jobs that never end are left out."""
        if self.segments is not None:
            positions = {arrival.job.id: i for i, arrival in enumerate(trace.arrivals)}
            for job_id, start, end, width, spare in self.segments:
                yield Run(positions[job_id], start, end, width, spare)
            return
        for i, (begun, ended) in enumerate(zip(self.starts, self.ends, strict=True)):
            if begun is not None and ended is not None:
                yield Run(i, begun, ended, trace.arrivals[i].job.width, self.spare[i])


class Result(NamedTuple):
    """A schedule, the log that it is of, and what FCFS makes of the same log."""

    trace: Trace
    baseline: Schedule
    schedule: Schedule


def replay_all(
    trace: Trace, table: PoolTable, settings: Settings, progress: Progress | None = None
) -> list[Result]:
    """The policies asked for, in their order, each against the baseline.

    In a closed loop each policy brings about a log of its own, with a baseline of its own.
    """
    baseline = replay_one(trace, table, BASELINE, settings, None, progress)
    results = []
    for label in settings.policies:
        if label == BASELINE:
            results.append(Result(trace, baseline, baseline))
        else:
            schedule = replay_one(trace, table, label, settings, baseline, progress)
            results.append(Result(trace, baseline, schedule))
    return results


def replay_one(
    trace: Trace,
    table: PoolTable,
    label: str,
    settings: Settings,
    baseline: Schedule | None,
    progress: Progress | None = None,
) -> Schedule:
    """Replay one policy. `baseline` is asked for by policies that must know the future."""
    choice = settings.choice(label)
    rule = load(choice.policy)()
    core = Core(table.pools, rule, settings.options)
    arrivals = trace.arrivals
    recorder = _Recorder(label, trace)
    facts: list[PoolChanged | FutureRevealed] = [*table.changes]
    if rule.needs.future and arrivals:
        assert baseline is not None, f"{label} needs the baseline"
        jobs = [
            FutureJob(arrival.job, arrival.duration, NEVER if start is None else start)
            for arrival, start in zip(arrivals, baseline.starts, strict=True)
        ]
        facts = [FutureRevealed(arrivals[0].job.submit, jobs), *facts]
        facts.sort(key=lambda fact: fact.time)
    run_times = run_times_of(choice.durations, trace, settings) if rule.needs.run_times else None
    loads = loads_of(choice.forecast, trace, table, settings) if rule.needs.loads else None
    began = perf_counter()
    for instant in play(core, arrivals, run_times=run_times, loads=loads, facts=facts):
        recorder.take(instant)
        if progress is not None and not recorder.schedule.instants % PROGRESS_EVERY:
            progress(label, recorder.ended, len(arrivals))
    recorder.schedule.seconds = perf_counter() - began
    if progress is not None:
        progress(label, len(arrivals), len(arrivals))
    return recorder.schedule


def run_times_of(durations: str, trace: Trace, settings: Settings) -> RunTimes:
    """The run-time predictor of that name. Raises KeyError."""
    if durations == "random":
        from predictors.chance import RandomRunTimes  # noqa: PLC0415  loads OpenSSL for its hash

        return RandomRunTimes(settings.options.windows, settings.seed)
    if durations == "history":
        return HistoryRunTimes()
    if durations != "perfect":
        raise KeyError(durations)
    return PerfectRunTimes({arrival.job.id: arrival.duration for arrival in trace.arrivals})


def loads_of(forecast: str, trace: Trace, table: PoolTable, settings: Settings) -> Loads | None:
    """The load forecast of that name; None foresees nothing. Raises KeyError."""
    windows = settings.options.windows
    pools = [pool.name for pool in table.pools]
    start = trace.arrivals[0].job.submit if trace.arrivals else 0.0
    if forecast == "none":
        return None
    if forecast == "sliding-max":
        return SlidingMaximum(pools, windows, start, settings.recent)
    if forecast == "random":
        from predictors.chance import RandomLoads  # noqa: PLC0415  as above

        return RandomLoads(pools, windows, start, settings.seed, settings.recent)
    if forecast != "perfect":
        raise KeyError(forecast)
    return PerfectLoads([arrival.job for arrival in trace.arrivals], windows)


class _Recorder:
    """Writes down starts, and opens and closes loans."""

    def __init__(self, policy: str, trace: Trace) -> None:
        jobs = len(trace.arrivals)
        self._arrivals = trace.arrivals
        self._positions = {arrival.job.id: i for i, arrival in enumerate(trace.arrivals)}
        self._running = 0  # GPUs
        self.schedule = Schedule(policy, [None] * jobs, [None] * jobs, [False] * jobs)
        self.ended = 0
        self._open: dict[str, dict[str, tuple[int, float]]] = {}  # job, donor: GPUs, since

    def take(self, instant: Instant) -> None:
        now, events, decisions = instant
        schedule, positions, arrivals = self.schedule, self._positions, self._arrivals
        schedule.instants += 1
        for event in events:
            if type(event) is JobFinished:
                self.ended += 1
                position = positions[event.job_id]
                self._running -= arrivals[position].job.width
                schedule.ends[position] = now
                if event.job_id in self._open:
                    self._close_all(event.job_id, now)
        for decision in decisions:
            if type(decision) is StartJob:
                position = positions[decision.job_id]
                self._running += arrivals[position].job.width
                schedule.starts[position] = now
                if decision.stream is Stream.SPARE:
                    schedule.spare[position] = True
                    self._open[decision.job_id] = {d: (gpus, now) for d, gpus in decision.loans}
            elif type(decision) is MoveLoan:
                self._move(decision, now)
            elif type(decision) is Refused:
                raise AssertionError(f"{schedule.policy}: {decision.job_id}: {decision.why}")
        if self._running > schedule.peak_gpus:  # noqa: PLR1730  three times as fast as max()
            schedule.peak_gpus = self._running

    def _move(self, move: MoveLoan, now: float) -> None:
        donors = self._open[move.job_id]
        left = self._close(move.job_id, move.previous, now) - move.gpus
        if left:
            donors[move.previous] = (left, now)
        more = self._close(move.job_id, move.donor, now) if move.donor in donors else 0
        donors[move.donor] = (more + move.gpus, now)

    def _close_all(self, job_id: str, now: float) -> None:
        for donor in [*self._open[job_id]]:
            self._close(job_id, donor, now)
        del self._open[job_id]

    def _close(self, job_id: str, donor: str, now: float) -> int:
        gpus, since = self._open[job_id].pop(donor)
        if now > since:
            self.schedule.loans.append(Loan(job_id, donor, gpus, since, now))
        return gpus
