"""Measures all forecasts on one log, split by time, for `sia forecast evaluate`."""

from __future__ import annotations

from collections.abc import Callable, Collection
from math import ceil
from typing import Any, NamedTuple

from predictors.learning.model import Model
from predictors.run_times.jvupredict import JVuPredict
from predictors.run_times.survival import SurvivalRunTimes
from replay.forecast.arrivals import ArrivalScores, ScoreRow, ageing, evaluate_arrivals
from replay.forecast.loads import judge_loads
from replay.forecast.refinements import Refinement, refinements
from replay.forecast.run_times import (
    PREDICTORS,
    LastOfUser,
    PairScores,
    RunTimeScores,
    ended_as,
    evaluate_pairs,
    evaluate_run_times,
)
from replay.forecast.train import learn, observe, thinned
from replay.logs.trace import PoolTable, Trace, checksum_of_jobs
from replay.run.starts import source_of_starts, starts_of
from sia.console.errors import UserError
from sia.forecasts import RunTimes
from sia.wording import as_typed

StageCallback = Callable[[str], None]
"""Called with the name of the next task."""


class Split(NamedTuple):
    """One log, split by time: jobs submitted at `since` (seconds) or later are measured.

    `log` is its file, for messages; `name` is its name in results. `trace` are the jobs that fit in
    the pools; `whole` is the log as it was read, by which a model of it is recognised.
    """

    log: str
    name: str
    whole: Trace
    trace: Trace
    table: PoolTable | None
    since: float
    windows: tuple[float, ...]
    state: str | None = None
    """Run times are measured on jobs that ended in this way, or on all; other jobs are
    withdrawn."""


class Evaluation(NamedTuple):
    """The results of one log; `notes` say what could not be measured, and why."""

    split: Split
    arrivals: ArrivalScores | None
    ages: list[ScoreRow]
    run_times: dict[str, RunTimeScores]
    pairs: PairScores | None
    notes: list[str]
    loads: list[ScoreRow]
    refinements: list[Refinement]

    def arrival_rows(self) -> list[ScoreRow]:
        """Return the content of `arrivals.json`."""
        return [] if self.arrivals is None else self.arrivals.table

    def run_time_rows(self) -> list[ScoreRow]:
        """Return the content of `run_times.json`."""
        return [of.row(self.split.name, name) for name, of in self.run_times.items()]

    def facts(self) -> dict[str, Any]:
        """Return all numbers."""
        return {
            "trace": self.split.name,
            "since_s": self.split.since,
            "arrivals": None if self.arrivals is None else self.arrivals._asdict(),
            "loads": self.loads,
            "ageing": self.ages,
            "run_times": self.run_times,
            "pairs": self.pairs,
            "refinements": self.refinements,
            "notes": self.notes,
        }


def evaluate_all(
    split: Split, model: Model | None, asked: Collection[str], tell: StageCallback
) -> Evaluation:
    """Measure forecasts of `arrivals`, `run-times` or both.

    Without a given model of arrivals, one is trained first. Raises UserError if no job is submitted
    in the test span, if a part of the log is too short, and if the model has learned from the test
    span.
    """
    last = split.trace.arrivals[-1].job.submit
    if split.since > last:
        raise UserError(
            f"{split.log}: no job was submitted at second {ceil(split.since)} or later; give an "
            f"earlier --since, {int(last)}s at most"
        )
    notes = _unsaid(split.trace)
    found, ages, loads = (
        _arrivals(split, model, notes, tell) if "arrivals" in asked else (None, [], [])
    )
    scores, pairs = _run_times(split, notes, tell) if "run-times" in asked else ({}, None)
    fine = _refinements(split, tell) if "run-times" in asked else []
    return Evaluation(split, found, ages, scores, pairs, notes, loads, fine)


def _unsaid(trace: Trace) -> list[str]:
    """Return notes on what the log lacks, and which results are missing because of it."""
    jobs = [arrival.job for arrival in trace.arrivals]
    notes = []
    if not any(job.user for job in jobs):
        notes.append("no job has a user: nothing is foretold from a user's earlier jobs")
    if not any(job.name for job in jobs):
        notes.append("no job has a name: nothing is foretold from earlier jobs of the same name")
    if all(job.width == 1 for job in jobs):
        notes.append("every job is one GPU wide: loads are counts of jobs")
    if len({job.pool for job in jobs}) == 1:
        notes.append("there is one pool: what differs between pools cannot be told")
    return notes


def _arrivals(
    split: Split, model: Model | None, notes: list[str], tell: StageCallback
) -> tuple[ArrivalScores, list[ScoreRow], list[ScoreRow]]:
    """Measure load forecasts and a model, which is given or trained before the test span."""
    log, trace, since = split.log, split.trace, split.since
    tell("arrivals: looking at every tick")
    rows = observe(trace, split.table, windows=split.windows, name=log)
    notes += filter(None, [thinned(rows)])
    own = model is None
    ours = model is None or _is_of(model, split.whole)
    if model is None:
        tell("arrivals: training")
        model = learn(
            rows, until=since, trace_sha256=checksum_of_jobs(split.whole, since), name=log
        )
    if ours and model.manifest.until > since:
        raise UserError(
            f"--model: was trained on this log up to second {ceil(model.manifest.until)}; use "
            f"--since {ceil(model.manifest.until)}s or later, or leave --model out"
        )
    tell("arrivals: testing")
    scores = evaluate_arrivals(
        rows, model, trace, _pools(split), name=split.name, since=since, sets=own
    )
    _note_windows(split, scores, notes)
    tell("loads: judging peaks and sliding maxima")
    loads = judge_loads(trace, split.table, rows, since)
    return scores, ageing(rows, model) if ours else [], loads


def _is_of(model: Model, whole: Trace) -> bool:
    """Return whether a model was trained on this log."""
    return checksum_of_jobs(whole, model.manifest.until) == model.manifest.trace_sha256


def _pools(split: Split) -> list[str]:
    """Return the pools' names in the order of the rows."""
    if split.table is not None:
        return [pool.name for pool in split.table.pools]
    return list(dict.fromkeys(arrival.job.pool for arrival in split.trace.arrivals))


def _note_windows(split: Split, scores: ArrivalScores, notes: list[str]) -> None:
    """Note the windows that are longer than the test span. Raises UserError if all are."""
    came = {row["window_s"]: row["positives"] for row in scores.table}
    for window in split.windows:
        if window not in came:
            notes.append(f"{as_typed(window)}: the test span is shorter than this window")
        elif not came[window]:
            notes.append(f"{as_typed(window)}: no arrivals in the test span: no recall, no F")
    if not came:
        raise UserError(
            f"{split.log}: no window ends between --since (second {ceil(split.since)}) and the "
            "last submission; give an earlier --since or shorter --windows"
        )


def _run_times(
    split: Split, notes: list[str], tell: StageCallback
) -> tuple[dict[str, RunTimeScores], PairScores]:
    """Query each predictor about each job; all start without a past when the log begins."""
    notes.append(source_of_starts(split.trace, split.table))
    starts = starts_of(split.trace, split.table)
    trace, since = split.trace, split.since
    judged = None if split.state is None else ended_as(trace, split.state)
    users = any(arrival.job.user for arrival in trace.arrivals)
    found: dict[str, RunTimeScores] = {}
    for name, make in _predictors(split).items():
        if make is LastOfUser and not users:
            continue
        tell(f"run times: {name}")
        found |= evaluate_run_times(
            trace,
            {name: make()},
            since=since,
            windows=split.windows,
            starts=starts,
            judged=judged,
        )
    tell("run times: JVuPredict's pairs, each alone")
    pairs = evaluate_pairs(
        trace, JVuPredict(choice="nrmse"), since=since, starts=starts, judged=judged
    )
    return found, pairs


def _refinements(split: Split, tell: StageCallback) -> list[Refinement]:
    """Test, on all measured jobs, whether secondary features distinguish run times."""
    tell("run times: Kruskal-Wallis tests of secondary features")
    arrivals = split.trace.arrivals
    if split.state is None:
        return refinements(arrivals)
    judged = ended_as(split.trace, split.state)
    return refinements(a for a, kept in zip(arrivals, judged, strict=True) if kept)


def _predictors(split: Split) -> dict[str, Callable[[], RunTimes]]:
    """Return constructors of all predictors to measure, by name; new predictors have no past."""
    return {**PREDICTORS, "survival": lambda: SurvivalRunTimes(split.windows)}
