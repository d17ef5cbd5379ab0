"""Measure errors of load forecasts: the forecast at the start of a window against its demand.

The demand is the maximum number of GPUs that jobs submitted in the window hold at the same time,
from submission to end; lenders need no more back (`predictors/loads/peaks.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import ceil, inf
from typing import NamedTuple

from sia.events import Event, ForecastUpdated, JobCancelled, JobFinished, JobSubmitted
from sia.model import Job


class ForecastErrors(NamedTuple):
    """Results of all pools' forecasts for ended windows of one length (seconds)."""

    window: float
    covered: int
    missed: int
    gpus: int
    """Sum of the GPUs by which missed forecasts fell short."""


class EndedWindow(NamedTuple):
    """A window that has ended: its length and end in seconds, and GPUs by pool.

    `foreseen` was forecast at its start; `peak` is the demand that followed.
    """

    length: float
    end: float
    pools: Sequence[str]
    foreseen: Sequence[int]
    peak: Sequence[int]

    @property
    def short(self) -> list[int]:
        """Numbers of the pools whose forecast fell short."""
        return [i for i, peak in enumerate(self.peak) if peak > self.foreseen[i]]


class _Window:
    """The current window of one length; pools are identified by number."""

    def __init__(self, length: float) -> None:
        self.length = length
        self.number = 0  # number of windows before this one

    def open(self, end: float, foreseen: Sequence[int]) -> None:
        """Start a window without demand."""
        self.end, self.foreseen = end, foreseen
        self.held = [0] * len(foreseen)
        self.peak = [0] * len(foreseen)
        self.number += 1

    def add(self, pool: int, gpus: int) -> None:
        """Add the GPUs of a new job; a negative number for a job that has left."""
        held = self.held[pool] = self.held[pool] + gpus
        self.peak[pool] = max(self.peak[pool], held)


class LoadErrors:
    """Compare forecasts with demand, in consecutive windows.

    Costs O(windows) per job and O(pools) per end of a window. Memory: O(active jobs).

    Args:
        now: Start of the first windows.
        windows: Lengths of the windows in seconds.
        loads: Current forecasts, by pool and window.
        width: Returns the GPUs that a job occupies in cells, by pool and width.
        report: Called when windows of one length end, with the first of them and their number; the
            others had no demand.
    """

    def __init__(
        self,
        now: float,
        windows: Sequence[float],
        loads: Mapping[str, Sequence[int]],
        width: Callable[[str, int], int] | None = None,
        report: Callable[[EndedWindow, int], object] = lambda *_: None,
    ) -> None:
        """Start all windows now."""
        self._pools = {pool: number for number, pool in enumerate(loads)}
        self._loads = [list(each) for each in zip(*loads.values(), strict=True)]
        self._width, self._report = width, report
        self._came: dict[
            str, tuple[int, int, list[int]]
        ] = {}  # by job: pool, GPUs, number of each window
        self._windows = [_Window(length) for length in windows]
        for window, gpus in zip(self._windows, self._loads, strict=True):
            window.open(now + window.length, [*gpus])
        self._next = now + min(windows, default=inf)

    def hear(self, events: Iterable[Event]) -> Iterator[ForecastErrors]:
        """Process events; yield the results of windows that ended before them, in order of time."""
        for event in events:
            if event.time > self._next:
                yield from self._over(event.time)
            if type(event) is JobSubmitted:
                self._add(event.job)
            elif type(event) is JobFinished or type(event) is JobCancelled:
                self._remove(event.job_id)
            elif type(event) is ForecastUpdated:
                for load in event.loads:
                    self._loads[load.window][self._pools[load.pool]] = load.gpus

    def _over(self, time: float) -> Iterator[ForecastErrors]:
        """End due windows. An event at the very end of a window belongs to it."""
        for window, loads in zip(self._windows, self._loads, strict=True):
            if time > window.end:
                count = ceil((time - window.end) / window.length)
                ended = EndedWindow(
                    window.length, window.end, [*self._pools], window.foreseen, window.peak
                )
                self._report(ended, count)
                yield _outcome(ended, count - 1)
                window.open(window.end + count * window.length, [*loads])
        self._next = min(window.end for window in self._windows)

    def _add(self, job: Job) -> None:
        pool, gpus = self._pools[job.pool], job.width
        if self._width is not None:
            gpus = self._width(job.pool, gpus)
        for window in self._windows:
            window.add(pool, gpus)
        self._came[job.id] = pool, gpus, [window.number for window in self._windows]

    def _remove(self, job_id: str) -> None:
        """Remove a job; ignore one submitted before the first windows."""
        if job_id not in self._came:
            return
        pool, gpus, numbers = self._came.pop(job_id)
        for window, number in zip(self._windows, numbers, strict=True):
            if window.number == number:
                window.add(pool, -gpus)


def _outcome(ended: EndedWindow, empty: int) -> ForecastErrors:
    """Return the results of this window and of `empty` windows without demand after it."""
    short = [ended.peak[i] - ended.foreseen[i] for i in ended.short]
    covered = len(ended.peak) * (1 + empty) - len(short)
    return ForecastErrors(ended.length, covered, len(short), sum(short))
