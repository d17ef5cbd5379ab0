"""How well loads are foreseen: what was said at the beginning of a window, and what then came.

What came is the most GPUs that new jobs were here with at the same time, from their arrival to
their end: lenders need back no more (`predictors/loads/peaks.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import ceil, inf
from typing import NamedTuple

from sia.events import Event, ForecastUpdated, JobCancelled, JobFinished, JobSubmitted
from sia.model import Job


class ForecastErrors(NamedTuple):
    """What became of all pools' forecasts for windows of one length (seconds) that are over."""

    window: float
    covered: int
    missed: int
    gpus: int
    """By which those that were missed fell short, together."""


class _Window:
    """The one of its length that is under way; pools by their numbers."""

    def __init__(self, length: float) -> None:
        self.length = length
        self.number = 0  # of those before it

    def open(self, end: float, foreseen: Sequence[int]) -> None:
        """Begin, with nothing come yet."""
        self.end, self.foreseen = end, foreseen
        self.held = [0] * len(foreseen)
        self.peak = [0] * len(foreseen)
        self.number += 1

    def add(self, pool: int, gpus: int) -> None:
        """Jobs came, or are gone."""
        held = self.held[pool] = self.held[pool] + gpus
        self.peak[pool] = max(self.peak[pool], held)

    @property
    def short(self) -> list[int]:
        """Pools, by number, of which the forecast fell short."""
        return [i for i, peak in enumerate(self.peak) if peak > self.foreseen[i]]

    def outcome(self, empty: int) -> ForecastErrors:
        """What became of it, and of so many after it in which nothing came."""
        short = [self.peak[i] - self.foreseen[i] for i in self.short]
        covered = len(self.peak) * (1 + empty) - len(short)
        return ForecastErrors(self.length, covered, len(short), sum(short))


class LoadErrors:
    """Compares them, in windows that follow one another without a gap.

    A job costs O(windows), the end of a window O(pools). Remembered are jobs that are here.

    Args:
        now: when the first windows begin.
        windows: their lengths, seconds.
        loads: what is foreseen now, of each pool and window.
        width: what a job takes in cells, by pool and width.
        told: told of windows that are over: their length, who fell short in the first of them, and
            how many there are; in the others nothing came.
    """

    def __init__(
        self,
        now: float,
        windows: Sequence[float],
        loads: Mapping[str, Sequence[int]],
        width: Callable[[str, int], int] | None = None,
        told: Callable[[float, Sequence[int], int], object] = lambda *_: None,
    ) -> None:
        """Begin all windows now."""
        self._pools = {pool: number for number, pool in enumerate(loads)}
        self._loads = [list(each) for each in zip(*loads.values(), strict=True)]
        self._width, self._told = width, told
        self._came: dict[str, tuple[int, int, list[int]]] = {}  # pool, GPUs, number of each window
        self._windows = [_Window(length) for length in windows]
        for window, said in zip(self._windows, self._loads, strict=True):
            window.open(now + window.length, [*said])
        self._next = now + min(windows, default=inf)

    def hear(self, events: Iterable[Event]) -> Iterator[ForecastErrors]:
        """What became of windows that were over by these events, in the order of time."""
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
        """End windows; what comes at their very end is in them still."""
        for window, said in zip(self._windows, self._loads, strict=True):
            if time > window.end:
                count = ceil((time - window.end) / window.length)
                self._told(window.length, window.short, count)
                yield window.outcome(count - 1)
                window.open(window.end + count * window.length, [*said])
        self._next = min(window.end for window in self._windows)

    def _add(self, job: Job) -> None:
        pool, gpus = self._pools[job.pool], job.width
        if self._width is not None:
            gpus = self._width(job.pool, gpus)
        for window in self._windows:
            window.add(pool, gpus)
        self._came[job.id] = pool, gpus, [window.number for window in self._windows]

    def _remove(self, job_id: str) -> None:
        """A job is gone; one from before the first windows is not missed."""
        if job_id not in self._came:
            return
        pool, gpus, numbers = self._came.pop(job_id)
        for window, number in zip(self._windows, numbers, strict=True):
            if window.number == number:
                window.add(pool, -gpus)
