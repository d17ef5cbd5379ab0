"""Stacked areas for the use of GPUs over time, drawn by `chart.html`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from daemon.wire.plan import UsageSample

WIDTH, HEIGHT = 600.0, 100.0
"""Size of the drawing in SVG units; the page stretches the drawing."""


class Area(NamedTuple):
    """The area of one kind of use."""

    kind: str
    path: str


class Chart(NamedTuple):
    """A chart with its axes."""

    areas: Sequence[Area]
    waiting: str
    """Points of the line for the GPUs that pending jobs need."""
    top: int
    start: float
    end: float
    words: str
    """Text alternative for screen readers."""


def chart_of(samples: Sequence[UsageSample]) -> Chart | None:
    """Return the chart of samples, oldest first, or None for fewer than two. O(samples)."""
    if len(samples) < 2:
        return None
    first, last = samples[0], samples[-1]
    top = max(1, *(max(each.quota, each.waiting_gpus) for each in samples))
    across = WIDTH / ((last.time - first.time) or 1.0)
    xs = [(each.time - first.time) * across for each in samples]
    below = [0.0] * len(samples)
    areas = []
    for kind, values in _kinds(samples):
        above = [low + value for low, value in zip(below, values, strict=True)]
        edge = _points(xs, above, top) + _points(xs[::-1], below[::-1], top)
        areas.append(Area(kind, f"M{' '.join(edge)}Z"))
        below = above
    waiting = " ".join(_points(xs, [each.waiting_gpus for each in samples], top))
    return Chart(areas, waiting, top, first.time, last.time, _words(samples))


def _kinds(samples: Sequence[UsageSample]) -> list[tuple[str, list[int]]]:
    """Return the values by kind, bottom first. Own spare jobs use the rest of the quota."""
    spare = [max(0, s.quota - s.dedicated - s.lent - s.idle) for s in samples]
    return [
        ("dedicated", [s.dedicated for s in samples]),
        ("spare", spare),
        ("lent", [s.lent for s in samples]),
        ("idle", [s.idle for s in samples]),
    ]


def _points(xs: Sequence[float], values: Sequence[float], top: int) -> list[str]:
    return [
        f"{x:.1f},{HEIGHT * (1.0 - value / top):.1f}" for x, value in zip(xs, values, strict=True)
    ]


def _words(samples: Sequence[UsageSample]) -> str:
    """Describe the chart by the range of each kind."""
    parts = []
    for kind in ("dedicated", "lent", "idle", "waiting_gpus"):
        values = [getattr(each, kind) for each in samples]
        title = "needed" if kind == "waiting_gpus" else kind
        parts.append(f"{title} {min(values):,} to {max(values):,}")
    return f"GPUs: {', '.join(parts)}"
