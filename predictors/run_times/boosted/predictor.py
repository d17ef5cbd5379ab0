"""JobDuration (§5.4.2) as a distribution: a weighted mean of boosted trees and life tables.

For each window, the trees (`trees`) and the life tables of `survival` each give the probability
that a job that has reached the window's begin runs longer than the window. Their weights follow
from their logarithmic losses on the latest jobs that reached the window (Hedge: Freund and Schapire
1997). The product of the means over the windows up to one is the probability to run longer than
that window.

A job gets the first window for which this probability is below a critical value. Split conformal
prediction sets this value in each pool: the score of an ended job is the probability, predicted at
its submission, to run longer than the longest window that it exceeded. Of `KEPT` ended jobs, no
more than the permitted fraction have a score below the critical value.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Sequence
from importlib.util import find_spec
from math import exp, floor, inf, log
from typing import NamedTuple, Self

import numpy as np

from predictors.run_times.boosted.known import NUMBERS, Kind, KnownJob, KnownJobs
from predictors.run_times.boosted.trees import Trees
from predictors.run_times.survival import SurvivalRunTimes
from predictors.run_times.window_ends import WindowEnds
from sia.forecasts import Aside, PredictorContext, RunTimes
from sia.limits import TICK, UNKNOWN_RUN_TIME
from sia.model import Estimate, Job
from sia.wording import install_extra

QUANTILE = 0.97
"""Fraction of jobs that should not run longer than their window. A job without a window counts as
one that does not."""

MOST_CHANCE = 0.3
"""Upper bound of the critical probability, however few jobs have run longer than their windows."""

KEPT = 500
"""Number of stored scores of a pool: enough for a quantile of one in a hundred, few enough to
follow
changes."""

ENOUGH = 100
"""If a pool has fewer scores, those of all pools are used."""

FORGET = 0.999
"""Factor on the earlier losses of a window at each new one: a memory of about a thousand jobs."""

LEAST_CHANCE = 1e-3
"""Smallest distance of a predicted probability from 0 and 1, so that no loss is infinite."""

RENEWED = 64
"""Number of kinds of pending jobs whose estimates are computed again at a tick, in turn; 10 ms."""


class _Alike(NamedTuple):
    """Key of pending jobs whose estimates are always computed together."""

    batch: Kind
    pool: str
    width: int
    name: str
    priority: int
    estimate: float | None


class _Run:
    """A job that has not ended, with the probabilities predicted at its submission."""

    __slots__ = ("alike", "chances", "ended", "known", "number", "row", "said", "start")

    def __init__(self, known: KnownJob, row: list[float]) -> None:
        self.known, self.row = known, row
        job = known.job
        self.alike = _Alike(known.batch, job.pool, job.width, job.name, job.priority, job.estimate)
        self.said: tuple[list[float], list[float]] | None = None  # hazards: by tables, by trees
        self.chances: list[float] = []
        self.number = -1  # among the started jobs of the trees
        self.start = -inf
        self.ended: float | None = None  # run time; negative if it was withdrawn


class _Scores:
    """The scores of the latest ended jobs, by age and sorted."""

    def __init__(self) -> None:
        self._by_age: deque[float] = deque()
        self._rising: list[float] = []

    def __len__(self) -> int:
        return len(self._rising)

    def add(self, score: float) -> None:
        if len(self._by_age) == KEPT:
            del self._rising[bisect_left(self._rising, self._by_age.popleft())]
        self._by_age.append(score)
        insort(self._rising, score)

    def critical(self, share: float) -> float:
        """Return the critical probability for a fraction `share`. O(1)."""
        place = floor(share * (len(self._rising) + 1))
        return min(self._rising[place - 1], MOST_CHANCE) if place else 0.0


class BoostedRunTimes(RunTimes):
    """Estimates the first window that a job rarely exceeds, by trees and life tables.

    Until there are trees it estimates as `survival` does. An event costs O(windows), plus one round
    of boosting during a training.
    """

    summary = "the first window that boosted trees and life tables let few jobs outlast"
    takes_quantile = True
    usual_quantile = QUANTILE

    @classmethod
    def build(cls, context: PredictorContext) -> Self:
        """Build a predictor without history."""
        return cls(context.windows, context.quantile or QUANTILE)

    @classmethod
    def missing(cls) -> str:
        """Return how to install xgboost, an extra, if it is missing."""
        if find_spec("xgboost") is not None:
            return ""
        return (
            "durations boosted need xgboost, which is not installed; "
            f"{install_extra('learn')}, or write survival"
        )

    def __init__(self, windows: Sequence[float], quantile: float = QUANTILE) -> None:
        """Take windows in seconds, ascending. Raises ValueError unless 0 < quantile < 1."""
        if not 0 < quantile < 1:
            raise ValueError(f"quantile must be between 0 and 1 (got {quantile})")
        self._windows, self._share = windows, 1.0 - quantile
        self._tables = SurvivalRunTimes(windows)
        self._jobs = KnownJobs()
        self._trees = Trees(windows, NUMBERS + len(windows))
        self._runs: dict[str, _Run] = {}
        self._losses = [[0.0, 0.0] for _ in windows]  # of tables and trees
        self._scores: dict[str, _Scores] = {}
        self._all = _Scores()
        self._ends = WindowEnds[_Run](windows)
        self._pending: dict[_Alike, dict[str, float]] = {}  # alike: job, estimate
        self._looked = -inf

    def work_aside(self, aside: Aside) -> None:
        """Sort the examples of a training by `aside`."""
        self._trees.aside = aside

    def run_time(self, job: Job) -> float:
        """Return the end of a window in seconds, or `UNKNOWN_RUN_TIME`."""
        return self.run_times([job])[0]

    def run_times(self, jobs: Sequence[Job]) -> list[float]:
        """Return the estimates of jobs that are submitted together, by one call of the trees."""
        found, runs = [], []
        for job in jobs:
            if job.id in self._runs:  # asked again: its submission was refused before
                self.withdrawn(job.submit, job)
            self._hear(job.submit)
            found.append(self._tables.run_time(job))
            runs.append(self._admit(job))
        if self._trees.ready and runs:
            self._state(runs)
            found = [self._window(run.chances, run.known.job.pool) for run in runs]
        for run, estimate in zip(runs, found, strict=True):
            self._pending.setdefault(run.alike, {})[run.known.job.id] = estimate
        return found

    def guess(self, now: float, job: Job) -> float:
        """Return the estimate that `run_time` would return, without recording the job."""
        if not self._trees.ready:
            return self._tables.guess(now, job)
        tables = self._tables.guessed_hazards(job)
        row = [*self._jobs.row(self._jobs.like(job), now), *tables]
        trees = self._trees.hazards(np.array([row], np.float32))[0].tolist()
        return self._window(self._mixed(tables, trees), job.pool)

    def _admit(self, job: Job) -> _Run:
        known = self._jobs.submitted(job)
        row = self._row(known, job.submit)
        self._jobs.counted(known)
        run = self._runs[job.id] = _Run(known, row)
        return run

    def _row(self, known: KnownJob, now: float) -> list[float]:
        return [*self._jobs.row(known, now), *self._tables.hazards(now, known.job)]

    def _state(self, runs: Sequence[_Run]) -> None:
        """Predict the probabilities of jobs at their submission, to be compared at their ends."""
        rows = np.array([run.row for run in runs], np.float32)
        for run, trees in zip(runs, self._trees.hazards(rows).tolist(), strict=True):
            tables = run.row[NUMBERS:]
            run.said = tables, trees
            run.chances = self._mixed(tables, trees)

    def _mixed(self, tables: Sequence[float], trees: Sequence[float]) -> list[float]:
        """Return the probabilities to run longer than each window."""
        chance, chances = 1.0, []
        for losses, by_tables, by_trees in zip(self._losses, tables, trees, strict=True):
            part = 1.0 / (1.0 + exp(min(max(losses[1] - losses[0], -50.0), 50.0)))  # of the trees
            chance *= part * by_trees + (1.0 - part) * by_tables
            chances.append(chance)
        return chances

    def _window(self, chances: Sequence[float], pool: str) -> float:
        """Return the first window that is exceeded with less than the critical probability."""
        scores = self._scores.get(pool)
        if scores is None or len(scores) < ENOUGH:
            scores = self._all
        critical = scores.critical(self._share)
        for window, chance in zip(self._windows, chances, strict=True):
            if chance < critical:
                return window
        return UNKNOWN_RUN_TIME

    def chances(self, job: Job, age: float = 0.0) -> list[float]:
        """Return the probability that a job runs longer than each window, given its age.

        `age` is in seconds. The features are those at its submission. Empty for a job that was
        submitted before there were trees, or that has ended.
        """
        run = self._runs.get(job.id)
        if run is None or not run.chances:
            return []
        reached = bisect_left(self._windows, age)
        past = run.chances[reached - 1] if reached else 1.0
        return [1.0 if i < reached else c / past for i, c in enumerate(run.chances)]

    def started(self, now: float, job: Job) -> None:
        """Record that a job has started; it will reach the end of the first window later."""
        self._hear(now)
        self._tables.started(now, job)
        run = self._runs.get(job.id)
        if run is None:
            return  # its submission was not reported, or it continues after a stop
        if run.number < 0:
            self._leave(run)
            run.start, run.number = now, self._trees.add(now, run.row)
            self._jobs.started(now, run.known)
            self._ends.add(run)

    def finished(self, now: float, job: Job, run_time: float) -> None:
        """Record an end. It counts once the window in which the job ended is over."""
        self._hear(now)
        self._tables.finished(now, job, run_time)
        run = self._runs.pop(job.id, None)
        if run is None:
            return
        self._jobs.ended(now, run.known, run_time)
        run.ended = run_time
        if run.number < 0:
            self._leave(run)
        else:
            self._trees.ended(run.number, run_time)

    def withdrawn(self, now: float, job: Job) -> None:
        """Record that a job was cancelled. The windows that it has outlasted count."""
        self._hear(now)
        self._tables.withdrawn(now, job)
        run = self._runs.pop(job.id, None)
        if run is None:
            return
        self._jobs.gone(run.known)
        run.ended = -1.0
        if run.number < 0:
            self._leave(run)
        else:
            self._trees.ended(run.number, inf, seen=now - run.start)

    def changes(self, now: float) -> list[Estimate]:
        """Return, at a tick, pending jobs whose estimate has changed, of `RENEWED` kinds."""
        self._hear(now)
        if now // TICK == self._looked or not self._pending:
            return []
        self._looked = now // TICK
        if not self._trees.ready:
            return self._by_tables(now)
        turns = [alike for alike, _ in zip(list(self._pending), range(RENEWED), strict=False)]
        runs = [self._runs[next(iter(self._pending[alike]))] for alike in turns]
        rows = [self._row(run.known, now) for run in runs]
        hazards = self._trees.hazards(np.array(rows, np.float32)).tolist()
        changed = []
        for alike, row, trees in zip(turns, rows, hazards, strict=True):
            jobs = self._pending[alike] = self._pending.pop(alike)  # to the end of the line
            window = self._window(self._mixed(row[NUMBERS:], trees), alike.pool)
            for job_id, before in jobs.items():
                if before != window:
                    jobs[job_id] = window
                    changed.append(Estimate(job_id, window))
        return changed

    def _by_tables(self, now: float) -> list[Estimate]:
        changed = self._tables.changes(now)
        for job_id, estimate in changed:
            self._pending[self._runs[job_id].alike][job_id] = estimate
        return changed

    def _leave(self, run: _Run) -> None:
        """Remove a job from the pending ones."""
        alike = run.alike
        del self._pending[alike][run.known.job.id]
        if not self._pending[alike]:
            del self._pending[alike]

    def _hear(self, now: float) -> None:
        """Add the losses of jobs that have reached the end of a window; do a round of training."""
        self._ends.advance(now, self._reach)
        self._trees.learn(now)

    def _reach(self, run: _Run, window: int) -> bool:
        """Add the losses of a job whose window is over; return whether it ran longer."""
        if run.ended is not None and run.ended < 0.0:
            return False
        lasted = run.ended is None or run.ended > self._windows[window]
        if run.said is not None:
            self._judge(run, window, lasted=lasted)
        if run.chances and not (lasted and window + 1 < len(self._windows)):
            self._score(run, window if lasted else window - 1)
        return lasted

    def _judge(self, run: _Run, window: int, *, lasted: bool) -> None:
        """Add the losses of both predictions for a window that the job reached."""
        assert run.said is not None
        losses = self._losses[window]
        for who, hazards in enumerate(run.said):
            chance = min(max(hazards[window], LEAST_CHANCE), 1.0 - LEAST_CHANCE)
            losses[who] = losses[who] * FORGET - log(chance if lasted else 1.0 - chance)

    def _score(self, run: _Run, outlasted: int) -> None:
        """Add the score of a job; `outlasted` is its longest exceeded window, -1 for none."""
        score = run.chances[outlasted] if outlasted >= 0 else inf
        self._scores.setdefault(run.known.job.pool, _Scores()).add(score)
        self._all.add(score)
