"""Predictors by name: labels that choose among them, and how each is built."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from predictors.loads.sliding import RECENT
from sia.forecasts import Loads, RunTimes
from sia.limits import MAX_SLOWED_PCT
from sia.policies import load, names
from sia.wording import did_you_mean

if TYPE_CHECKING:
    from predictors.learning.model import Model

FORECASTS = ("perfect", "sliding-max", "peaks", "learned", "random", "none")
DURATIONS = ("perfect", "history", "survival", "jvupredict", "random")

WITH_QUANTILE = {
    "forecast": ("peaks", "learned"),
    "way to foresee durations": ("history", "survival", "jvupredict"),
}
"""Those of each kind of which a more or a less cautious answer can be asked."""

PEAKS = "peaks"
"""The forecast that can state no quantile beyond what it remembers (`predictors.peaks.highest`)."""

LEARNED = "learned"
"""The forecast that needs a model."""

LEARNED_TO = 0.995
"""The highest quantile of load that a model learns."""

GUARD = "guard"

FORM = "POLICY@FORECAST[:QUANTILE]+DURATIONS[:QUANTILE][+guard[:PERCENT]]"


class Choice(NamedTuple):
    """A policy, and what it is to foresee arrivals and run times by.

    Quantiles are None where nothing is said of them; `guard` is the percentage of jobs that may be
    slowed where a share controller watches the forecast (`predictors.guard`), otherwise None.
    """

    policy: str
    forecast: str
    durations: str
    load_quantile: float | None = None
    run_time_quantile: float | None = None
    guard: float | None = None


def parse(label: str, default: Choice) -> Choice:
    """What a label stands for; what it does not say is as in `default`.

    Raises KeyError for what there is not, with a message.
    """
    policy, at, senses = label.partition("@")
    chosen = default._replace(policy=policy)
    if at:
        chosen = _senses(label, policy, senses.split("+"))
    for kind, name in zip(("policy", *WITH_QUANTILE), chosen[:3], strict=True):
        _refuse_unknown(kind, name)
    needs = load(policy).needs
    if at and not (needs.loads or needs.run_times):
        raise KeyError(f"{label!r}: {policy} foresees nothing by these; leave out {at}{senses}")
    if at and chosen.guard is not None and (not needs.loads or chosen.forecast == "none"):
        raise KeyError(f"{label!r}: there is no forecast of loads to guard; leave out +{GUARD}")
    if needs.loads and chosen.forecast == LEARNED and (chosen.load_quantile or 0) > LEARNED_TO:
        raise KeyError(f"{label!r}: loads are learned up to quantile {LEARNED_TO}; ask for less")
    return chosen


def _refuse_unknown(kind: str, name: str) -> None:
    """Raise KeyError where there is no such policy, forecast or way to foresee durations."""
    if kind == "forecast":
        known: Sequence[str] = FORECASTS
        others = ", ".join(other for other in FORECASTS if other != LEARNED)
        mend = f"for a model write {LEARNED} and give --forecast DIR, else write {others}"
    else:
        known = names() if kind == "policy" else DURATIONS
        mend = f"there is {', '.join(known)}"
    if name not in known:
        close = did_you_mean(name, known)
        raise KeyError(f"there is no {kind} {name!r}; {mend}{close and f'.{close}'}")


def _senses(label: str, policy: str, parts: list[str]) -> Choice:
    if not (2 <= len(parts) <= 3 and all(parts)):
        raise KeyError(f"{label!r}: write {FORM}, like sia@peaks:0.95+survival:0.9")
    (forecast, load_quantile), (durations, run_time_quantile) = (
        _quantile(label, part, kind) for part, kind in zip(parts, WITH_QUANTILE, strict=False)
    )
    guard = None
    if len(parts) == 3:
        name, colon, percent = parts[2].partition(":")
        if name != GUARD:
            raise KeyError(f"{label!r}: only {GUARD} can come third, not {name!r}")
        guard = _number(label, percent, 100.0) if colon else MAX_SLOWED_PCT
    return Choice(policy, forecast, durations, load_quantile, run_time_quantile, guard)


def _quantile(label: str, part: str, kind: str) -> tuple[str, float | None]:
    name, colon, quantile = part.partition(":")
    _refuse_unknown(kind, name)
    if not colon:
        return name, None
    if name not in WITH_QUANTILE[kind]:
        raise KeyError(f"{label!r}: {name} has no quantile; {', '.join(WITH_QUANTILE[kind])} have")
    return name, _number(label, quantile, 1.0)


def _number(label: str, text: str, most: float) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 < number < most:
        raise KeyError(f"{label!r}: write a number between 0 and {most:g}, not {text!r}")
    return number


def learns(choice: Choice) -> bool:
    """Whether what a choice foresees depends on what was before."""
    needs = load(choice.policy).needs
    return (needs.loads and choice.forecast not in ("perfect", "none")) or (
        needs.run_times and choice.durations not in ("perfect", "random")
    )


class Means(NamedTuple):
    """What predictors are built with.

    Attributes:
        windows: Lengths of the windows whose load is foreseen, in seconds.
        recent: Windows that `sliding-max` and others like it remember.
        seed: Of the random predictors.
        model: What the forecast `learned` has learned.
    """

    windows: tuple[float, ...]
    recent: int = RECENT
    seed: int = 0
    model: Model | None = None


def run_times_by(choice: Choice, means: Means) -> RunTimes:
    """The run-time predictor that is chosen. Each is loaded where it is wanted: some take long.

    Raises KeyError for `perfect`, which only whoever has the whole log can build.
    """
    quantile = choice.run_time_quantile
    asked = {} if quantile is None else {"quantile": quantile}
    match choice.durations:
        case "history":
            from predictors.run_times.history import HistoryRunTimes  # noqa: PLC0415

            return HistoryRunTimes(**asked)
        case "survival":
            from predictors.run_times.survival import SurvivalRunTimes  # noqa: PLC0415

            return SurvivalRunTimes(means.windows, **asked)
        case "jvupredict":
            from predictors.run_times.jvupredict import JVuPredict  # noqa: PLC0415

            return JVuPredict(quantile=quantile)
        case "random":
            from predictors.random_forecast import RandomRunTimes  # noqa: PLC0415

            return RandomRunTimes(means.windows, means.seed)
    raise KeyError(choice.durations)


def loads_by(choice: Choice, pools: Sequence[str], start: float, means: Means) -> Loads | None:
    """The load forecast that is chosen, which begins to observe at second `start`.

    None foresees nothing. Raises KeyError for `perfect`, as `run_times_by` does.
    """
    windows, recent = means.windows, means.recent
    match choice.forecast:
        case "none":
            return None
        case "sliding-max":
            from predictors.loads.sliding import SlidingMaximum  # noqa: PLC0415

            return SlidingMaximum(pools, windows, start, recent)
        case "peaks":
            from predictors.loads.peaks import QUANTILE, PeakLoads  # noqa: PLC0415

            return PeakLoads(pools, windows, start, choice.load_quantile or QUANTILE)
        case "learned":
            from predictors.loads.learned import LearnedLoads  # noqa: PLC0415

            assert means.model is not None, "learned, without a model"
            return LearnedLoads(pools, windows, start, means.model, recent, choice.load_quantile)
        case "random":
            from predictors.random_forecast import RandomLoads  # noqa: PLC0415

            return RandomLoads(pools, windows, start, means.seed, recent)
    raise KeyError(choice.forecast)
