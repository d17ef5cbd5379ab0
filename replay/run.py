"""One replay: the same trace through several policies, each against the FCFS baseline."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
from sia.policies import load

FORECASTS = ("perfect", "sliding-max", "random", "none")
DURATIONS = ("perfect", "random", "history")
BASELINE = "fcfs"

Progress = Callable[[str, int, int], None]
"""Called now and then with a policy's name, the jobs that have ended, and all jobs."""

PROGRESS_EVERY = 4096
"""Instants between two calls: often enough to look alive, too seldom to cost anything."""


class Settings(NamedTuple):
    """What a replay is to do; nothing is measured before second `warmup` of the trace."""

    policies: Sequence[str]
    forecast: str = "perfect"
    durations: str = "perfect"
    options: Options = Options()
    warmup: float = 0.0
    seed: int = 0
    recent: int = RECENT


class Loan(NamedTuple):
    """GPUs of `donor` that a spare job used for a while; `donor` may be the job's own pool."""

    job_id: str
    donor: str
    gpus: int
    start: float
    end: float


@dataclass
class Schedule:
    """What became of every job under one policy: by position in the trace, seconds."""

    policy: str
    starts: list[float | None]
    ends: list[float | None]
    spare: list[bool]
    loans: list[Loan] = field(default_factory=list)
    peak_gpus: int = 0
    instants: int = 0
    seconds: float = 0.0
    """From the first event to the last decision, on the wall."""


def replay_all(
    trace: Trace, table: PoolTable, settings: Settings, progress: Progress | None = None
) -> tuple[Schedule, list[Schedule]]:
    """The baseline, and the schedules of the policies asked for, in their order."""
    baseline = replay_one(trace, table, BASELINE, settings, None, progress)
    schedules = [
        baseline
        if name == BASELINE
        else replay_one(trace, table, name, settings, baseline, progress)
        for name in settings.policies
    ]
    return baseline, schedules


def replay_one(
    trace: Trace,
    table: PoolTable,
    policy: str,
    settings: Settings,
    baseline: Schedule | None,
    progress: Progress | None = None,
) -> Schedule:
    """Replay one policy. `baseline` is asked for by policies that must know the future."""
    rule = load(policy)()
    core = Core(table.pools, rule, settings.options)
    arrivals = trace.arrivals
    recorder = _Recorder(policy, trace)
    facts: list[PoolChanged | FutureRevealed] = [*table.changes]
    if rule.needs.future and arrivals:
        assert baseline is not None, f"{policy} needs the baseline"
        jobs = [
            FutureJob(arrival.job, arrival.duration, NEVER if start is None else start)
            for arrival, start in zip(arrivals, baseline.starts, strict=True)
        ]
        facts = [FutureRevealed(arrivals[0].job.submit, jobs), *facts]
        facts.sort(key=lambda fact: fact.time)
    run_times = run_times_of(trace, settings) if rule.needs.run_times else None
    loads = loads_of(trace, table, settings) if rule.needs.loads else None
    began = perf_counter()
    for instant in play(core, arrivals, run_times=run_times, loads=loads, facts=facts):
        recorder.take(instant)
        if progress is not None and not recorder.schedule.instants % PROGRESS_EVERY:
            progress(policy, recorder.ended, len(arrivals))
    recorder.schedule.seconds = perf_counter() - began
    if progress is not None:
        progress(policy, len(arrivals), len(arrivals))
    return recorder.schedule


def run_times_of(trace: Trace, settings: Settings) -> RunTimes:
    """The run-time predictor of that name. Raises KeyError."""
    if settings.durations == "random":
        from predictors.chance import RandomRunTimes  # noqa: PLC0415  loads OpenSSL for its hash

        return RandomRunTimes(settings.options.windows, settings.seed)
    if settings.durations == "history":
        return HistoryRunTimes()
    if settings.durations != "perfect":
        raise KeyError(settings.durations)
    return PerfectRunTimes({arrival.job.id: arrival.duration for arrival in trace.arrivals})


def loads_of(trace: Trace, table: PoolTable, settings: Settings) -> Loads | None:
    """The load forecast of that name; None foresees nothing. Raises KeyError."""
    windows = settings.options.windows
    pools = [pool.name for pool in table.pools]
    start = trace.arrivals[0].job.submit if trace.arrivals else 0.0
    if settings.forecast == "none":
        return None
    if settings.forecast == "sliding-max":
        return SlidingMaximum(pools, windows, start, settings.recent)
    if settings.forecast == "random":
        from predictors.chance import RandomLoads  # noqa: PLC0415  as above

        return RandomLoads(pools, windows, start, settings.seed, settings.recent)
    if settings.forecast != "perfect":
        raise KeyError(settings.forecast)
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
