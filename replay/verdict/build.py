"""Build the verdict of a replay from its measures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from replay.logs.preemptible import unstoppable
from replay.logs.trace import PoolTable
from replay.run.run import BASELINE, Settings
from replay.run.schedule import Result
from replay.verdict.kinds import Kind, kind_of
from replay.verdict.rule import LEAST_GAIN, Outcome, Recommendation, recommend
from replay.verdict.waits import Waited, waited, waits_of
from replay.verdict.words import Ground, sentences, toml, too_low
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
    table: PoolTable, settings: Settings, summary: dict[str, Any], results: Sequence[Result]
) -> Recommendation:
    """Add the verdict to a summary, under the key `verdict`; return the recommendation."""
    measures = summary["policies"]
    outcomes = [
        outcome_of(label, kind_of(settings, label), measures[label])
        for label in settings.policies
        if label != BASELINE
    ]
    recommendation = recommend(outcomes, can_share=can_share(table))
    trace = results[0].loop.log if results[0].loop else results[0].trace
    length = trace.arrivals[-1].job.submit - trace.arrivals[0].job.submit if trace.arrivals else 0.0
    ground = Ground(
        len(table.pools),
        span_s=length,
        in_cells=settings.cells is not None,
        unstoppable=unstoppable(trace),
    )
    verdict = described(recommendation, ground, settings)
    by_label = {result.schedule.policy: result for result in results}
    verdict["compared"] = _baseline(recommendation, by_label, measures) | verdict["compared"]
    columns = _columns(recommendation, by_label, settings)
    waits = waits_of(columns, sorted(pool.name for pool in table.pools))
    for name, entry in verdict["compared"].items():
        if entry is not None:
            label = entry["policy"]
            own = waits["all"].get(name, {})
            entry["wait_avg_s"], entry["wait_p90_s"] = own.get("mean_s"), own.get("p90_s")
            if label in measures:
                entry["utilisation_pct"] = measures[label]["utilisation_pct"]
    verdict["waits"] = waits
    verdict["pools"] = (
        [] if recommendation.today is None else pools_of(measures[recommendation.today.policy])
    )
    verdict["forecasts"] = None
    if recommendation.today is not None:
        result = by_label[recommendation.today.policy]
        if result.schedule.forecasts is not None or result.schedule.estimates is not None:
            from replay.verdict.accuracy import accuracy_of  # noqa: PLC0415  numpy is slow to import

            quotas = {name: pool["quota"] for name, pool in pools_in(measures).items()}
            found = verdict["forecasts"] = accuracy_of(result, table, settings, quotas)
            if settings.cells is not None and found["loads"]:
                verdict["words"].append(too_low(found["loads"]))
    summary["verdict"] = verdict
    return recommendation


def pools_in(measures: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the pools of any policy's measures."""
    pools: Mapping[str, Any] = next(iter(measures.values()))["pools"]
    return pools


def _baseline(
    recommendation: Recommendation, results: Mapping[str, Result], measures: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the entry of the baseline, for the submissions of the policy that it is shown with."""
    shown = recommendation.today or recommendation.perfect
    label = next(iter(results)) if shown is None else shown.policy
    own = measures[label]
    return {
        "baseline": {
            "policy": BASELINE,
            "kind": "baseline",
            "measured": own["measured"],
            "avg_jct_s": own["baseline_avg_jct_s"],
        }
    }


def _columns(
    recommendation: Recommendation, results: Mapping[str, Result], settings: Settings
) -> dict[str, list[Waited]]:
    """Return the waits of the measured jobs without sharing, today and with perfect forecasts."""
    shown = {"today": recommendation.today, "perfect": recommendation.perfect}
    chosen = {name: results[each.policy] for name, each in shown.items() if each is not None}
    first = next(iter(chosen.values()), next(iter(results.values())))
    columns = {"baseline": waited(first, settings, first.baseline)}
    for name, result in chosen.items():
        columns[name] = waited(result, settings, result.schedule)
    return columns


def pools_of(measures: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return what each pool gives and gets under a policy, the largest lender first."""
    rows = []
    for name, pool in measures["pools"].items():
        avg, alone = pool["avg_jct_s"], pool["baseline_avg_jct_s"]
        rows.append({
            "pool": name,
            "gpus": pool["quota"],
            "gpu_hours_lent": pool["gpu_hours_lent"],
            "gpu_hours_borrowed": pool["gpu_hours_borrowed"],
            "measured": pool["measured"],
            "sooner_s": None if avg is None else alone - avg,
            "slowed": pool["slowed"],
            "worst_delay_s": 60 * pool["slowdown_max_min"],
        })  # fmt: skip
    return sorted(rows, key=lambda row: (-row["gpu_hours_lent"], row["pool"]))


def described(recommendation: Recommendation, ground: Ground, settings: Settings) -> dict[str, Any]:
    """Return a verdict as plain values."""
    compared = {"today": recommendation.today, "perfect": recommendation.perfect}
    return {
        "words": sentences(recommendation, ground, settings),
        "answer": recommendation.answer,
        "recommended": recommendation.recommended,
        "sia_toml": toml(settings, recommendation.recommended)
        if recommendation.recommended
        else [],
        "rule": {
            "least_gain_s": LEAST_GAIN,
            "max_slowed_pct": MAX_SLOWED_PCT,
            "candidates": recommendation.candidates,
            "safe": recommendation.safe,
        },
        "kinds": {label: kind_of(settings, label) for label in settings.policies},
        "compared": {
            name: None
            if outcome is None
            else {**outcome._asdict(), "slowed_pct": outcome.slowed_pct}
            for name, outcome in compared.items()
        },
    }
