"""JVuPredict: run times from jobs with common features (JamaisVu, §3).

Each ended job is remembered under each of its *feature values*: its name, its user and so on, each
also combined with its width. For each feature value several *estimators* of run times are
maintained. A prediction is the estimate of one estimator for one feature value: a pair.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from math import ceil, exp, inf, sqrt
from typing import Literal, NamedTuple, Self

from predictors.run_times.conformal import Conformal
from predictors.run_times.estimators import DENSEST, ESTIMATORS, KEPT, RunTimeEstimators, densest
from sia.forecasts import PredictorContext, RunTimes
from sia.limits import UNKNOWN_RUN_TIME
from sia.model import Job
from sia.wording import HOUR

Selection = Literal["nearest", "nrmse"]
"""How the predicting pair is chosen; see `JVuPredict`."""

FeatureValue = tuple[str, str, int]
"""Feature, its value, and the width or 0."""

ALL: FeatureValue = ("all", "", 0)
"""The feature value of every job."""

WIDTH = ", width"
"""Suffix of a feature's name if it is combined with the width."""

FILTER = 3
"""Run times of which the median filter takes the middle one (§3.4), to remove single outliers."""

LEAST = 1e-3
"""Minimum run time in seconds, so that ratios are defined."""

JUDGED = 1
"""Minimum number of past predictions of a pair for `nrmse` to choose it. Higher values are worse:
on Google's log, with 1, 12 % of the jobs are off by more than a factor of two; with 20, 20 % are.
"""

ENOUGH = 10
"""Minimum number of errors of a feature value for quantiles; with fewer a wider feature value is
used. If even all jobs have fewer, there is no prediction."""

MOST_VALUES = 200_000
"""Maximum number of feature values; the least recently used are dropped. The finished jobs of
Google's month have 36,521. One takes 1.3 KB after its first job and 4.5 KB after fifty."""

MOST_STATED = 100_000
"""Maximum number of jobs with predictions that have not ended. Some ends are never reported, so the
oldest are dropped and nothing is learned from their predictions."""

LETTERS = 3
"""Minimum number of letters of a logical name to be meaningful: `job#` is, `n#` is not."""

NUMBERED = re.compile(
    r"(?<![0-9A-Za-z])(?=[A-Fa-f]*[0-9])[0-9A-Fa-f]{6,}(?![0-9A-Za-z])|[0-9]+", re.ASCII
)
"""Parts of a name that are counters or hashes: digits, and long hexadecimal words with a digit."""


class Prediction(NamedTuple):
    """The prediction of one pair for a job."""

    run_time: float
    """Seconds."""
    feature: str
    estimator: str
    nrmse: float
    """RMSE of the pair's past predictions / average run time; infinite without any."""


def logical_name(name: str) -> str:
    """Return a name without counters and hashes: `train-#` for `train-0815`.

    Returns "" if nothing is removed or too little remains.
    """
    logical = NUMBERED.sub("#", name)
    return logical if logical != name and sum(map(str.isalpha, logical)) >= LETTERS else ""


def values_of(job: Job) -> list[FeatureValue]:
    """Return the feature values of a job, most specific first (§3.2); `ALL` is the last.

    Widths are integers, to which the paper rounds resources above 1. `stated` is the user's own
    estimate of the run time, which many logs have as requested time. The hour is that of the log's
    own seconds: its zero is midnight only where the log begins there.
    """
    stated = "" if job.estimate is None else f"{job.estimate:g}"
    told = (
        ("name", job.name),
        ("logical name", logical_name(job.name)),
        ("user, stated", f"{stated} {job.user}" if stated and job.user else ""),
        ("user, class", f"{job.sched_class} {job.user}" if job.sched_class and job.user else ""),
        ("user", job.user),
        ("stated", stated),
        ("class", job.sched_class),
        ("priority", str(job.priority or "")),
        ("pool", job.pool),
    )
    values: list[FeatureValue] = []
    for feature, value in told:
        if value:
            values += [(feature + WIDTH, value, job.width), (feature, value, 0)]
    values.append(("hour", str(int(job.submit // HOUR) % 24), 0))
    return [*values, ALL]


def _how_wrong(pair: Prediction) -> tuple[float, bool]:
    """Return the sort key of a pair: its error, then whether its feature includes the width."""
    return pair.nrmse, pair.feature.endswith(WIDTH)


class _Pair:
    """The latest estimate of a pair, and its past errors."""

    __slots__ = ("_judged", "_squares", "estimate")

    def __init__(self) -> None:
        self.estimate: float | None = None
        self._squares = 0.0
        self._judged = 0

    def judge(self, run_time: float) -> None:
        """Record the error of the latest estimate."""
        if self.estimate is not None:
            self._judged += 1
            self._squares += (self.estimate - run_time) ** 2

    def nrmse(self, average: float) -> float:
        return sqrt(self._squares / self._judged) / average if self._judged >= JUDGED else inf


class _Past:
    """The history of the jobs with one feature value."""

    __slots__ = ("_densest", "_filtered", "_pairs", "_plain", "_runs", "errors")

    def __init__(self, *, median_filter: bool) -> None:
        self.errors: list[float] = []  # real / predicted run times
        self._runs: list[float] = []
        self._plain = RunTimeEstimators()
        self._filtered = RunTimeEstimators() if median_filter else None
        self._pairs = [_Pair() for _ in ESTIMATORS * (1 + median_filter)]
        self._densest = _Pair()  # computed on demand, because it is the most expensive

    def add(self, run_time: float) -> None:
        """Record the errors of the latest estimates, then add the run time. O(log n) amortised."""
        append(self._runs, run_time)
        estimates = self._plain.add(run_time)
        if self._filtered is not None:
            last = sorted(self._runs[-FILTER:])
            estimates += self._filtered.add(last[len(last) // 2])
        for pair, estimate in zip(self._pairs, estimates, strict=True):
            pair.judge(run_time)
            pair.estimate = estimate
        self._densest.judge(run_time)
        self._densest.estimate = None

    def pairs(self, feature: str) -> Iterator[Prediction]:
        """Yield the predictions of the paper's estimators, then those with the median filter."""
        for i, pair in enumerate(self._pairs):
            estimator = ESTIMATORS[i % len(ESTIMATORS)]
            if i >= len(ESTIMATORS):
                estimator += ", filtered"
            yield self._prediction(pair, feature, estimator)

    def densest(self, feature: str) -> Prediction:
        """Return the prediction of `densest`."""
        if self._densest.estimate is None:
            self._densest.estimate = densest(self._runs)
        return self._prediction(self._densest, feature, DENSEST)

    def _prediction(self, pair: _Pair, feature: str, estimator: str) -> Prediction:
        assert pair.estimate is not None
        return Prediction(pair.estimate, feature, estimator, pair.nrmse(self._plain.average))


def append(newest: list[float], value: float) -> None:
    """Append to a list of the newest `KEPT` values."""
    newest.append(value)
    if len(newest) > KEPT:
        del newest[0]


class _Stated:
    """The prediction for a job that has not ended."""

    __slots__ = ("quantiles", "run_time")

    def __init__(self) -> None:
        self.run_time = 0.0
        self.quantiles: dict[float, float] = {}


class JVuPredict(RunTimes):
    """Run times and their quantiles from jobs with common features (JamaisVu, §3).

    `choice` selects the predicting pair. `nrmse` is the paper's choice: the lowest RMSE of past
    predictions divided by the average run time. `nearest` is `densest` of the most specific feature
    value with a history. On no log tried was a choice by past errors better.
    """

    summary = "estimated from ended jobs with the most specific feature in common"
    takes_quantile = True

    @classmethod
    def build(cls, context: PredictorContext) -> Self:
        """Build a predictor without history."""
        return cls(quantile=context.quantile)

    def __init__(
        self,
        *,
        quantile: float | None = None,
        median_filter: bool = False,
        choice: Selection = "nearest",
    ) -> None:
        """Start without history. With a `quantile`, `run_time` returns this quantile.

        The median filter (§3.4) adds four estimators for `nrmse`. Raises ValueError unless 0 <
        quantile < 1.
        """
        if quantile is not None and not 0 < quantile < 1:
            raise ValueError(f"quantile must be between 0 and 1 (got {quantile})")
        self._quantile = quantile
        self._median_filter = median_filter
        self._choice = choice
        self._pasts: OrderedDict[FeatureValue, _Past] = OrderedDict()
        self._stated: OrderedDict[str, _Stated] = OrderedDict()
        self._conformal = Conformal()

    def run_time(self, job: Job) -> float:
        """Return the estimate in seconds, `UNKNOWN_RUN_TIME` without any history."""
        if self._quantile is not None:
            return self.quantiles(job, [self._quantile])[0]
        stated = self._state(job)
        return UNKNOWN_RUN_TIME if stated is None else stated.run_time

    def quantiles(self, job: Job, probabilities: Sequence[float]) -> list[float]:
        """Return the run times in seconds that the job does not exceed with these probabilities.

        They are the prediction times quantiles of past real / predicted ratios, calibrated in the
        job's pool. `UNKNOWN_RUN_TIME` while there are too few errors.
        """
        stated = self._state(job)
        errors = self._errors(job)
        if stated is None or not errors:
            return [UNKNOWN_RUN_TIME] * len(probabilities)
        most = 0.0
        for probability in sorted(probabilities):
            rank = min(ceil((len(errors) + 1) * probability), len(errors))
            moved = exp(self._conformal.shift(probability, job.pool))
            seconds = min(stated.run_time * errors[rank - 1] * moved, UNKNOWN_RUN_TIME)
            most = stated.quantiles[probability] = max(most, seconds)
        return [stated.quantiles[probability] for probability in probabilities]

    def running(self, job: Job, elapsed: float) -> float:
        """Return the run time in seconds of a job that has run for some time.

        Before the predicted end it is the prediction at the submission. After it, the run time is
        the median over those past jobs that exceeded their prediction by at least the same factor.
        """
        stated = self._stated.get(job.id) or self._state(job)
        if stated is None:
            return UNKNOWN_RUN_TIME
        if elapsed < stated.run_time:
            return stated.run_time
        return self.quantiles_after(job, [0.5], elapsed)[0]

    def quantiles_after(
        self, job: Job, probabilities: Sequence[float], elapsed: float
    ) -> list[float]:
        """Return quantiles of the run time in seconds, given that a job has run for some time.

        They are quantiles of the past real / predicted ratios above elapsed / predicted, of the
        most specific feature value with `ENOUGH` such ratios. If no value has enough, running twice
        as long is half as probable (Harchol-Balter and Downey, quoted in §2.2).
        """
        stated = self._stated.get(job.id) or self._state(job)
        if stated is None:
            return [UNKNOWN_RUN_TIME] * len(probabilities)
        least = elapsed / stated.run_time
        for value in values_of(job):
            past = self._pasts.get(value)
            longer = [] if past is None else sorted(r for r in past.errors if r > least)
            if len(longer) >= ENOUGH:
                ranks = (min(ceil((len(longer) + 1) * p), len(longer)) for p in probabilities)
                return [min(stated.run_time * longer[r - 1], UNKNOWN_RUN_TIME) for r in ranks]
        return [min(max(elapsed, LEAST) / (1.0 - p), UNKNOWN_RUN_TIME) for p in probabilities]

    def predict(self, job: Job) -> Prediction | None:
        """Return the prediction and its pair, or None without any history."""
        if self._choice == "nrmse":
            pairs = self.candidates(job)
            own = [pair for pair in pairs if pair.feature != ALL[0]]
            return min(own or pairs, key=_how_wrong, default=None)
        for value in values_of(job):
            if value in self._pasts:
                return self._pasts[value].densest(value[0])
        return None

    def candidates(self, job: Job) -> list[Prediction]:
        """Return the predictions of the paper's pairs, most specific feature first."""
        return [
            pair
            for value in values_of(job)
            if value in self._pasts
            for pair in self._pasts[value].pairs(value[0])
        ]

    def finished(self, now: float, job: Job, run_time: float) -> None:
        """Record the run time, and the error of the job's prediction. O(log n)."""
        run_time = max(run_time, LEAST)
        stated = self._stated.pop(job.id, None)
        for value in values_of(job):
            past = self._past(value)
            past.add(run_time)
            if stated is not None:
                append(past.errors, run_time / stated.run_time)
        if stated is not None:
            for probability, seconds in stated.quantiles.items():
                covered = run_time <= seconds
                self._conformal.update(probability, covered=covered, key=job.pool)

    def withdrawn(self, now: float, job: Job) -> None:
        """Discard the job's prediction."""
        self._stated.pop(job.id, None)

    def _past(self, value: FeatureValue) -> _Past:
        """Return the history of a feature value, created if missing."""
        past = self._pasts.get(value)
        if past is not None:
            self._pasts.move_to_end(value)
            return past
        if len(self._pasts) >= MOST_VALUES:
            self._pasts.popitem(last=False)
        past = self._pasts[value] = _Past(median_filter=self._median_filter)
        return past

    def _state(self, job: Job) -> _Stated | None:
        """Predict, and remember the prediction until the job ends."""
        predicted = self.predict(job)
        if predicted is None:
            return None
        stated = self._stated.get(job.id)
        if stated is None:
            if len(self._stated) >= MOST_STATED:
                self._stated.popitem(last=False)
            stated = self._stated[job.id] = _Stated()
        stated.run_time = predicted.run_time
        return stated

    def _errors(self, job: Job) -> list[float]:
        """Return errors, ascending, of the most specific feature value with `ENOUGH` of them."""
        for value in values_of(job):
            past = self._pasts.get(value)
            if past is not None and len(past.errors) >= ENOUGH:
                return sorted(past.errors)
        return []
