"""One replay: the same trace through several policies, each against the FCFS baseline."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import NamedTuple

from predictors.history import HistoryRunTimes
from predictors.perfect import PerfectLoads, PerfectRunTimes
from predictors.sliding import RECENT, SlidingMaximum
from replay.closed_loop import ClosedLoop
from replay.schedule import Loop, Recorder, Result, Schedule
from replay.trace import PoolTable, Trace
from sia import Core
from sia.events import FutureRevealed, PoolChanged
from sia.forecasts import Loads, RunTimes
from sia.limits import NEVER
from sia.model import FutureJob, Options
from sia.playout import play
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
        forecast, _, durations = senses.partition("+")
        if at and not (forecast and durations):
            raise KeyError(
                f"{label!r}: write POLICY@FORECAST+DURATIONS, like sia@sliding-max+history"
            )
        chosen = Choice(policy, forecast or self.forecast, durations or self.durations)
        known = {"policy": names(), "forecast": FORECASTS, "way to foresee durations": DURATIONS}
        for what, name in zip(known, chosen, strict=True):
            if name not in known[what]:
                raise KeyError(f"there is no {what} {name!r}; there is {', '.join(known[what])}")
        needs = load(policy).needs
        if at and not (needs.loads or needs.run_times):
            raise KeyError(f"{label!r}: {policy} foresees nothing by these; leave out {at}{senses}")
        return chosen


def known_in_advance(settings: Settings, label: str) -> list[str]:
    """What a policy is told that nobody can know; as words."""
    choice = settings.choice(label)
    needs = load(choice.policy).needs
    found = []
    if needs.future or (needs.loads and choice.forecast == "perfect"):
        found.append("arrivals")
    if needs.future or (needs.run_times and choice.durations == "perfect"):
        found.append("run times")
    return found


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
            same = Loop(trace, 0.0) if settings.closed_loop else None  # nothing is shifted
            results.append(Result(trace, baseline, baseline, same))
        elif settings.closed_loop:
            results.append(_replay_closed(trace, table, label, settings, baseline, progress))
        else:
            schedule = replay_one(trace, table, label, settings, baseline, progress)
            results.append(Result(trace, baseline, schedule))
    return results


def _replay_closed(
    trace: Trace,
    table: PoolTable,
    label: str,
    settings: Settings,
    baseline: Schedule,
    progress: Progress | None,
) -> Result:
    loop = ClosedLoop(trace, baseline)
    schedule = replay_one(trace, table, label, settings, None, progress, loop)
    effective, schedule = loop.effective(schedule)
    alone = replay_one(effective, table, BASELINE, settings, None)
    sooner = loop.sooner(effective, schedule, settings.warmup)
    return Result(effective, alone, schedule, Loop(trace, sooner))


def replay_one(
    trace: Trace,
    table: PoolTable,
    label: str,
    settings: Settings,
    baseline: Schedule | None,
    progress: Progress | None = None,
    loop: ClosedLoop | None = None,
) -> Schedule:
    """Replay one policy. `baseline` is asked for by policies that must know the future.

    In a closed loop, `loop` says when jobs are submitted.
    """
    choice = settings.choice(label)
    rule = load(choice.policy)()
    core = Core(table.pools, rule, settings.options)
    arrivals = trace.arrivals
    recorder = Recorder(label, trace, segments=rule.needs.preemption)
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
    for instant in play(
        core,
        arrivals if loop is None else loop.unprompted,
        run_times=run_times,
        loads=loads,
        facts=facts,
        followers=None if loop is None else loop.followers,
    ):
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
