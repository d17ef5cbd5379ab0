"""The verdict in sentences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from predictors.catalog import GUARD, NONE, Choice
from replay.plotting.numbers import hours, minutes
from replay.run.run import BASELINE, Settings
from replay.verdict.rule import Outcome, Recommendation
from sia.limits import MAX_SLOWED_PCT
from sia.model import Options, StopCost
from sia.policies import load
from sia.wording import DAY, as_typed, counted, duration, percent, some

TRY = "sia@peaks+survival"
"""The policy to add if none could run today: SIA with the daemon's own default forecasts."""

CAREFUL = "sia@peaks:0.98+survival:0.95+guard"
"""A more careful policy, to try if those that were replayed delay too many jobs."""

RECLAIM = "sia-reclaim@peaks+survival"
"""The policy to try where jobs may be stopped: it lends every idle GPU, and needs no history."""

HISTORY = 14 * DAY
"""Seconds of history that `peaks` uses; with less history it reserves more."""


class Ground(NamedTuple):
    """What the verdict is based on."""

    pools: int
    runs: int = 0
    """Runs of an experiment; 0 for a single replay."""
    span_s: float = 0.0
    """Time between the first and the last submission."""
    in_cells: bool = False
    unstoppable: bool = False
    """Whether no job of the log may be stopped, so that `sia-reclaim` has no guests."""


def sentences(recommendation: Recommendation, ground: Ground, settings: Settings) -> list[str]:
    """Return the verdict: first what to do, then gain, risk, upper bound, and where to start."""
    return [
        *_answer(recommendation),
        *_details(recommendation, ground),
        *_cells(recommendation, ground),
        *_next(recommendation, ground, settings),
    ]


def _answer(recommendation: Recommendation) -> Iterator[str]:
    """Say in one sentence what to do."""
    today = recommendation.today
    if recommendation.answer == "share" and today is not None:
        yield f"Share idle GPUs, with {today.policy}."
    elif recommendation.answer == "too many delayed" and today is not None:
        yield (
            f"Do not share with these settings: each of those that can run today and gain would "
            f"delay more than {MAX_SLOWED_PCT:g} % of the jobs. {today.policy} delays fewest."
        )
    elif recommendation.answer == "no gain":
        yield "Do not share: no policy that can run today makes jobs end sooner on average."
    elif recommendation.answer == "nothing lent":
        yield "Do not share: under the policies that can run today no pool lends a GPU."
    elif recommendation.answer == "only the future":
        yield "No verdict: every policy that shares here knew the future, and none can run today."
    elif recommendation.answer == "no policy shares":
        yield "No verdict: no policy that shares GPUs was replayed."
    elif recommendation.answer == "pools alone":
        yield "Do not share: every pool is alone in its sharing group, so that none can lend."
    else:
        yield "No verdict: no job was measured."


def _details(recommendation: Recommendation, ground: Ground) -> Iterator[str]:
    """Say what the setting of today gains and risks, and what perfect forecasts would gain."""
    today, perfect = recommendation.today, recommendation.perfect
    if today is not None and recommendation.answer in ("share", "too many delayed", "no gain"):
        yield f"{_lending(today, ground)}, and {_ends(today)}."
        yield _risk(today)
    if perfect is not None and recommendation.answer not in ("pools alone", "nothing measured"):
        yield _most(perfect, today if recommendation.answer == "share" else None)


def _cells(recommendation: Recommendation, ground: Ground) -> Iterator[str]:
    """Explain forecasts in a cluster with cells, where idle GPUs may lie far apart."""
    today = recommendation.today
    if ground.in_cells and today is not None and load(today.policy).needs.loads:
        yield (
            "With cells, forecasts count the GPUs of whole cells, and SIA reserves whole cells for "
            "them; a job is lent only cells that no reservation needs."
        )


def too_low(loads: Sequence[Mapping[str, Any]]) -> str:
    """Say how many load forecasts were too low, over all lengths of windows."""
    of, missed = (sum(row[key] for row in loads) for key in ("forecasts", "missed"))
    share = percent(100 * missed / of)
    return f"Of {counted(of, 'load forecast')} {missed:,} ({share} %) were too low."


def _lending(outcome: Outcome, ground: Ground) -> str:
    lent = f"{hours(outcome.gpu_hours_lent)} GPU-hours"
    if ground.runs:
        runs, pools = counted(ground.runs, "run"), counted(outcome.lenders, "pool")
        return f"Over {runs}, {pools} would lend {lent}"
    return f"{outcome.lenders:,} of {counted(ground.pools, 'pool')} would lend {lent}"


def _ends(outcome: Outcome) -> str:
    alone = outcome.avg_jct_s + outcome.sooner_s
    change = "sooner" if outcome.sooner_s >= 0 else "later"
    return (
        f"jobs end {duration(abs(outcome.sooner_s))} {change} on average ("
        f"{duration(outcome.avg_jct_s)} after their submission, without sharing {duration(alone)})"
    )


def _risk(outcome: Outcome) -> str:
    measured = counted(outcome.measured, "job")
    if outcome.slowed:
        share, worst = percent(outcome.slowed_pct), minutes(outcome.worst_delay_s / 60)
        risk = f"Risk: {outcome.slowed:,} of {measured} ({share} %) would end up to {worst} later"
    else:
        risk = f"Risk: none of {measured} would end later"
    if outcome.lost:
        risk += f", and {outcome.lost:,} would never end"
    if outcome.stops:
        thrown = hours(outcome.gpu_hours_thrown_away)
        risk += (
            f"; jobs would be stopped or resized {counted(outcome.stops, 'time')}, which loses "
            f"{thrown} GPU-hours of work"
        )
    return f"{risk}."


def _most(perfect: Outcome, recommended: Outcome | None) -> str:
    """Say what perfect forecasts would gain, and which part of it the recommended policy gains."""
    if not perfect.gains:
        return (
            f"Even perfect forecasts ({perfect.policy}) would not make jobs end sooner on average."
        )
    words = (
        f"Perfect forecasts ({perfect.policy}) would make jobs end "
        f"{duration(perfect.sooner_s)} sooner on average"
    )
    if recommended is not None:
        part = 100 * recommended.sooner_s / perfect.sooner_s
        words += f"; {recommended.policy} gains {part:.0f} % of that"
    return f"{words}."


def _next(recommendation: Recommendation, ground: Ground, settings: Settings) -> Iterator[str]:
    """Say where to start, or what to try."""
    if recommendation.answer == "share" and recommendation.today is not None:
        policy = recommendation.today.policy
        lines = ", ".join(toml(settings, policy))
        yield (
            f'Start with {lines} in sia.toml, and lending = "shadow": the daemon then shows what '
            "it would lend, and lends nothing."
        )
        yield from _marked(settings, policy)
        if load(policy).needs.preemption:
            yield f"{policy} stops jobs and starts them again later: the backend must support that."
    elif recommendation.answer == "too many delayed":
        yield f"Try more careful forecasts, like --policy {CAREFUL}."
    elif recommendation.answer in ("only the future", "no policy shares"):
        yield f"Add {TRY} to --policy."
    elif recommendation.answer == "pools alone" and (inside := _inside_pools(settings)):
        yield (
            f"This says nothing about {some(inside)}, which divide the GPUs of each pool among its "
            "own jobs: compare them in the tables below."
        )
    unclear = recommendation.answer in ("nothing lent", "no gain", "too many delayed")
    if unclear and ground.unstoppable:
        yield (
            "If jobs may be stopped and started again, try --preemptible 100:restart with "
            f"{RECLAIM} in --policy: it lends every idle GPU, and needs no history."
        )
    if unclear and 0 < ground.span_s < HISTORY:
        yield (
            f"The log covers only {duration(ground.span_s)}; forecasts learn from up to "
            f"{duration(HISTORY)} of history and lend little until they have it."
        )


def _inside_pools(settings: Settings) -> list[str]:
    """Return the policies other than the baseline that share nothing between pools."""
    return [
        label
        for label in settings.policies
        if label != BASELINE and not load(settings.choice(label).policy).shares
    ]


def _marked(settings: Settings, policy: str) -> Iterator[str]:
    """Say that jobs must be marked if only a share of them was; else `toml` has a line for it."""
    marked = settings.preemptible
    if marked is not None and 0 < marked.percent < 100 and load(policy).needs.preemption:
        cost = _cost(marked.cost)
        yield (
            f"Here {marked.percent:g} % of the jobs, drawn at random, had preemptible {cost}; "
            f"in the daemon each job must say so: sia submit --preemptible {cost}."
        )


def _forecast(choice: Choice) -> str:
    """Return the part of a label after @ that chooses these forecasts."""
    pairs = ((choice.forecast, choice.load_quantile), (choice.durations, choice.run_time_quantile))
    parts = [name if quantile is None else f"{name}:{quantile:g}" for name, quantile in pairs]
    if choice.guard is not None:
        parts.append(GUARD if choice.guard == MAX_SLOWED_PCT else f"{GUARD}:{choice.guard:g}")
    return "+".join(parts)


def toml(settings: Settings, label: str) -> list[str]:
    """Return the lines of `[daemon]` in sia.toml that make the daemon decide as a policy here."""
    choice, options, usual = settings.choice(label), settings.options, Options()
    needs, marked = load(choice.policy).needs, settings.preemptible
    lines = [f'policy = "{choice.policy}{_params(settings, choice.policy)}"']
    if needs.preemption and marked is not None and marked.percent == 100:
        lines.append(f'preemptible = "{_cost(marked.cost)}"')
    if needs.loads or needs.run_times:
        used = (
            choice
            if needs.loads
            else choice._replace(forecast=NONE, load_quantile=None, guard=None)
        )
        lines.append(f'forecast = "{_forecast(used)}"')
    if needs.loads and options.windows != usual.windows:
        windows = ", ".join(f'"{as_typed(window)}"' for window in options.windows)
        lines.append(f"windows = [{windows}]")
    if needs.loads and options.slack != usual.slack:
        lines.append(f"slack = {options.slack:g}")
    return lines


def _cost(cost: StopCost) -> str:
    return cost if isinstance(cost, str) else as_typed(cost)


def _params(settings: Settings, policy: str) -> str:
    """Return the options of a policy that were set outside of its label."""
    if ":" in policy:
        return ""
    usual = load(policy)().params
    given = settings.params.get(policy, {})
    changed = {key: value for key, value in given.items() if getattr(usual, key) != value}
    return "".join(f":{key}={_value(value)}" for key, value in changed.items())


def _value(value: float | Sequence[float]) -> str:
    numbers = [value] if isinstance(value, int | float) else value
    return "+".join(f"{number:g}" for number in numbers)
