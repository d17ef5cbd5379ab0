"""Bars over time: who runs until when, who starts when, what is held back how long."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from daemon.wire.estimates import EstimateView, Moment
from daemon.wire.queue import Queued
from sia.model import Stream

WIDE = 1000
"""Units across, of which the past has `PAST`."""

PAST = 200
"""A fifth: enough to see that a job runs, and for how long already; what is asked is what comes."""

QUARTERS = 4
"""Parts of the time ahead that have a line each."""


THIN = 0.36
"""Of the height: what is less sure."""


class Bar(NamedTuple):
    """From a place to a place, as `kind`; in a line that is 1 high."""

    x: float
    width: float
    kind: str
    y: float = 0.0
    height: float = 1.0


class TimeAxis:
    """Where a time is on a line: a fifth of it is past, and the rest `span` seconds ahead."""

    def __init__(self, now: float, span: float) -> None:
        """From a quarter of the span before now on."""
        self.now, self.span = now, span

    def x(self, time: float | None) -> float:
        """A place within the line; None is beyond its end."""
        if time is None:
            return WIDE
        ahead = (time - self.now) / self.span
        return round(min(WIDE, max(0.0, PAST + ahead * (WIDE - PAST))), 1)

    def bar(
        self, start: float | None, end: float | None, kind: str, height: float = 1.0
    ) -> Iterator[Bar]:
        """From a time to a time; nothing where that cannot be seen."""
        left, right = self.x(start), self.x(end)
        if right > left:
            yield Bar(left, round(right - left, 1), kind, round((1 - height) / 2, 3), height)

    @property
    def marks(self) -> list[float]:
        """Seconds ahead at which there is a line; 0 is now."""
        return [self.span * i / QUARTERS for i in range(QUARTERS)]


def reserved(
    scale: TimeAxis, windows: Sequence[float], held: Sequence[int], most: int
) -> list[Bar]:
    """GPUs held back from jobs by how long these are, as steps of at most `most`."""
    found: list[Bar] = []
    since = 0.0
    for window, gpus in zip(windows, held, strict=True):
        height = round(gpus / most, 3)
        bars = scale.bar(scale.now + since, scale.now + window, "held")
        found += [bar._replace(y=round(1 - height, 3), height=height) for bar in bars]
        since = window
    return found


def of_job(scale: TimeAxis, row: Queued) -> list[Bar]:
    """A job from its start to its end: sure until now, then as likely as not, then thin."""
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
