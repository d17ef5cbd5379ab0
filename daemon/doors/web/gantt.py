"""Bars of the Gantt chart: run times, estimated starts and ends, and reservations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from daemon.wire.estimates import EstimateView, Moment
from daemon.wire.queue import Queued
from sia.model import Stream

WIDE = 1000
"""Width of a row in SVG units, including `PAST`."""

PAST = 200
"""Width of the past in SVG units: a fifth, because the page is about what comes next."""

QUARTERS = 4
"""Number of grid lines ahead of now."""


THIN = 0.36
"""Relative height of a bar for the uncertain part."""


class Bar(NamedTuple):
    """A rectangle in a row of height 1; `kind` is its CSS class."""

    x: float
    width: float
    kind: str
    y: float = 0.0
    height: float = 1.0


class TimeAxis:
    """Map times to x positions: one fifth for the past, the rest for `span` seconds ahead."""

    def __init__(self, now: float, span: float) -> None:
        """Create an axis that starts a quarter of the span before `now`."""
        self.now, self.span = now, span

    def x(self, time: float | None) -> float:
        """Return the position of a time, clipped to the row. None is the end of the row."""
        if time is None:
            return WIDE
        ahead = (time - self.now) / self.span
        return round(min(WIDE, max(0.0, PAST + ahead * (WIDE - PAST))), 1)

    def bar(
        self, start: float | None, end: float | None, kind: str, height: float = 1.0
    ) -> Iterator[Bar]:
        """Yield the bar between two times, or nothing if it is outside the row."""
        left, right = self.x(start), self.x(end)
        if right > left:
            yield Bar(left, round(right - left, 1), kind, round((1 - height) / 2, 3), height)

    @property
    def marks(self) -> list[float]:
        """Seconds ahead of the grid lines; 0 is now."""
        return [self.span * i / QUARTERS for i in range(QUARTERS)]


def reserved(
    scale: TimeAxis, windows: Sequence[float], held: Sequence[int], most: int
) -> list[Bar]:
    """Return a pool's reservation by window as steps, scaled so that `most` GPUs fill the row."""
    found: list[Bar] = []
    since = 0.0
    for window, gpus in zip(windows, held, strict=True):
        height = round(gpus / most, 3)
        bars = scale.bar(scale.now + since, scale.now + window, "held")
        found += [bar._replace(y=round(1 - height, 3), height=height) for bar in bars]
        since = window
    return found


def of_job(scale: TimeAxis, row: Queued) -> list[Bar]:
    """Return a job's bars: full height until the median end, thin until the p90."""
    job, estimate = row.job, row.estimate
    if job.stream is not None:
        kind = "dedicated" if job.stream is Stream.DEDICATED else "lent"
        return [*_running(scale, job.started, estimate, kind)]
    return [] if estimate is None else [*_waiting(scale, estimate)]


def _running(
    scale: TimeAxis, since: float | None, estimate: EstimateView | None, kind: str
) -> Iterator[Bar]:
    began = scale.now if since is None else since
    if estimate is None:
        yield from scale.bar(began, scale.now, kind)
        yield from scale.bar(scale.now, None, kind, THIN)
    else:
        yield from _until(scale, began, estimate.end, kind)


def _waiting(scale: TimeAxis, estimate: EstimateView) -> Iterator[Bar]:
    if estimate.start is not None:
        yield from _until(scale, estimate.start.p50, estimate.end, "waiting")


def _until(scale: TimeAxis, began: float | None, end: Moment, kind: str) -> Iterator[Bar]:
    yield from scale.bar(began, end.p50, kind)
    yield from scale.bar(end.p50, end.p90, kind, THIN)
