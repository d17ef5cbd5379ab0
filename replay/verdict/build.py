"""Build the verdict of a replay from its measures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from replay.logs.trace import PoolTable
from replay.run.run import BASELINE, Settings
from replay.verdict.kinds import Kind, kind_of
from replay.verdict.rule import LEAST_GAIN, Outcome, Recommendation, recommend
from replay.verdict.words import Ground, sentences, toml
from sia.limits import MAX_SLOWED_PCT


def can_share(table: PoolTable) -> bool:
    """Return whether any pool has another pool to share with."""
    groups = Counter(pool.group for pool in table.pools if pool.share)
    return max(groups.values(), default=0) > 1


def outcome_of(policy: str, kind: Kind, measures: Mapping[str, Any]) -> Outcome:
    """Return the gain and cost of a policy from its measures in summary.json."""
    shown = measures["measured"]
    avg, alone = measures["avg_jct_s"] or 0.0, measures["baseline_avg_jct_s"] or 0.0
    return Outcome(
        policy=policy,
        kind=kind,
        measured=shown,
        sooner_s=alone - avg,
        avg_jct_s=avg,
        slowed=measures["slowed"],
        worst_delay_s=60 * measures["slowdown_max_min"],
        lost=max(0, measures["never_ended"] - measures["baseline_never_ended"]),
        gpu_hours_lent=measures["gpu_hours_lent"],
        lenders=sum(1 for pool in measures["pools"].values() if pool["gpu_hours_lent"]),
        stops=measures["interruptions"],
        gpu_hours_thrown_away=measures["gpu_hours_thrown_away"],
    )


def add_verdict(
    table: PoolTable, settings: Settings, summary: dict[str, Any], span_s: float
) -> None:
    """Add the verdict to a summary, under the key `verdict`.

    `span_s` is the time between the first and the last submission.
    """
    measures = summary["policies"]
    outcomes = [
        outcome_of(label, kind_of(settings, label), measures[label])
        for label in settings.policies
        if label != BASELINE
    ]
    said = recommend(outcomes, can_share=can_share(table))
    ground = Ground(len(table.pools), span_s=span_s)
    summary["verdict"] = described(said, ground, settings)


def described(said: Recommendation, ground: Ground, settings: Settings) -> dict[str, Any]:
    """Return a verdict as plain values."""
    compared = {"today": said.today, "perfect": said.perfect}
    return {
        "words": sentences(said, ground, settings),
        "answer": said.answer,
        "recommended": said.recommended,
        "sia_toml": toml(settings, said.recommended) if said.recommended else [],
        "rule": {
            "least_gain_s": LEAST_GAIN,
            "max_slowed_pct": MAX_SLOWED_PCT,
            "candidates": said.candidates,
            "safe": said.safe,
        },
        "kinds": {label: kind_of(settings, label) for label in settings.policies},
        "compared": {
            name: None
            if outcome is None
            else {**outcome._asdict(), "slowed_pct": outcome.slowed_pct}
            for name, outcome in compared.items()
        },
    }
