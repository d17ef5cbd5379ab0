"""Classify policies by whether a live cluster could use them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from predictors.catalog import Choice, loads_class, run_times_class
from replay.run.run import BASELINE, Settings, known_in_advance
from sia.policies import load

Kind = Literal["baseline", "today", "future", "comparison", "alone"]
"""What a policy is.

- `baseline`: what every policy is compared with;
- `today`: shares, and knows nothing that a live system could not know;
- `future`: shares, and knows arrivals or run times in advance;
- `comparison`: shares, with a predictor that is only for comparison, such as random forecasts;
- `alone`: does not share.
"""

ORDER: tuple[Kind, ...] = ("baseline", "today", "future", "comparison", "alone")
"""The order of policies in reports: first those to decide by."""


def kind_of(settings: Settings, label: str) -> Kind:
    """Return what a policy is; one that is not installed here counts as `comparison`."""
    if label == BASELINE:
        return "baseline"
    try:
        choice = settings.choice(label)
        shares = load(choice.policy).shares
    except KeyError:
        return "comparison"
    if not shares:
        return "alone"
    if known_in_advance(settings, label):
        return "future"
    return "comparison" if _only_compares(choice) else "today"


def _only_compares(choice: Choice) -> bool:
    """Return whether the policy uses a predictor that no daemon accepts."""
    needs = load(choice.policy).needs
    loads, run_times = loads_class(choice.forecast), run_times_class(choice.durations)
    return (needs.loads and loads.replay_only) or (needs.run_times and run_times.replay_only)


def in_order(settings: Settings, labels: Iterable[str]) -> list[str]:
    """Return the labels in the order of `ORDER`, and as given among those of one kind."""
    return sorted(labels, key=lambda label: ORDER.index(kind_of(settings, label)))
