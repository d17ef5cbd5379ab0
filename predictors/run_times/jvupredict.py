"""JVuPredict: run times from jobs that had something in common (JamaisVu, §3).

Each ended job is remembered under every *feature value* it had: its name, its user and so on, each
also together with its width. Of each feature value's run times several *estimators* are kept. A
prediction is what one estimator says of one feature value's past: a pair.
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

Selection = Literal["nearest", "nrmse"]
"""How the pair that predicts is chosen; see `JVuPredict`."""

FeatureValue = tuple[str, str, int]
"""Feature, its value, and the width or 0."""

ALL: FeatureValue = ("all", "", 0)
"""What every job is of."""

WIDTH = ", width"
"""At the end of a feature's name: together with the width."""

FILTER = 3
"""Run times of which the median filter takes the middle one (§3.4): one outlier is gone."""

LEAST = 1e-3
"""Seconds: shorter run times are taken as so long, as ratios to nothing say nothing."""

JUDGED = 1
"""Past predictions of a pair without which `nrmse` does not choose it. More are worse: on Google's
log with 1 it is off by more than a factor of two on 12 % of the jobs, with 20 on 20 %."""

ENOUGH = 10
"""Errors of a feature value without which quantiles are read off a wider one's; where not even all
jobs have so many, nothing is foretold."""

MOST_VALUES = 200_000
"""Feature values kept, the least recently used dropped; the jobs that finished in Google's month
have 36,521. One takes 1.3 KB after its first job and 4.5 KB after fifty."""

MOST_STATED = 100_000
"""Jobs asked about that have not ended: some never do and nobody tells, so that the oldest are
forgotten, and nothing is learned of what was said of them."""

LETTERS = 3
"""Letters that must be left of a name for it to mean anything: `job#` may, `n#` does not."""

NUMBERED = re.compile(
    r"(?<![0-9A-Za-z])(?=[A-Fa-f]*[0-9])[0-9A-Fa-f]{6,}(?![0-9A-Za-z])|[0-9]+", re.ASCII
)
"""Parts of a name that count or are hashes: digits, and long hexadecimal words that have one."""


class Prediction(NamedTuple):
    """What one pair says of a job."""

    run_time: float
    """Seconds."""
    feature: str
    estimator: str
    nrmse: float
    """RMSE of the pair's past predictions / average run time; infinite while it has none."""


def logical_name(name: str) -> str:
    """A name without its counts and hashes: `train-0815` is `train-#`.

    Empty where that is the name itself, or too little to mean anything.
    """
    logical = NUMBERED.sub("#", name)
    return logical if logical != name and sum(map(str.isalpha, logical)) >= LETTERS else ""


def values_of(job: Job) -> list[FeatureValue]:
    """The feature values of a job, most telling first (§3.2); `ALL` is the last.

    Widths are whole numbers, to which the paper rounds resources above 1.
    """
    told = (
        ("name", job.name),
        ("logical name", logical_name(job.name)),
        ("user", job.user),
        ("pool", job.pool),
    )
    values: list[FeatureValue] = []
    for feature, value in told:
        if value:
            values += [(feature + WIDTH, value, job.width), (feature, value, 0)]
    return [*values, ALL]


def _how_wrong(pair: Prediction) -> tuple[float, bool]:
    """Of equally wrong pairs the one without the width is meant: all jobs may be equally wide."""
    return pair.nrmse, pair.feature.endswith(WIDTH)


class _Pair:
    """What an estimator says of one feature value, and how wrong it was."""

    __slots__ = ("_judged", "_squares", "said")

    def __init__(self) -> None:
        self.said: float | None = None
        self._squares = 0.0
        self._judged = 0

    def judge(self, run_time: float) -> None:
        """Compare what was said last with what came."""
        if self.said is not None:
            self._judged += 1
            self._squares += (self.said - run_time) ** 2

    def nrmse(self, average: float) -> float:
        return sqrt(self._squares / self._judged) / average if self._judged >= JUDGED else inf


class _Past:
    """What is remembered of the jobs of one feature value."""

    __slots__ = ("_densest", "_filtered", "_pairs", "_plain", "_runs", "errors")

    def __init__(self, *, median_filter: bool) -> None:
        self.errors: list[float] = []  # actual / predicted run times of such jobs
        self._runs: list[float] = []
        self._plain = RunTimeEstimators()
        self._filtered = RunTimeEstimators() if median_filter else None
        self._pairs = [_Pair() for _ in ESTIMATORS * (1 + median_filter)]
        self._densest = _Pair()  # says something only when asked: it costs more than all others

    def add(self, run_time: float) -> None:
        """Judge what was said by a run time, then learn from it. O(log n), amortised."""
        append(self._runs, run_time)
        estimates = self._plain.add(run_time)
        if self._filtered is not None:
            last = sorted(self._runs[-FILTER:])
            estimates += self._filtered.add(last[len(last) // 2])
        for pair, estimate in zip(self._pairs, estimates, strict=True):
            pair.judge(run_time)
            pair.said = estimate
        self._densest.judge(run_time)
        self._densest.said = None

    def pairs(self, feature: str) -> Iterator[Prediction]:
        """What the paper's estimators say, with the median filter's behind them."""
        for i, pair in enumerate(self._pairs):
            estimator = ESTIMATORS[i % len(ESTIMATORS)]
            if i >= len(ESTIMATORS):
                estimator += ", filtered"
            yield self._prediction(pair, feature, estimator)

    def densest(self, feature: str) -> Prediction:
        """What `densest` says."""
        if self._densest.said is None:
            self._densest.said = densest(self._runs)
        return self._prediction(self._densest, feature, DENSEST)

    def _prediction(self, pair: _Pair, feature: str, estimator: str) -> Prediction:
        assert pair.said is not None
        return Prediction(pair.said, feature, estimator, pair.nrmse(self._plain.average))


def append(newest: list[float], value: float) -> None:
    """Add to the newest `KEPT`."""
    newest.append(value)
    if len(newest) > KEPT:
        del newest[0]


class _Stated:
    """What was said of a job that has not ended."""

    __slots__ = ("quantiles", "run_time")

    def __init__(self) -> None:
        self.run_time = 0.0
        self.quantiles: dict[float, float] = {}


class JVuPredict(RunTimes):
    """Run times from the past of jobs alike in something (JamaisVu, §3), and their quantiles.

    `choice` says which pair predicts. `nrmse` is the paper's: the one with the lowest RMSE of its
    past predictions by the average run time. `nearest` is `densest` of the most telling feature
    value that has a past: no way of choosing by past errors was better on any log tried.
    """

    summary = "by the most telling thing that ended jobs have in common with it"
    takes_quantile = True

    @classmethod
    def build(cls, context: PredictorContext) -> Self:
        """Build one that has seen nothing yet."""
        return cls(quantile=context.quantile)

    def __init__(
        self,
        *,
        quantile: float | None = None,
        median_filter: bool = False,
        choice: Selection = "nearest",
    ) -> None:
        """Start with no past. With a `quantile`, `run_time` is that one.

        The median filter (§3.4) gives `nrmse` four more estimators to choose from. Raises
        ValueError for a quantile that is not between 0 and 1.
        """
        if quantile is not None and not 0 < quantile < 1:
            raise ValueError(f"a quantile is between 0 and 1, not {quantile}")
        self._quantile = quantile
        self._median_filter = median_filter
        self._choice = choice
        self._pasts: OrderedDict[FeatureValue, _Past] = OrderedDict()
        self._stated: OrderedDict[str, _Stated] = OrderedDict()
        self._conformal = Conformal()

    def run_time(self, job: Job) -> float:
        """Seconds; `UNKNOWN_RUN_TIME` while nothing at all is known."""
        if self._quantile is not None:
            return self.quantiles(job, [self._quantile])[0]
        stated = self._state(job)
        return UNKNOWN_RUN_TIME if stated is None else stated.run_time

    def quantiles(self, job: Job, probabilities: Sequence[float]) -> list[float]:
        """Seconds that the job will not run longer than, with each of these probabilities.

        They are the prediction times what such jobs ran longer than predicted, moved so that they
        have been true of late in the job's pool. `UNKNOWN_RUN_TIME` while there are too few errors.
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

    def predict(self, job: Job) -> Prediction | None:
        """What is predicted and by which pair; None while nothing at all is known."""
        if self._choice == "nrmse":
            pairs = self.candidates(job)
            own = [pair for pair in pairs if pair.feature != ALL[0]]
            return min(own or pairs, key=_how_wrong, default=None)
        for value in values_of(job):
            if value in self._pasts:
                return self._pasts[value].densest(value[0])
        return None

    def candidates(self, job: Job) -> list[Prediction]:
        """What each of the paper's pairs says, most telling feature first."""
        return [
            pair
            for value in values_of(job)
            if value in self._pasts
            for pair in self._pasts[value].pairs(value[0])
        ]

    def finished(self, now: float, job: Job, run_time: float) -> None:
        """Learn how long it ran, and how wrong was what had been said of it. O(log n)."""
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
        """Nothing is learned from it."""
        self._stated.pop(job.id, None)

    def _past(self, value: FeatureValue) -> _Past:
        """What is known of a feature value, from now on if nothing is."""
        past = self._pasts.get(value)
        if past is not None:
            self._pasts.move_to_end(value)
            return past
        if len(self._pasts) >= MOST_VALUES:
            self._pasts.popitem(last=False)
        past = self._pasts[value] = _Past(median_filter=self._median_filter)
        return past

    def _state(self, job: Job) -> _Stated | None:
        """Predict, and remember it until the job ends."""
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
        """Those of the most telling feature value that has `ENOUGH`, ascending; else none."""
        for value in values_of(job):
            past = self._pasts.get(value)
            if past is not None and len(past.errors) >= ENOUGH:
                return sorted(past.errors)
        return []
