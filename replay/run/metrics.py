"""Metrics of a schedule compared with the baseline (§6.1)."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, fsum, log

from msgspec import Struct

from sia.limits import SLOWED


class Metrics(Struct, frozen=True):
    """Metrics of a set of jobs, with the keys of `summary.json`. None if there is no job."""

    measured: int
    speedup_mean: float | None
    speedup_geomean: float | None
    speedup_p5: float | None
    speedup_p50: float | None
    speedup_p90: float | None
    speedup_p95: float | None
    avg_jct_s: float | None
    baseline_avg_jct_s: float | None
    avg_jct_ratio: float | None
    slowed: int
    slowed_pct: float | None
    slowdown_total_min: float
    slowdown_max_min: float


def quantile(ordered: Sequence[float], p: float) -> float | None:
    """Return the value at index int(n · p) of n ascending values, or None if n is 0."""
    return ordered[min(len(ordered) - 1, int(len(ordered) * p))] if ordered else None


def measure(jcts: Sequence[tuple[float, float]]) -> Metrics:
    """Compute metrics of (JCT, baseline JCT) pairs in seconds.

    A pair with a JCT of 0, of a job too short for float64 times, is skipped.
    """
    pairs = [(jct, base) for jct, base in jcts if jct > 0]
    n = len(pairs)
    speedups = sorted([base / jct for jct, base in pairs])
    slowdowns = [jct - base for jct, base in pairs if jct > base]
    slowed = sum(1 for s in slowdowns if s > SLOWED)
    total, total_base = fsum([jct for jct, _ in pairs]), fsum([base for _, base in pairs])
    positive = [s for s in speedups if s > 0]
    return Metrics(
        measured=n,
        speedup_mean=fsum(speedups) / n if n else None,
        speedup_geomean=exp(fsum(map(log, positive)) / n) if n and len(positive) == n else None,
        speedup_p5=quantile(speedups, 0.05),
        speedup_p50=quantile(speedups, 0.5),
        speedup_p90=quantile(speedups, 0.9),
        speedup_p95=quantile(speedups, 0.95),
        avg_jct_s=total / n if n else None,
        baseline_avg_jct_s=total_base / n if n else None,
        avg_jct_ratio=total_base / total if n else None,
        slowed=slowed,
        slowed_pct=100 * slowed / n if n else None,
        slowdown_total_min=fsum(slowdowns) / 60,
        slowdown_max_min=max(slowdowns, default=0.0) / 60,
    )
