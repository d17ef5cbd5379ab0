"""Simulated jobs (timers) for demos, tests and load tests, at the speed of the daemon's clock."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from heapq import heappop, heappush
from itertools import count
from pathlib import Path
from typing import Literal, Protocol

from daemon.backends.interface import BackendContext, Expected, ObservationSink, StopKind
from daemon.backends.simulated import CAN
from daemon.config.config import Ability
from daemon.model.inputs import (
    Ended,
    Lost,
    Observation,
    Reported,
    Started,
    StartFailed,
    Stopped,
    Stray,
)
from daemon.model.outputs import PreemptEffect, StartEffect
from sia.model import Nodes

RUN_TIME = 300.0
"""Default run time in seconds: short, but long enough to see the job running."""

TERM = 15
"""Signal number of SIGTERM, reported for a job that was ended on request."""

Fate = Literal["done", "failed", "start failed", "lost"]

_Key = tuple[str, int]


class TimeSource(Protocol):
    """The daemon's clock, in seconds since the epoch."""

    def now(self) -> float:
        """Return the current time."""

    async def sleep_until(self, time: float) -> object:
        """Wait until a time; may return early."""


class SimulatedBackend:
    """Runs each job for its `duration`, else its `run_time`, else `RUN_TIME`; exit code 0.

    Nothing outlives the process: `reconcile` restores jobs that were observed to run, with the
    same end time. All timers are in one heap: a start or end costs O(log n).

    Args:
        clock: clock that job durations refer to.
        fate: result of a job, for tests; "lost" and "failed" happen at its end.
        stop_time: seconds that a job takes to save its work when it is told to stop.
        report: seconds between two reports of the iterations of a job that has said how many it
            has; 0 for none.
    """

    can: frozenset[Ability] = CAN
    gpus: Nodes | None = None

    def __init__(
        self,
        clock: TimeSource,
        fate: Callable[[StartEffect], Fate] = lambda _: "done",
        stop_time: float = 0.0,
        report: float = 0.0,
    ) -> None:
        """Create a backend without jobs."""
        self._stop_time, self._report = stop_time, report
        self._reports: dict[_Key, tuple[int, StartEffect, float]] = {}
        """By attempt that reports: number of its next timer, its order, and its start."""
        self._stops: dict[_Key, int] = {}
        """For each attempt that was told to stop: number of the timer at which it has stopped."""
        self._clock = clock
        self._fate = fate
        self._sink: ObservationSink
        self._running: dict[_Key, tuple[int, Observation]] = {}
        """For each attempt: number of its timer, and the observation at its end."""
        self._timers: list[tuple[float, int, _Key]] = []
        """Heap of timers, including those of stopped jobs."""
        self._number = count()
        self._follower: asyncio.Task[None] | None = None

    async def open(self, context: BackendContext) -> None:
        """Start the timers."""
        self._sink = context.sink
        self._follow()

    async def reconcile(self, expected: Iterable[Expected]) -> list[StartEffect]:
        """Restore the jobs that were running; return those that were never observed."""
        strays = set(self._running)
        unseen = []
        for job in expected:
            key = (job.order.job, job.order.attempt)
            strays.discard(key)
            if key in self._running:
                if job.started is None:
                    self._sink(Started(*key))
            elif job.started is None:
                unseen.append(job.order)
            else:
                self._run(job.order, job.started if job.since is None else job.since)
        for name, attempt in sorted(strays):
            self._sink(Stray(name, attempt))
        return unseen

    async def start(self, order: StartEffect) -> None:
        """Start a job's timer."""
        if (order.job, order.attempt) in self._running:
            return
        if self._fate(order) == "start failed":
            self._sink(StartFailed(order.job, order.attempt, "start failure was simulated"))
            return
        self._sink(Started(order.job, order.attempt))
        self._run(order, self._clock.now())

    async def stop(self, job: str, attempt: int, kind: StopKind) -> None:
        """End a job immediately; a warning has no effect."""
        if kind == "end" and self._drop((job, attempt)):
            self._sink(Ended(job, attempt, signal=TERM))

    async def preempt(self, order: PreemptEffect) -> None:
        """Stop a job once it has saved its work, or immediately if its grace time is over."""
        key = (order.job, order.attempt)
        if key not in self._running:
            return
        if order.force or not self._stop_time:
            self._drop(key)
            self._sink(Stopped(*key))
        elif key not in self._stops:
            self._stops[key] = self._set_timer(self._clock.now() + self._stop_time, key)

    async def close(self) -> None:
        """Stop the timers; another `open` continues them."""
        if self._follower is not None:
            self._follower.cancel()
            await asyncio.gather(self._follower, return_exceptions=True)
            self._follower = None

    def log(self, job: str, attempt: int, stream: Literal["stdout", "stderr"]) -> Path | None:
        """Return None: simulated jobs have no output."""
        return None

    def check(self) -> None:
        """Assert that each running job has a timer."""
        timers = {(number, key) for _, number, key in self._timers}
        ends = {(number, key) for key, (number, _) in self._running.items()}
        assert ends <= timers, "a running job without a timer"
        reports = {(number, key) for key, (number, *_) in self._reports.items()}
        assert reports <= timers, "a job without a timer for its next report"
        stops = {(number, key) for key, number in self._stops.items()}
        assert stops <= timers, "a stopping job without a timer"
        assert self._stops.keys() <= self._running.keys(), "a job that is gone is stopping"

    def _run(self, order: StartEffect, started: float) -> None:
        key = (order.job, order.attempt)
        number = self._set_timer(started + _lasts(order), key)
        self._running[key] = (number, _end(order, self._fate(order)))
        if self._report and order.spec.iterations is not None:
            self._report_later(key, order, started)

    def _report_later(self, key: _Key, order: StartEffect, started: float) -> None:
        number = self._set_timer(self._clock.now() + self._report, key)
        self._reports[key] = (number, order, started)

    def _set_timer(self, time: float, key: _Key) -> int:
        """Set a timer of an attempt; return its number."""
        timer = (time, next(self._number), key)
        heappush(self._timers, timer)
        if self._timers[0] is timer:
            self._follow()
        return timer[1]

    def _drop(self, key: _Key) -> bool:
        """Forget an attempt; return whether it was there."""
        self._stops.pop(key, None)
        self._reports.pop(key, None)
        return self._running.pop(key, None) is not None

    def _follow(self) -> None:
        """Restart the wait, because another end is now the first."""
        if self._follower is not None:
            self._follower.cancel()
        self._follower = asyncio.get_running_loop().create_task(self._end_in_time())

    async def _end_in_time(self) -> None:
        while self._timers:
            await self._clock.sleep_until(self._timers[0][0])
            self._end_due()

    def _end_due(self) -> None:
        now = self._clock.now()
        while self._timers and self._timers[0][0] <= now:
            _, number, key = heappop(self._timers)
            if key not in self._running:
                continue
            last, seen = self._running[key]
            if number == last:
                self._drop(key)
                self._sink(seen)
            elif number == self._stops.get(key):
                self._drop(key)
                self._sink(Stopped(*key))
            elif key in self._reports and number == self._reports[key][0]:
                _, order, started = self._reports[key]
                self._sink(Reported(*key, iterations=_iterations(order, now - started)))
                self._report_later(key, order, started)


def _iterations(order: StartEffect, seconds: float) -> int:
    """Return how many iterations of the whole work are done this many seconds after the start."""
    done = order.done + max(0.0, seconds - order.overhead) * order.speed
    return int((order.spec.iterations or 0) * min(1.0, done / _work(order)))


def _work(order: StartEffect) -> float:
    """Return the seconds of work that a job has."""
    spec = order.spec
    if spec.duration is not None:
        return spec.duration
    return RUN_TIME if spec.run_time is None else spec.run_time


def _lasts(order: StartEffect) -> float:
    """Return the seconds that an attempt takes for its remaining work."""
    return order.overhead + max(0.0, _work(order) - order.done) / order.speed


def _end(order: StartEffect, fate: Fate) -> Observation:
    if fate == "lost":
        return Lost(order.job, order.attempt, "loss was simulated")
    return Ended(order.job, order.attempt, code=0 if fate == "done" else 1)
