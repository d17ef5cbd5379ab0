"""The output of `sia compare`."""

from __future__ import annotations

from typing import Any

import click

from replay.compare.compare import (
    CONFIDENCE,
    FEW_PAIRS,
    HIGHER_IS_BETTER,
    JOBS,
    RUNS,
    IntervalEstimate,
    MeasuredRun,
    Resampling,
    Side,
    compare_jobs,
    compare_runs,
    read_jobs,
    read_runs,
    side_of,
)
from sia.console.as_json import print_json
from sia.console.errors import UserError
from sia.console.tables import show_table
from sia.console.terminal import printable
from sia.wording import NONE, counted, decimal, duration, percent

WIDE = "95 % interval"

JOB_ROWS = (
    ("avg_jct_a_s", "average JCT of A", "time"),
    ("avg_jct_b_s", "average JCT of B", "time"),
    ("difference_s", "difference, A − B", "time"),
    ("end_difference_s", "end in A − end in B, average", "time"),
    ("ratio_of_averages", "average JCT of A / of B", "ratio"),
    ("geomean_ratio", "JCT in A / in B, geometric mean", "ratio"),
    ("sooner_pct", "% of jobs sooner in A", "percent"),
    ("later_pct", "% of jobs later in A", "percent"),
    ("equal_pct", "% of jobs equal to 1 ms", "percent"),
)

RUN_ROWS = {
    "speedup_mean": ("mean speed-up", "ratio"),
    "speedup_geomean": ("geometric mean speed-up", "ratio"),
    "speedup_p5": ("speed-up, p5", "ratio"),
    "speedup_p50": ("speed-up, p50", "ratio"),
    "speedup_p90": ("speed-up, p90", "ratio"),
    "speedup_p95": ("speed-up, p95", "ratio"),
    "avg_jct_s": ("average JCT", "time"),
    "avg_jct_ratio": ("average JCT, baseline / policy", "ratio"),
    "slowed_pct": ("% of jobs slowed", "percent"),
    "slowdown_total_min": ("slowdown, total", "minutes"),
    "slowdown_max_min": ("slowdown, largest", "minutes"),
    "utilisation_pct": ("% of GPU-time used", "ratio"),
    "gpu_hours_lent": ("GPU-hours lent", "ratio"),
}

VERDICTS = ("speedup_mean", "speedup_geomean", "slowed_pct", "slowdown_total_min")
"""Measures with a sentence below the table."""


def show(a: str, b: str, warmup: float, resampling: Resampling, *, as_json: bool) -> None:
    """Compare A and B of the command line and print the result. Raises UserError."""
    of_a, of_b = side_of(a), side_of(b)
    if of_a.kind != of_b.kind:
        raise UserError(
            f"{a}, {b}: one is a replay, the other an experiment; give two of the same kind"
        )
    if warmup and of_a.kind == RUNS:
        raise UserError(
            "--warmup does not work with experiments, whose runs have their own warm-up; omit it"
        )
    answer: dict[str, Any] = {"a": a, "b": b, "confidence": CONFIDENCE}
    answer |= {"resamples": resampling.resamples, "seed": resampling.seed}
    if of_a.kind == JOBS:
        jobs = read_jobs(of_a.folder), read_jobs(of_b.folder)
        found = {"": _noted(compare_jobs(*jobs, warmup, resampling))}
        answer |= {"pairs_of": "jobs", "warmup_s": warmup, **found[""]}
    else:
        found = _experiments(of_a, of_b, resampling)
        answer |= {"pairs_of": "runs", "comparisons": found}
    if as_json:
        print_json(answer)
        return
    click.echo(f"A: {printable(a)}\nB: {printable(b)}")
    for label, comparison in found.items():
        _show(label, comparison)


def _experiments(a: Side, b: Side, resampling: Resampling) -> dict[str, Any]:
    """Compare the named policies, or every policy that both experiments have."""
    runs_a, runs_b = read_runs(a.folder), read_runs(b.folder)
    if not a.policy and not b.policy:
        both = [policy for policy in runs_a if policy in runs_b]
        if not both:
            raise UserError(
                f"{a.folder} and {b.folder}: no policy in common; name a policy of each"
            )
        return {p: _noted(compare_runs(runs_a[p], runs_b[p], resampling)) for p in both}
    pair = _of(runs_a, a), _of(runs_b, b)
    label = a.policy if a.policy == b.policy else f"{a.policy} against {b.policy}"
    return {label: _noted(compare_runs(*pair, resampling))}


def _of(runs: dict[str, dict[int, MeasuredRun]], side: Side) -> dict[int, MeasuredRun]:
    if side.policy not in runs:
        wrong = f"there is no policy {side.policy!r}" if side.policy else "a policy is missing"
        raise UserError(
            f"{side.folder}: {wrong}; write {side.folder}:POLICY with one of {', '.join(runs)}"
        )
    return runs[side.policy]


def _noted(comparison: dict[str, Any]) -> dict[str, Any]:
    """Add notes on omitted pairs and on the validity of the intervals."""
    pairs = comparison["pairs"]
    what = "job" if "before_warmup" in comparison else "run"
    reasons = {
        "only_a": "only in A",
        "only_b": "only in B",
        "before_warmup": "from before the end of the warm-up",
        "without_duration": "with a JCT of 0",
    }
    omitted = [(comparison.get(key, 0), words) for key, words in reasons.items()]
    notes = [f"{counted(n, what)} {words} omitted" for n, words in omitted if n]
    if comparison.get("one_log"):
        notes.append(
            "the runs are one log at several sizes, not independent draws: the intervals show the "
            "variation between sizes, not between logs"
        )
    if pairs < 2:
        notes.append(f"a single pair of {what}s gives no interval")
    elif pairs < FEW_PAIRS:
        notes.append(f"only {pairs} pairs of {what}s: the intervals are too narrow")
    if what == "job":
        notes.append(
            "jobs of one log wait for each other and are not independent: the intervals apply to "
            "this log and are too narrow for other logs; use sia experiment for many pieces"
        )
    return comparison | {"notes": notes}


def _show(policy: str, comparison: dict[str, Any]) -> None:
    for note in comparison["notes"]:
        click.echo(f"note: {note}")
    if "before_warmup" in comparison:
        _show_jobs(comparison)
    else:
        _show_runs(policy, comparison)


def _show_jobs(comparison: dict[str, Any]) -> None:
    rows = []
    for key, words, kind in JOB_ROWS:
        measure = comparison["measures"][key]
        rows.append([words, *(_cell(measure[end], kind) for end in ("value", "low", "high"))])
    header = ["", "value", f"{WIDE} from", "to"]
    show_table(f"{counted(comparison['pairs'], 'job')} in both", header, rows)
    click.echo()
    difference = IntervalEstimate(**comparison["measures"]["difference_s"])
    ratio = IntervalEstimate(**comparison["measures"]["geomean_ratio"])
    click.echo(_verdict("average JCT", difference, 0.0, "time", higher_is_better=False))
    click.echo(_verdict("geometric mean JCT", ratio, 1.0, "ratio", higher_is_better=False))


def _show_runs(policy: str, comparison: dict[str, Any]) -> None:
    rows = []
    for key, (words, kind) in RUN_ROWS.items():
        measure = comparison["measures"][key]
        if not measure["pairs"]:
            rows.append([words, *[NONE] * 8])
            continue
        difference = measure["difference"]
        rows.append([
            words,
            _cell(measure["a"], kind),
            _cell(measure["b"], kind),
            *(_cell(difference[end], kind) for end in ("value", "low", "high")),
            f"{measure['above']:,}",
            f"{measure['below']:,}",
            _better(IntervalEstimate(**difference), 0.0, higher=HIGHER_IS_BETTER[key]),
        ])  # fmt: skip
    header = ["", "A", "B", "A − B", f"{WIDE} from", "to", "A above", "below", "better"]
    show_table(f"{policy}: means over {counted(comparison['pairs'], 'run')}", header, rows)
    click.echo()
    for key in VERDICTS:
        measure = comparison["measures"][key]
        if measure["pairs"]:
            words, kind = RUN_ROWS[key]
            estimate = IntervalEstimate(**measure["difference"])
            better = HIGHER_IS_BETTER[key]
            click.echo(_verdict(words, estimate, 0.0, kind, higher_is_better=bool(better)))


def _better(estimate: IntervalEstimate, neutral: float, *, higher: bool | None) -> str:
    """Return the better side if the interval excludes `neutral`."""
    if higher is None or not estimate.excludes(neutral):
        return NONE
    return "A" if (estimate.value > neutral) == higher else "B"


def _verdict(
    what: str, estimate: IntervalEstimate, neutral: float, kind: str, *, higher_is_better: bool
) -> str:
    """Return a sentence on which side is better, or that the interval is inconclusive."""
    if estimate.low is None:
        return f"{what}: a single pair is inconclusive"
    value, low, high = (_cell(end, kind) for end in (estimate.value, estimate.low, estimate.high))
    numbers = f"{'A − B' if neutral == 0 else 'A / B'} is {value} ({WIDE} {low} to {high}"
    if estimate.low == estimate.high == neutral:
        return f"{what}: A and B are equal in every pair"
    if not estimate.excludes(neutral):
        return f"{what}: {numbers}, includes {neutral:.0f}): inconclusive"
    better = _better(estimate, neutral, higher=higher_is_better)
    return f"{what}: {numbers}, excludes {neutral:.0f}): {better} is better"


def _cell(value: float | None, kind: str) -> str:
    if value is None:
        return NONE
    sign, size = "−" if value < 0 else "", abs(value)
    if kind == "ratio":
        return sign + decimal(size, 3)
    if kind == "percent":
        return sign + percent(size)
    seconds = size * 60 if kind == "minutes" else size
    return sign + (f"{seconds:.2g} s" if 0 < seconds < 1 else duration(seconds))
