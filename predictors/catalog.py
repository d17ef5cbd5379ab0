"""Predictors by name: which are installed, labels that choose among them, and how each is built.

A predictor is a class of `sia.forecasts` under entry point `sia.loads` or `sia.run_times`; it is
imported when a label names it. Attributes of the class state its needs and whether it takes a
quantile.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, NoReturn

from sia.contract.labels import name_of
from sia.contract.plugins import load_plugin, plugins
from sia.forecasts import Loads, Predictor, PredictorContext, RunTimes
from sia.limits import MAX_SLOWED_PCT
from sia.policies import load, make, names
from sia.wording import did_you_mean

LOADS, RUN_TIMES = "sia.loads", "sia.run_times"
"""The entry point groups of predictors."""

KINDS = {LOADS: "forecast", RUN_TIMES: "way to foresee durations"}
"""The groups in the order of a label, with the words for their members in messages."""

NONE = "none"
"""The forecast that predicts nothing."""

LEARNED = "learned"
"""The forecast that the folder of a model stands for."""

GUARD = "guard"

FORM = "POLICY@FORECAST[:QUANTILE]+DURATIONS[:QUANTILE|:PERCENT][+guard[:PERCENT]]"


class Choice(NamedTuple):
    """A policy with its predictors of load and run time.

    `policy` may have options of its own (`sia.contract.labels`). `durations` has the percentage of
    an error, if it takes one, like `within:20`. Quantiles are None if the label sets none. `guard`
    is the percentage of jobs that may be slowed if a share controller watches the forecast
    (`predictors.loads.guard`), else None.
    """

    policy: str
    forecast: str
    durations: str
    load_quantile: float | None = None
    run_time_quantile: float | None = None
    guard: float | None = None


def forecasts() -> list[str]:
    """Return the names of all load forecasts."""
    return list(plugins(LOADS))


def durations() -> list[str]:
    """Return the names of all run-time predictors."""
    return list(plugins(RUN_TIMES))


def loads_class(name: str) -> type[Loads]:
    """Import a load forecast. Raises KeyError if there is none of that name."""
    found: type[Loads] = load_plugin(LOADS, name)
    return found


def run_times_class(durations: str) -> type[RunTimes]:
    """Import a run-time predictor, like `history` or `within:20`.

    Raises KeyError if there is none of that name.
    """
    found: type[RunTimes] = load_plugin(RUN_TIMES, durations.partition(":")[0])
    return found


def check_durations(text: str) -> None:
    """Check the name of a run-time predictor with its percentage, like `within:20`.

    Raises KeyError with a message.
    """
    name, colon, percent = text.partition(":")
    _refuse_unknown(RUN_TIMES, name)
    bounds = run_times_class(name).percent_bounds
    if bounds is None:
        if colon:
            raise KeyError(f"{text!r}: {name} takes no percentage; leave out :{percent}")
        return
    least, most = bounds
    try:
        number = float(percent)
    except ValueError:
        raise KeyError(f"{text!r}: write {name}:PERCENT, like {name}:20") from None
    if not least <= number <= most:
        raise KeyError(
            f"{text!r}: the percentage must be {least:g} to {most:g} (got {percent}); change it"
        )


def _percent(durations: str) -> float | None:
    """Return the percentage in the checked name of a run-time predictor."""
    percent = durations.partition(":")[2]
    return float(percent) if percent else None


def with_quantile(group: str) -> list[str]:
    """Return the names of the predictors of a group that take a quantile."""
    return [name for name in plugins(group) if _class(group, name).takes_quantile]


def _class(group: str, name: str) -> type[Predictor]:
    found: type[Predictor] = load_plugin(group, name)
    return found


def parse(label: str, default: Choice) -> Choice:
    """Parse a label; parts that it omits are taken from `default`.

    Raises KeyError with a message for an unknown name or an invalid label.
    """
    policy, at, senses = label.partition("@")
    chosen = default._replace(policy=policy)
    if at:
        chosen = _senses(label, policy, senses.split("+"))
    if name_of(policy) not in names():
        _refuse("policy", name_of(policy), names())
    try:
        make(policy)
    except ValueError as error:
        raise KeyError(str(error)) from None
    _refuse_unknown(LOADS, chosen.forecast)
    check_durations(chosen.durations)
    needs = load(policy).needs
    if needs.run_times and (missing := run_times_class(chosen.durations).missing()):
        raise KeyError(missing)
    if at and not (needs.loads or needs.run_times):
        raise KeyError(f"{label!r}: {policy} uses no forecasts; leave out {at}{senses}")
    if at and chosen.guard is not None and (not needs.loads or chosen.forecast == NONE):
        raise KeyError(f"{label!r}: no load forecast to guard; leave out +{GUARD}")
    return chosen


def _refuse_unknown(group: str, name: str) -> None:
    """Raise KeyError if a group has no predictor of that name."""
    known = list(plugins(group))
    if name in known:
        return
    mend = ""
    if group == LOADS:
        others = ", ".join(other for other in known if other != LEARNED)
        mend = f"for a model write {LEARNED} and give --forecast DIR, else write {others}"
    _refuse(KINDS[group], name, known, mend)


def _refuse(kind: str, name: str, known: Sequence[str], mend: str = "") -> NoReturn:
    close = did_you_mean(name, known)
    mend = mend or f"there is {', '.join(known)}"
    raise KeyError(f"there is no {kind} {name!r}; {mend}{close and f'.{close}'}")


def _senses(label: str, policy: str, parts: list[str]) -> Choice:
    if not (2 <= len(parts) <= 3 and all(parts)):
        raise KeyError(f"{label!r}: write {FORM}, like sia@peaks:0.95+survival:0.9")
    (forecast, load_quantile), (durations, run_time_quantile) = (
        _quantile(label, part, group) for part, group in zip(parts, KINDS, strict=False)
    )
    guard = None
    if len(parts) == 3:
        name, colon, percent = parts[2].partition(":")
        if name != GUARD:
            raise KeyError(f"{label!r}: the third part must be {GUARD} (got {name!r})")
        guard = _number(label, GUARD, percent, 100.0) if colon else MAX_SLOWED_PCT
    return Choice(policy, forecast, durations, load_quantile, run_time_quantile, guard)


def _quantile(label: str, part: str, group: str) -> tuple[str, float | None]:
    name, colon, quantile = part.partition(":")
    _refuse_unknown(group, name)
    if group == RUN_TIMES and run_times_class(name).percent_bounds is not None:
        return part, None
    if not colon:
        return name, None
    if not _class(group, name).takes_quantile:
        able = ", ".join(with_quantile(group))
        raise KeyError(f"{label!r}: {name} takes no quantile; only {able} do")
    return name, _number(label, name, quantile, 1.0)


def _number(label: str, name: str, text: str, most: float) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 < number < most:
        raise KeyError(f"{label!r}: {name}:NUMBER must be between 0 and {most:g} (got {text!r})")
    return number


def learns(choice: Choice) -> bool:
    """Return whether the predictions depend on earlier jobs."""
    needs = load(choice.policy).needs
    return (needs.loads and loads_class(choice.forecast).learns) or (
        needs.run_times and run_times_class(choice.durations).learns
    )


def replay_only(choice: Choice) -> bool:
    """Whether a choice has a predictor that no daemon should use."""
    loads, run_times = loads_class(choice.forecast), run_times_class(choice.durations)
    return loads.replay_only or run_times.replay_only


def run_times_by(choice: Choice, context: PredictorContext) -> RunTimes:
    """Build the chosen run-time predictor."""
    percent = _percent(choice.durations)
    context = context._replace(quantile=choice.run_time_quantile, percent=percent)
    return run_times_class(choice.durations).build(context)


def loads_by(choice: Choice, context: PredictorContext) -> Loads | None:
    """Build the chosen load forecast, or None for `none`."""
    return loads_class(choice.forecast).build(context._replace(quantile=choice.load_quantile))
