"""JCTpred: each job's end, predicted at its submission (PCS, §2.2 and §4).

At each submission, a copy of the present state is played forward under the policy in force, as if
no more jobs arrived. Run times are those that the policy is given. If several jobs are submitted at
one instant, each prediction is made before the next job is added.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from math import fsum
from typing import NamedTuple

from msgspec import Struct

from replay.run.metrics import quantile
from sia.contract.policy import Policy
from sia.core.core import Core
from sia.core.playout import Solve, play
from sia.core.snapshot import dump, restore
from sia.decisions import Decision
from sia.events import Event, JobFinished, JobSubmitted
from sia.limits import UNKNOWN_RUN_TIME

MAX_STEPS = 20_000
"""Number of steps after which a prediction is given up; the job then has none.

Only policies with leases need so many steps, with jobs of unknown run times.
"""


class ForetellingCore(Core):
    """A core that predicts the end of each job at its submission.

    Attributes:
        told: The predicted end of each job, by ID; None if the job would never end.
    """

    def __init__(self, core: Core, fresh: Callable[[], Policy], solve: Callable[[], Solve]) -> None:
        """Continue `core`. `fresh` makes a new policy like its own, `solve` a solver."""
        self.__dict__.update(core.__dict__)
        self._fresh, self._solver = fresh, solve
        self.told: dict[str, float | None] = {}

    def step(self, now: float, events: Sequence[Event]) -> list[Decision]:
        """Make a step, and predict the ends of the jobs that are submitted in it."""
        jobs = [event.job.id for event in events if type(event) is JobSubmitted]
        before = dump(self) if len(jobs) > 1 else None
        decisions = super().step(now, events)
        if before is not None:
            for i, job_id in enumerate(jobs[:-1], 1):
                later = set(jobs[i:])
                core = restore(before, self._fresh())
                core.step(now, [e for e in events if not _submits(e, later)])
                self.told[job_id] = self._end_of(core, job_id)
        if jobs:
            self.told[jobs[-1]] = self._end_of(restore(dump(self), self._fresh()), jobs[-1])
        return decisions

    def _end_of(self, core: Core, job_id: str) -> float | None:
        """Return when a job ends if no jobs arrive later, or None if never. Changes the core."""
        return end_of(core, job_id, self._solver())


def _submits(event: Event, jobs: set[str]) -> bool:
    return type(event) is JobSubmitted and event.job.id in jobs


def end_of(core: Core, job_id: str, solve: Solve) -> float | None:
    """Play a core forward until a job ends; return when, or None if it never does.

    Return None also for a job of unknown run time, and after `MAX_STEPS` steps. Each job runs as
    long as its estimate. A job that has already run longer ends at once, or when it has resumed.
    """
    now = core.state.now
    if core.state.jobs[job_id].run_time >= UNKNOWN_RUN_TIME:
        return None
    run_times, running = {}, []
    for job in core.state.jobs.values():
        worked = job.work(now)
        run_times[job.job.id] = max(job.run_time, worked)
        if job.stream is not None:
            # If a job has run longer than its estimate, rounding could delay its end a moment.
            over = worked >= job.run_time
            end = job.since + job.overhead if over else job.end(job.run_time)
            running.append((max(now, end), job.job.id))
    instants = play(core, [], running=running, durations=run_times, solve=solve)
    for instant in islice(instants, MAX_STEPS):
        for event in instant.events:
            if type(event) is JobFinished and event.job_id == job_id:
                return instant.now
    return None


class PredictionMetrics(Struct, frozen=True):
    """Means and quantiles over the measured jobs, with the keys of `summary.json`.

    JCTs are in seconds, errors and unfairness in percent; None if there is no job.
    """

    predicted: int
    """Jobs that ended and had a prediction."""
    avg_pred_err_pct: float | None
    p50_pred_err_pct: float | None
    p90_pred_err_pct: float | None
    p99_pred_err_pct: float | None
    max_pred_err_pct: float | None
    avg_unfairness_pct: float | None
    p50_unfairness_pct: float | None
    p90_unfairness_pct: float | None
    p99_unfairness_pct: float | None
    max_unfairness_pct: float | None
    mean_jct_s: float | None
    p50_jct_s: float | None
    p90_jct_s: float | None
    p99_jct_s: float | None


def error_pct(submit: float, predicted: float, end: float) -> float | None:
    """Return |JCT − JCTpred| / JCTpred in percent; None if JCTpred is 0."""
    told = predicted - submit
    if not told > 0:
        return None if end > submit else 0.0
    return 100 * abs(end - predicted) / told


def unfairness_pct(submit: float, fair: float, end: float) -> float:
    """Return the time beyond the fair finish, in percent of the fair JCT; 0 if before it."""
    return 100 * max(0.0, end - fair) / (fair - submit) if fair > submit else 0.0


class ToldJob(NamedTuple):
    """A measured job: submission, predicted end, end under fair share, actual end."""

    submit: float
    told: float | None
    fair: float | None
    end: float


def measure_predictions(outcomes: Sequence[ToldJob]) -> PredictionMetrics:
    """Compute the measures of jobs that ended. O(n · log n)."""
    errors = [
        error
        for each in outcomes
        if each.told is not None
        and (error := error_pct(each.submit, each.told, each.end)) is not None
    ]
    unfair = [
        unfairness_pct(each.submit, each.fair, each.end)
        for each in outcomes
        if each.fair is not None
    ]
    jcts = [each.end - each.submit for each in outcomes]
    return PredictionMetrics(len(errors), *_spread(errors), *_spread(unfair), *_spread(jcts)[:4])


def _spread(values: list[float]) -> tuple[float | None, ...]:
    """Return the mean, the median, the 90th and 99th percentile and the maximum."""
    if not values:
        return (None,) * 5
    ordered = sorted(values)
    quantiles = (quantile(ordered, p) for p in (0.5, 0.9, 0.99))
    return (fsum(ordered) / len(ordered), *quantiles, ordered[-1])
