"""What became of GPUs, as areas one upon the other: the drawing itself is in `chart.html`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from daemon.wire.plan import UsageSample

WIDTH, HEIGHT = 600.0, 100.0
"""Of the drawing, in units of its own: it is stretched to the page."""


class Area(NamedTuple):
    """What one kind of use came to over time."""

    kind: str
    path: str


class Chart(NamedTuple):
    """A drawing, and what stands beside it."""

    areas: Sequence[Area]
    waiting: str
    """The line of GPUs that jobs waited for."""
    top: int
    start: float
    end: float
    words: str
    """The same for who does not see it."""


def chart_of(samples: Sequence[UsageSample]) -> Chart | None:
    """A chart of at least two samples, the oldest first; None of fewer. O(samples)."""
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
    """Values of each kind, from the bottom up; what is left of the quota is own spare jobs'."""
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
    """From the least to the most of each."""
    parts = []
    for kind in ("dedicated", "lent", "idle", "waiting_gpus"):
        values = [getattr(each, kind) for each in samples]
        title = "waited for" if kind == "waiting_gpus" else kind
        parts.append(f"{title} {min(values):,} to {max(values):,}")
    return f"GPUs: {', '.join(parts)}"
