"""Turn sums of periods into the lines of charts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from daemon.doors.views.series.sums import OTHERS, Gain, Key, Sums, largest, total
from daemon.model.access import Principal
from daemon.wire.plan import Metric, PoolGain, SeriesChart, SeriesLine
from sia.wording import HOUR, duration

DIGITS = 4
"""Significant digits of a value. More are not visible in a chart, and make the response longer."""

NAMED = 7
"""Maximum number of pools with a line of their own in a chart; the others share one. Readers cannot
distinguish more colours."""

P90 = 0.9

Value = Callable[[Sums], float | None]


class _Chart(NamedTuple):
    title: str
    unit: str
    lines: Sequence[tuple[str, Value]]
    stacked: bool = False


def charts_of(
    key: Key, parts: Sequence[Sums], window: float, *, whole: bool
) -> Iterator[SeriesChart]:
    """Yield the charts of these periods. O(periods · lines).

    `window` is the length of the forecast windows in seconds. Unless `whole`, only the charts in
    `PUBLIC` are returned: for a reader who may not see the pool's jobs.
    """
    for metric, chart in _charts(key, parts, window):
        if whole or metric in PUBLIC:
            lines = [
                SeriesLine(name, [_rounded(value(part)) for part in parts])
                for name, value in chart.lines
            ]
            yield SeriesChart(metric, chart.title, chart.unit, chart.stacked, lines)


PUBLIC: frozenset[Metric] = frozenset(("gpus", "pending", "forecast"))
"""Charts that a reader sees without permission to see the pool's jobs: `GET /v1/pools` has the
same."""


def _charts(key: Key, parts: Sequence[Sums], window: float) -> Iterator[tuple[Metric, _Chart]]:
    waiting: tuple[tuple[str, Value], ...] = (
        ("pending jobs", _gauge("waiting")), ("GPUs they need", _gauge("waiting_gpus")),
    )  # fmt: skip
    yield "gpus", USER_GPUS if key.user else POOL_GPUS if key.pool else GPUS
    yield "pending", _Chart("Pending jobs", "jobs, GPUs", waiting)
    yield "wait", WAIT
    yield "saved", SAVED
    yield "jobs", JOBS
    if key.user:
        return
    title = f"Load forecast for {duration(window)} and load"
    yield "forecast", _Chart(title, "GPUs", FORECAST)
    lenders, borrowers = [part.lenders for part in parts], [part.borrowers for part in parts]
    words = "Borrowed, by lender", "Lent, by borrower"
    if not key.pool:
        words = "Lent, by lender", "Borrowed, by borrower"
    yield "lenders", _Chart(words[0], "GPUs", [*_by_name("lenders", lenders)], stacked=True)
    yield "borrowers", _Chart(words[1], "GPUs", [*_by_name("borrowers", borrowers)], stacked=True)


def _gauge(name: str) -> Value:
    return lambda sums: sums.gauge(name)


def _spare(sums: Sums) -> float | None:
    """Return the GPUs of the pool that its own spare jobs use: the rest of the quota."""
    if not sums.looks:
        return None
    taken = sum(sums.gauge(name) or 0.0 for name in ("dedicated", "lent", "idle"))
    return max(0.0, (sums.gauge("quota") or 0.0) - taken)


GPUS = _Chart(
    "GPUs by use",
    "GPUs",
    (
        ("dedicated", _gauge("dedicated")),
        ("own spare", _spare),
        ("lent", _gauge("lent")),
        ("idle", _gauge("idle")),
    ),
    stacked=True,
)
POOL_GPUS = _Chart(
    "GPUs by use",
    "GPUs",
    (*GPUS.lines, ("borrowed", _gauge("borrowed"))),
    stacked=True,
)
USER_GPUS = _Chart(
    "GPUs in use",
    "GPUs",
    (("of the own pool", _gauge("dedicated")), ("borrowed", _gauge("borrowed"))),
    stacked=True,
)
WAIT = _Chart(
    "Wait from submission to start",
    "seconds",
    (
        ("mean", lambda sums: sums.waited.mean),
        ("mean alone", lambda sums: sums.alone.mean),
        ("p90", lambda sums: sums.waited.quantile(P90)),
        ("p90 alone", lambda sums: sums.alone.quantile(P90)),
    ),
)
SAVED = _Chart(
    "Hours that jobs started earlier or later than alone",
    "hours",
    (
        ("earlier", lambda sums: sums.gain.gained / HOUR),
        ("later", lambda sums: sums.gain.lost / HOUR),
    ),
)
JOBS = _Chart(
    "Jobs compared with alone, and slowed jobs",
    "jobs",
    (
        ("compared", lambda sums: float(sums.gain.jobs)),
        ("slowed", lambda sums: float(sums.gain.slowed)),
    ),
)
FORECAST: tuple[tuple[str, Value], ...] = (
    ("forecast", lambda sums: sums.foreseen / sums.windows if sums.windows else None),
    ("came", lambda sums: sums.came / sums.windows if sums.windows else None),
)


def _by_name(field: str, values: Sequence[dict[str, float]]) -> Iterator[tuple[str, Value]]:
    """Yield a line for each of the pools with the largest sums, and one for the others."""
    sums: dict[str, float] = {}
    for each in values:
        for name, value in each.items():
            sums[name] = sums.get(name, 0.0) + value
    shown = largest(sums, NAMED)
    named = shown.keys() - {OTHERS}
    for name in shown:
        yield name or "other pools", _line(field, name, named)


def _line(field: str, name: str, named: frozenset[str] | set[str]) -> Value:
    def value(sums: Sums) -> float | None:
        if not sums.looks:
            return None
        values: dict[str, float] = getattr(sums, field)
        if name:
            return values.get(name, 0.0) / sums.looks
        return sum(each for other, each in values.items() if other not in named) / sums.looks

    return value


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.{DIGITS}g}")


def gains_of(parts: Sequence[Sums], who: Principal) -> tuple[PoolGain, list[PoolGain]]:
    """Return the gains and losses of all jobs, and of the jobs of each pool, largest gain first.

    Pools that `who` may not see are in one row without a name. O(periods · pools).
    """
    whole = total(parts)
    seen: dict[str, Gain] = {}
    for pool, gain in whole.gains.items():
        seen.setdefault(pool if who.sees(pool) else OTHERS, Gain()).add(gain)
    rows = sorted(seen.items(), key=lambda each: (not each[0], -each[1].gained, each[0]))
    return _gain("", whole.gain), [_gain(pool, gain) for pool, gain in rows]


def _gain(pool: str, gain: Gain) -> PoolGain:
    return PoolGain(pool, gain.jobs, gain.slowed, gain.gained / HOUR, gain.lost / HOUR)
