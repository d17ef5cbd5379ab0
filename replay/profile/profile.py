"""Measures the shape of a job log, pool by pool, as in Figs. 2 and 3 (§2)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

import numpy as np

from replay.logs.limits import MAX_HOURS
from replay.logs.trace import PoolTable, Trace, largest_load, playable
from replay.plotting.canvas import FloatArray, Steps, averages, during
from replay.run.run import BASELINE, Settings, replay_one
from sia.console.errors import UserError
from sia.core.playout import Arrival
from sia.wording import DAY, HOUR

BURST = 300.0
"""Seconds in which a burst arrives (Fig. 3b)."""

SOON = 1800.0
"""Seconds after an end within which a submission counts as following it."""

SHIFTS = 7
"""The control moves submissions by up to this many whole days in both directions. This keeps the
time of day and the load of the month, but breaks the connection to the ends of jobs."""

ProfileRow = dict[str, Any]
"""Plain values, as in `shape.json`."""


def shape_of(trace: Trace, table: PoolTable) -> ProfileRow:
    """Return the shape of a log that is replayed first come, first served.

    Utilisation is measured in each whole hour from the first submission to the last. Raises
    UserError if no job fits into its pool, or for more than `MAX_HOURS`.
    """
    kept = playable(trace, table)
    if not kept.arrivals:
        raise UserError("no job of it could ever run in its pool; check the pools file")
    edges = _hours(kept.arrivals[0].job.submit, kept.arrivals[-1].job.submit)
    schedule = replay_one(kept, table, BASELINE, Settings([BASELINE]), None)
    by_pool: dict[str, list[tuple[Arrival, float, float]]] = {p.name: [] for p in table.pools}
    for run in schedule.runs(kept):
        arrival = kept.arrivals[run.position]
        by_pool[arrival.job.pool].append((arrival, run.start, run.end))
    pools: dict[str, ProfileRow] = {}
    used, owned = [], []
    for name, steps in table.quotas().items():
        ran = sorted(by_pool[name], key=lambda row: row[0].job.submit)
        widths = [arrival.job.width for arrival, _, _ in ran]
        running = during([start for _, start, _ in ran], [end for _, _, end in ran], widths)
        used.append(averages([running], edges))
        owned.append(averages([_owned(steps)], edges))
        largest = max(quota for _, quota in steps)
        jobs = _jobs([arrival for arrival, _, _ in ran], largest, [end for _, _, end in ran])
        pools[name] = {"gpus": largest, **utilisation(used[-1], owned[-1]), **jobs}
    return {
        "utilisation": f"as replayed by {BASELINE}",
        "jobs": len(kept.arrivals),
        "dropped": dict(sorted(kept.dropped.items())),
        "notes": kept.notes,
        **utilisation(np.sum(used, axis=0), np.sum(owned, axis=0)),
        "pools": pools,
    }


def _hours(first: float, last: float) -> FloatArray:
    hours = max(1, int((last - first) // HOUR))
    if hours > MAX_HOURS:
        raise UserError(f"it spans {hours:,} hours; are its times seconds?")
    return np.linspace(first, first + hours * HOUR, hours + 1, dtype=np.float64)


def _owned(steps: Sequence[tuple[float, int]]) -> Steps:
    times, quotas = zip(*steps, strict=True)
    return Steps(np.array(times), np.diff([0.0, *quotas]))


def utilisation(used: FloatArray, owned: FloatArray) -> ProfileRow:
    """Return GPUs used / owned in percent: in total, and in each hour with owned GPUs (Fig. 2)."""
    there = owned > 0
    hourly = 100 * used[there] / owned[there]
    return {
        "utilisation_pct": _rounded(100 * used[there].sum() / owned.sum()) if there.any() else None,
        "hourly_pct": [_rounded(value) for value in hourly],
    }


def _rounded(value: float) -> float:
    return round(float(value), 4)


def _jobs(arrivals: Sequence[Arrival], gpus: int, ends: Sequence[float]) -> ProfileRow:
    """Return the measures of one pool's jobs, in order of submission; None if there are too few."""
    lengths = sorted(arrival.duration for arrival in arrivals)
    submits = np.array([arrival.job.submit for arrival in arrivals])
    burst = largest_load([arrival.job for arrival in arrivals], BURST)
    soon, control = soon_after_an_end(submits, np.ones(len(submits)), np.array(ends))
    return {
        "jobs": len(arrivals),
        "burst_pct": _rounded(100 * burst / gpus) if gpus else None,
        "duration_p50_s": lengths[len(lengths) // 2] if lengths else None,
        "duration_ratio": _ratio(lengths),
        "gap_cv": _variation(np.diff(submits)),
        "widths": _widths(arrivals),
        "soon_pct": soon,
        "soon_control_pct": control,
    }


def _ratio(lengths: Sequence[float]) -> float | None:
    """Return the 99th percentile divided by the median (Fig. 3c)."""
    n = len(lengths)
    return _rounded(lengths[int(n * 0.99)] / lengths[n // 2]) if n else None


def _variation(gaps: FloatArray) -> float | None:
    """Return the coefficient of variation: 1 for a Poisson process (Fig. 3a)."""
    return _rounded(gaps.std() / gaps.mean()) if len(gaps) > 1 and gaps.mean() > 0 else None


def _widths(arrivals: Sequence[Arrival]) -> int | None:
    """Return the least number of widths that 95 % of the jobs have."""
    left = 0.95 * len(arrivals)
    counts = Counter(arrival.job.width for arrival in arrivals).most_common()
    for number, (_, count) in enumerate(counts, 1):
        left -= count
        if left <= 0:
            return number
    return None


def soon_after_an_end(
    submits: FloatArray, counts: FloatArray, ends: FloatArray
) -> tuple[float | None, float | None]:
    """Return the % of submissions at most `SOON` after an end in the pool, and the chance level.

    `submits` ascend and have the number of jobs at each time. The control moves them cyclically by
    whole days; a log of less than two whole days has no control (§2, closed loop).
    """
    if not len(submits):
        return None, None
    ordered = np.sort(ends)
    share = _soon(submits, counts, ordered)
    first = submits[0]
    days = int((submits[-1] - first) // DAY)
    if days < 2:
        return share, None
    inside = submits < first + days * DAY
    since, weights = (submits - first)[inside], counts[inside]
    shifts = sorted({k % days for n in range(1, SHIFTS + 1) for k in (n, -n) if k % days})
    moved = [_soon(first + (since + k * DAY) % (days * DAY), weights, ordered) for k in shifts]
    return share, _rounded(sum(moved) / len(moved))


def _soon(submits: FloatArray, counts: FloatArray, ends: FloatArray) -> float:
    before = np.searchsorted(ends, submits, "right")
    following = before > np.searchsorted(ends, submits - SOON, "left")
    return _rounded(100 * counts[following].sum() / counts.sum())


def over_pools(facts: ProfileRow, key: str) -> list[float]:
    """Return a measure of every pool that has it, ascending."""
    return sorted(pool[key] for pool in facts["pools"].values() if pool.get(key) is not None)


def in_short(facts: ProfileRow) -> Mapping[str, float | None]:
    """Return one number for each statement of §2: shares of pools, and medians over pools."""

    def share(key: str, above: float) -> float | None:
        values = over_pools(facts, key)
        return 100 * sum(v > above for v in values) / len(values) if values else None

    def middle(key: str) -> float | None:
        values = over_pools(facts, key)
        return median(values) if values else None

    hourly = sorted(facts["hourly_pct"])
    spots = {f"hourly_p{p}": hourly[int(len(hourly) * p / 100)] for p in (5, 50, 95) if hourly}
    one_width = share("widths", 1.5)
    return {
        **spots,
        "burst_over_100_pct": share("burst_pct", 100),
        "ratio_over_10_pct": share("duration_ratio", 10),
        "one_width_pct": None if one_width is None else 100 - one_width,
        "gap_cv": middle("gap_cv"),
        "soon_pct": middle("soon_pct"),
        "soon_control_pct": middle("soon_control_pct"),
    }
