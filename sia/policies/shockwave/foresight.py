"""Predict how long a job stays in each configuration, and so its total run time (Shockwave, §5).

A prediction uses the whole epochs that a job has done in each regime so far; the last of these is
the ongoing regime. N is the number of its epochs, K that of its regimes, m that of the epochs of a
finished regime. The rules:

- `restate`: finished regimes keep their epochs, and S = (N - Σm) / (K - finished). The ongoing
  regime has S epochs, or as many as it already has; the later ones share the other epochs evenly.
- `bayes`: each regime has N / K plus its observed epochs, scaled to a sum of N. This posterior (of
  a Dirichlet distribution) does not use that finished regimes are over.
- `last`: all remaining epochs run at the present speed, as reactive schedulers assume.
- `perfect`: the real epochs.

A prediction is the mean of a Dirichlet distribution. `draws` draws trajectories from it, for the
expected welfare (appendix F).

If a job reaches more than K regimes, K becomes their number. Except with `bayes`, the last regime
gets all remaining epochs.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from itertools import pairwise
from math import floor, fsum, sqrt
from statistics import NormalDist
from typing import Literal, NamedTuple

from sia.model import Regime
from sia.policies.shockwave.modes import mode_of

PredictionRule = Literal["restate", "bayes", "last", "perfect"]
RULES: tuple[PredictionRule, ...] = ("restate", "bayes", "last", "perfect")

EDGE = 1e-9
"""Fraction of an epoch by which rounding may miss its end."""


class Reached(NamedTuple):
    """The progress of a job in its regimes."""

    seen: tuple[float, ...]
    """Whole epochs in each regime so far, the ongoing one last."""
    partial: float
    """Seconds into the epoch under way."""


class ForeseenJob(NamedTuple):
    """The prediction for a job. All lists are by regime; times are in seconds."""

    epochs: list[float]
    seconds: list[float]
    """Seconds of an epoch."""
    run: float
    """Seconds that it has run."""
    reached: Reached

    @property
    def total(self) -> float:
        """The total run time."""
        return fsum(map(float.__mul__, self.epochs, self.seconds))

    @property
    def remaining(self) -> float:
        """The remaining run time, at least 0."""
        return max(0.0, self.total - self.run)

    @property
    def done(self) -> float:
        """The number of epochs done, including the fraction of the present one."""
        ongoing = len(self.reached.seen) - 1
        return fsum(self.reached.seen) + self.reached.partial / self.seconds[ongoing]

    def ahead(self) -> list[tuple[float, float]]:
        """Return (epochs left, seconds of an epoch) of the ongoing and the later regimes."""
        ongoing = len(self.reached.seen) - 1
        begun = self.done - fsum(self.reached.seen[:-1])
        first = max(0.0, self.epochs[ongoing] - begun), self.seconds[ongoing]
        later = zip(self.epochs[ongoing + 1 :], self.seconds[ongoing + 1 :], strict=True)
        return [part for part in (first, *later) if part[0] > 0]


def predict(
    rule: PredictionRule,
    total_epochs: float,
    regimes: int,
    reached: Reached,
    truth: Sequence[float] = (),
) -> list[float]:
    """Return the epochs of each regime, which sum to `total_epochs`. O(regimes).

    `regimes` is K; `truth` has the real epochs for rule `perfect`.
    """
    seen = reached.seen
    if rule == "perfect":
        return [float(epochs) for epochs in truth]
    count = max(regimes, len(seen))
    if rule == "bayes":
        prior = total_epochs / count
        parts = [prior + (seen[i] if i < len(seen) else 0.0) for i in range(count)]
        scale = total_epochs / fsum(parts)
        return [part * scale for part in parts]
    finished, ongoing = seen[:-1], seen[-1]
    left = max(0.0, total_epochs - fsum(finished))
    if rule == "last" or count == len(seen):
        now, later = left, 0.0
    else:
        now = max(left / (count - len(finished)), ongoing)
        later = (left - now) / (count - len(seen))
    return [*map(float, finished), now, *[later] * (count - len(seen))]


def draws(
    predicted: ForeseenJob, total_epochs: float, number: int, seed: str
) -> list[list[tuple[float, float]]]:
    """Return random trajectories: for each draw (epochs left, seconds of an epoch) by regime.

    A Dirichlet distribution whose parameters are the predicted epochs (as after the restatement
    rule) divides the remaining epochs among the ongoing and the later regimes; the ongoing regime
    has at least the epochs done in it. The same seed draws the same. O(number · regimes).
    """
    ongoing = len(predicted.reached.seen) - 1
    finished = fsum(predicted.reached.seen[:-1])
    means = predicted.epochs[ongoing:]
    left = max(0.0, total_epochs - finished)
    found = []
    for draw in range(number):
        parts = [_gamma(mean, _uniform(f"{seed}/{draw}/{k}")) for k, mean in enumerate(means)]
        whole = fsum(parts)
        epochs = [left * part / whole for part in parts] if whole else [*means]
        now = min(left, max(epochs[0], predicted.reached.seen[-1]))
        later = fsum(epochs[1:])
        stretch = (left - now) / later if later else 0.0
        drawn = [*predicted.epochs[:ongoing], now, *(part * stretch for part in epochs[1:])]
        found.append(predicted._replace(epochs=drawn).ahead())
    return found


def _uniform(seed: str) -> float:
    """Return a pseudo-random number between 0 and 1 that depends only on the seed."""
    digest = blake2b(seed.encode(), digest_size=6).digest()
    return (int.from_bytes(digest) + 0.5) / 2**48


def _gamma(mean: float, uniform: float) -> float:
    """Return the quantile `uniform` of the gamma distribution with this mean and scale 1.

    By the approximation of Wilson and Hilferty; its error is about a percent for means above 1.
    """
    if mean <= 0:
        return 0.0
    normal = NormalDist().inv_cdf(uniform)
    return mean * max(0.0, 1 - 1 / (9 * mean) + normal / (3 * sqrt(mean))) ** 3


def reached_by(regimes: Sequence[Regime], work: float) -> Reached:
    """Return the progress of a job with these real regimes after `work` seconds of work."""
    seen: list[float] = []
    for place, regime in enumerate(regimes):
        epochs = work / regime.seconds
        if epochs < regime.epochs - EDGE or place == len(regimes) - 1:
            whole = min(float(floor(epochs + EDGE)), regime.epochs)
            return Reached((*seen, whole), max(0.0, work - whole * regime.seconds))
        seen.append(regime.epochs)
        work -= regime.epochs * regime.seconds
    raise ValueError("a job without regimes cannot have reached one")


def reached_as_reported(seconds: Sequence[float], begun: Sequence[float], work: float) -> Reached:
    """Return the progress of a job after `work` seconds of work, by its own reports.

    `seconds` has the seconds of an epoch in each regime so far, the ongoing one last; `begun` has
    the work at which each regime except the first began.
    """
    marks = [0.0, *(min(mark, work) for mark in begun), work]
    seen = [(b - a) / each for (a, b), each in zip(pairwise(marks), seconds, strict=True)]
    whole = float(floor(seen[-1] + EDGE))
    partial = max(0.0, work - marks[-2] - whole * seconds[-1])
    return Reached((*seen[:-1], whole), partial)


def work_of(
    mode: str, regimes: Sequence[Regime], epochs: float, begun: Sequence[float] | None
) -> float:
    """Return the seconds of work that this number of epochs takes.

    The inverse of `reached_by` and `reached_as_reported`. `begun` has the reported work at which
    each regime except the first began; None without reports, if the regimes are the real ones.
    """
    if begun is None:
        spans = [regime.epochs for regime in regimes[:-1]]
        seconds = [regime.seconds for regime in regimes]
    else:
        seconds = seconds_in(mode, regimes, len(begun) + 1)
        spans = [
            (b - a) / each for (a, b), each in zip(pairwise([0.0, *begun]), seconds, strict=False)
        ]
    work = 0.0
    for span, each in zip(spans, seconds, strict=False):
        if epochs <= span:
            return work + epochs * each
        work += span * each
        epochs -= span
    return work + epochs * seconds[-1]


def seconds_in(mode: str, regimes: Sequence[Regime], count: int) -> list[float]:
    """Return the seconds of an epoch in each of the first `count` regimes.

    Regimes after the stated ones have the configurations that the mode gives them.
    """
    config = mode_of(mode).config
    return [regimes[config(place, len(regimes))].seconds for place in range(count)]


def foreseen(
    rule: PredictionRule,
    mode: str,
    regimes: Sequence[Regime],
    work: float,
    begun: Sequence[float] | None = None,
) -> ForeseenJob:
    """Predict a job that has done `work` seconds of its regimes.

    Without reports these regimes are the real ones. Of regimes that the job has not reached, only
    the configurations and speeds are used, which a user would state; rule `perfect` also uses their
    epochs. With reports, `begun` has the work at which each regime except the first began, and the
    real epochs are unknown: rule `perfect` then predicts as `restate` does.
    """
    expected = mode_of(mode).expected([regime.config for regime in regimes])
    whole = fsum(regime.epochs for regime in regimes)
    if begun is None:
        reached = reached_by(regimes, work)
    else:
        reached = reached_as_reported(seconds_in(mode, regimes, len(begun) + 1), begun, work)
        rule = "restate" if rule == "perfect" else rule
    epochs = predict(rule, whole, expected, reached, [regime.epochs for regime in regimes])
    return ForeseenJob(epochs, seconds_in(mode, regimes, len(epochs)), work, reached)
