"""Measures estimates of run times on a log, in its order (JamaisVu, §3.2 and §6.2).

A job is estimated when it is submitted, from jobs that have ended by then; at one instant, ends
come first. A job starts when the log or a given schedule says so, else when it is submitted.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from math import inf
from statistics import median
from typing import Any, Protocol, runtime_checkable

import numpy as np
from msgspec import Struct

from predictors.run_times.history import HistoryRunTimes
from predictors.run_times.jvupredict import JVuPredict, values_of
from replay.logs.trace import Trace
from replay.plotting.canvas import FloatArray
from replay.run.starts import starts_of
from sia.console.errors import UserError
from sia.core.playout import Arrival
from sia.forecasts import RunTimes
from sia.limits import UNKNOWN_RUN_TIME
from sia.model import Job

LEVELS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99)
"""Quantiles whose coverage is measured."""

ERRORS = tuple(range(-100, 101, 5))
"""Edges (%) of the classes of errors, (predicted - actual) / actual; the last class is open."""

TEST_SHARE = 0.25
"""Share of the log's time, at its end, that is measured."""

CHOSEN = "chosen"
"""The name of the chosen estimate, next to the pairs."""

FLOOR = 5
"""Number of a user's latest run times whose median the baseline takes."""


class LastOfUser(RunTimes):
    """Baseline that predictors must beat: the median of a user's last `FLOOR` run times."""

    def __init__(self) -> None:
        """Start without a past."""
        self._last: dict[str, deque[float]] = {}

    def run_time(self, job: Job) -> float:
        """Return seconds; `UNKNOWN_RUN_TIME` for a user without ended jobs."""
        last = self._last.get(job.user)
        return median(last) if last else UNKNOWN_RUN_TIME

    def finished(self, now: float, job: Job, run_time: float) -> None:
        """Record a run time of the user."""
        self._last.setdefault(job.user, deque(maxlen=FLOOR)).append(run_time)


PREDICTORS: dict[str, Callable[[], RunTimes]] = {
    "jvupredict": JVuPredict,
    "jvupredict-nrmse": lambda: JVuPredict(choice="nrmse"),
    "jvupredict-filter": lambda: JVuPredict(choice="nrmse", median_filter=True),
    "history": HistoryRunTimes,
    "last-of-user": LastOfUser,
}
"""Return the predictors by name; each call makes one without a past."""


OUTLASTED = (1.0, 2.0)
"""Multiples of its estimate at which a job that still runs is estimated again."""


@runtime_checkable
class EstimatesRunning(Protocol):
    """A predictor that updates the estimates of running jobs."""

    def running(self, job: Job, elapsed: float) -> float:
        """Return the run time in seconds of a job that has run for `elapsed` seconds."""

    def quantiles_after(
        self, job: Job, probabilities: Sequence[float], elapsed: float
    ) -> list[float]:
        """Return quantiles of the run time in seconds of a job that has run for a given time."""


@runtime_checkable
class StatesQuantiles(Protocol):
    """A predictor that states the run time that a job does not exceed with a given probability."""

    def quantiles(self, job: Job, probabilities: Sequence[float]) -> list[float]:
        """Return seconds, in the order of the probabilities (0 to 1)."""


class OutlastingScores(Struct, frozen=True):
    """Estimates of jobs that have run `times` as long as estimated; shares are of these jobs."""

    times: float
    n: int
    within_2x: float
    """Share whose new estimate is within a factor of two of the true run time."""
    by_p50: float
    """Share that ran no longer than the new median; one half if the median is accurate."""
    by_p90: float


class RunTimeScores(Struct, frozen=True):
    """The quality of estimates for the measured jobs; shares are of all of them, 0 to 1."""

    n: int
    coverage: float
    """Share of jobs with an estimate."""
    within_2x: float
    """Share of jobs with actual / 2 ≤ predicted ≤ 2 · actual."""
    within_10x: float
    errors: tuple[float, ...]
    """Shares of jobs by relative error, in the classes between `ERRORS` and the one above (Fig.
    11)."""
    reliability: dict[float, float]
    """Share of jobs that ran no longer than the stated quantile, by its probability; empty
    without."""
    confusion: tuple[tuple[int, ...], ...]
    """Jobs by the bin of their run time (rows) and of the estimate (columns)."""
    outlasting: tuple[OutlastingScores, ...] = ()
    """Scores of jobs that outlast their estimates; empty for predictors that do not update them."""

    def row(self, trace: str, predictor: str) -> dict[str, Any]:
        """Return the content of `run_times.json`."""
        return {
            "trace": trace,
            "predictor": predictor,
            "n": self.n,
            "coverage": round(self.coverage, 6),
            "within_2x": round(self.within_2x, 6),
            "within_10x": round(self.within_10x, 6),
        }


class PairScores(Struct, frozen=True):
    """JVuPredict's pairs, each alone, and the chosen one; shares are of all measured jobs.

    A pair without a past makes no estimate, which is outside of every range, as in the paper.
    """

    n: int
    outside_2x: dict[str, float]
    """Scores by `feature:estimator`, and of `chosen` (Fig. 12)."""
    outside_10x: dict[str, float]
    chosen: dict[str, float]
    """How often each pair was chosen (Fig. 13), most often first."""
    unseen: dict[str, float]
    """Share of jobs whose value of a feature no ended job had (Table 1)."""

    def table(self) -> list[dict[str, Any]]:
        """Return Table 1 by feature: `recent`'s share outside a factor of two, and new values."""
        return [
            {
                "feature": feature,
                "outside_2x": self.outside_2x.get(f"{feature}:recent", 1.0),
                "unseen": unseen,
            }
            for feature, unseen in self.unseen.items()
        ]


def last_quarter(trace: Trace) -> float:
    """Return the second from which the last `TEST_SHARE` of the time of submissions begins."""
    first, last = trace.arrivals[0].job.submit, trace.arrivals[-1].job.submit
    return last - TEST_SHARE * (last - first)


def ended_as(trace: Trace, state: str) -> list[bool]:
    """Return whether each job ended in this state, like FINISH. Raises UserError if none did."""
    column = trace.columns.index("state") if "state" in trace.columns else None
    found = [
        column is not None and trace.extras[arrival.job.id][column] == state
        for arrival in trace.arrivals
    ]
    if not any(found):
        raise UserError(f"no job of the log ended as {state!r}; name a state that its jobs have")
    return found


def submissions(
    trace: Trace,
    predictors: Collection[RunTimes],
    starts: Sequence[float | None],
    judged: Sequence[bool] | None = None,
) -> Iterator[Arrival]:
    """Yield each job at its submission, after the predictors have been given all earlier events.

    At one instant, ends come first, then submissions, then starts. A job whose start is None never
    starts. A job that is not `judged` is withdrawn at its end: its run time is only a lower bound.
    """
    arrivals = trace.arrivals
    submits = np.array([arrival.job.submit for arrival in arrivals])
    begins = np.array([inf if start is None else start for start in starts])
    ends = begins + np.array([arrival.duration for arrival in arrivals])
    ends = np.maximum(ends, np.nextafter(begins, inf))  # after the start, however short the job
    times = np.concatenate([ends, submits, begins])
    n = len(arrivals)
    for i in np.argsort(times, kind="stable"):  # equal times stay in the order of their kinds
        job, duration = arrival = arrivals[i % n]
        now = float(times[i])
        if n <= i < 2 * n:
            yield arrival
        elif now < inf:
            for predictor in predictors:
                if i >= n:
                    predictor.started(now, job)
                elif judged is None or judged[i]:
                    predictor.finished(now, job, duration)
                else:
                    predictor.withdrawn(now, job)


class _Asked:
    """Collects a predictor's answers for the measured jobs."""

    def __init__(self, predictor: RunTimes) -> None:
        self._predictor = predictor
        self._states = predictor if isinstance(predictor, StatesQuantiles) else None
        self._running = predictor if isinstance(predictor, EstimatesRunning) else None
        self.run_times: list[float] = []
        self.quantiles: list[list[float]] = []
        self.after: list[list[float]] = []
        """For each multiple in `OUTLASTED`: the new estimate, and its quantiles of 50 and 90 %."""

    def ask(self, job: Job, *, measured: bool) -> None:
        """Query as at any submission; some predictors learn from queries, measured or not."""
        run_time = self._predictor.run_time(job)
        quantiles = self._states.quantiles(job, LEVELS) if self._states is not None else []
        if measured:
            self.run_times.append(run_time)
            self.quantiles.append(quantiles)
            if self._running is not None:
                self.after.append(self._ask_later(self._running, job, run_time))

    @staticmethod
    def _ask_later(predictor: EstimatesRunning, job: Job, run_time: float) -> list[float]:
        """Return the estimates that a job would get while it runs, from the past known now."""
        found = []
        for times in OUTLASTED:
            elapsed = times * run_time
            found.append(predictor.running(job, elapsed))
            found += predictor.quantiles_after(job, (0.5, 0.9), elapsed)
        return found


def evaluate_run_times(
    trace: Trace,
    predictors: Mapping[str, RunTimes],
    *,
    since: float,
    windows: Sequence[float],
    starts: Sequence[float | None] | None = None,
    judged: Sequence[bool] | None = None,
) -> dict[str, RunTimeScores]:
    """Return scores by name of predictors without a past, which see and are asked about all jobs.

    Jobs submitted at `since` (seconds) or later are measured; with `judged` only those, and others
    are withdrawn when they end. `windows` (seconds) are the ends of the bins of the confusion
    matrix. `starts` and `judged` are by position in the trace; without `starts`, `starts_of` gives
    them. Raises UserError if no job is measured.
    """
    asked = {name: _Asked(predictor) for name, predictor in predictors.items()}
    starts = starts_of(trace) if starts is None else starts
    actual = []
    arriving = submissions(trace, predictors.values(), starts, judged)
    for (job, duration), measured in zip(arriving, _measured(trace, since, judged), strict=True):
        if measured:
            actual.append(duration)
        for answers in asked.values():
            answers.ask(job, measured=measured)
    _refuse_none(len(actual), since)
    return {name: _scores(np.array(actual), answers, windows) for name, answers in asked.items()}


def _measured(trace: Trace, since: float, judged: Sequence[bool] | None) -> list[bool]:
    """Return whether each job is measured: jobs arrive in the order of the trace."""
    late = [arrival.job.submit >= since for arrival in trace.arrivals]
    return late if judged is None else [a and b for a, b in zip(late, judged, strict=True)]


def _refuse_none(measured: int, since: float) -> None:
    if not measured:
        raise UserError(f"no job was submitted at second {since:g} or later; measure from earlier")


def _scores(actual: FloatArray, answers: _Asked, windows: Sequence[float]) -> RunTimeScores:
    estimated = np.array(answers.run_times)
    known = estimated < UNKNOWN_RUN_TIME
    classes, _ = np.histogram(100 * (estimated / actual - 1)[known], [*ERRORS, inf])
    covered = (actual[:, None] <= np.array(answers.quantiles)).mean(axis=0).tolist()
    bins = len(windows) + 1
    cells = np.searchsorted(windows, actual) * bins + np.searchsorted(windows, estimated)
    confusion = np.bincount(cells, minlength=bins * bins).reshape(bins, bins)
    return RunTimeScores(
        n=len(actual),
        coverage=float(known.mean()),
        within_2x=_within(actual, estimated, 2),
        within_10x=_within(actual, estimated, 10),
        errors=tuple((classes / len(actual)).tolist()),
        reliability=dict(zip(LEVELS, covered, strict=True)) if covered else {},
        confusion=tuple(map(tuple, confusion.tolist())),
        outlasting=tuple(_outlasting(actual, estimated, np.array(answers.after))),
    )


def _outlasting(
    actual: FloatArray, estimated: FloatArray, after: FloatArray
) -> Iterator[OutlastingScores]:
    """Yield the scores of jobs that outlast their estimates, by multiple of the estimate."""
    if not len(after):
        return
    for at, times in enumerate(OUTLASTED):
        longer = (estimated < UNKNOWN_RUN_TIME) & (actual > times * estimated)
        if longer.any():
            real = actual[longer]
            again, p50, p90 = after[longer, 3 * at : 3 * at + 3].T
            yield OutlastingScores(
                times, len(real), _within(real, again, 2),
                float((real <= p50).mean()), float((real <= p90).mean()),
            )  # fmt: skip


def _within(actual: FloatArray, estimated: FloatArray, factor: float) -> float:
    return float(((estimated >= actual / factor) & (estimated <= actual * factor)).mean())


def evaluate_pairs(
    trace: Trace,
    predictor: JVuPredict,
    *,
    since: float,
    starts: Sequence[float | None] | None = None,
    judged: Sequence[bool] | None = None,
) -> PairScores:
    """Measure each of JVuPredict's pairs alone, and its choice, on the same jobs as others.

    Raises UserError if no job is measured.
    """
    starts = starts_of(trace) if starts is None else starts
    tally = _Tally()
    arriving = submissions(trace, [predictor], starts, judged)
    for (job, duration), measured in zip(arriving, _measured(trace, since, judged), strict=True):
        if measured:
            tally.count(job, duration, predictor)
    _refuse_none(tally.n, since)
    return tally.scores()


class _Tally:
    """Counts of the pairs' estimates for the measured jobs."""

    def __init__(self) -> None:
        self.n = 0
        self._features: dict[str, None] = {}
        self._known: Counter[str] = Counter()
        self._inside: dict[int, Counter[str]] = {factor: Counter() for factor in (2, 10)}
        self._chosen: Counter[str] = Counter()

    def count(self, job: Job, actual: float, predictor: JVuPredict) -> None:
        """Query all pairs, and the chosen one."""
        self.n += 1
        self._features.update(dict.fromkeys(value[0] for value in values_of(job)))
        pairs = predictor.candidates(job)
        self._known.update({pair.feature for pair in pairs})
        for pair in pairs:
            self._judge(f"{pair.feature}:{pair.estimator}", pair.run_time, actual)
        chosen = predictor.predict(job)
        if chosen is not None:
            self._chosen[f"{chosen.feature}:{chosen.estimator}"] += 1
            self._judge(CHOSEN, chosen.run_time, actual)

    def _judge(self, name: str, estimated: float, actual: float) -> None:
        for factor, inside in self._inside.items():
            inside[name] += actual / factor <= estimated <= actual * factor

    def scores(self) -> PairScores:
        """Return the counts as shares; pairs are named by their feature and estimator."""
        n = self.n
        outside = {
            factor: {name: 1 - inside[name] / n for name in sorted(inside)}
            for factor, inside in self._inside.items()
        }
        return PairScores(
            n=n,
            outside_2x=outside[2],
            outside_10x=outside[10],
            chosen={name: count / n for name, count in self._chosen.most_common()},
            unseen={name: 1 - self._known[name] / n for name in self._features},
        )
