"""The history in the journal, as input for predictors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import ceil
from typing import NamedTuple

from daemon.engine.jobs import core_job
from daemon.model.book import JobRecord
from sia.forecasts import Loads, RunTimes
from sia.limits import TICK
from sia.model import Job, Load
from sia.state.state import ClusterState

SPAN = 28 * 86400.0
"""Seconds of history that predictors get: twice as much as they use."""

ENDED, SUBMITTED, STARTED, GONE = range(4)
"""The order of events at the same time."""


class _Event(NamedTuple):
    time: float
    kind: int
    order: int
    job: Job
    run_time: float = 0.0


class JournalHistory:
    """Events from `begin` to `end`, in seconds since the epoch.

    Attributes:
        alive: Jobs in the core at `end`, under their core ids, with their starts.
    """

    def __init__(self, begin: float, end: float, opened: Mapping[str, float] | None = None) -> None:
        """Create an empty history.

        A pool's history starts at its time in `opened` or with its first job; without `opened`, at
        `begin`.
        """
        self.begin, self.end = begin, end
        self._since = None if opened is None else dict(opened)
        self._events: list[_Event] = []
        self.alive: list[tuple[Job, float | None]] = []

    def add_ended(self, records: Iterable[JobRecord]) -> None:
        """Add ended jobs; those that never started count as withdrawn."""
        for record in records:
            ended = record.ended
            if ended is None or not self.begin <= record.submitted <= ended <= self.end:
                continue
            job = self._submitted(record)
            if record.decided is None:
                self._add(ended, GONE, job)
            else:
                self._add(record.decided, STARTED, job)
                self._add(ended, ENDED, job, ended - record.decided)

    def add_alive(self, records: Iterable[JobRecord]) -> None:
        """Add pending and running jobs; a submission before `begin` counts as one at `begin`."""
        for record in records:
            if not record.core:
                continue
            job = self._submitted(record)
            waits = record.stream is None
            self.alive.append((job, None if waits else record.decided))
            if not waits and record.decided is not None:
                self._add(max(self.begin, record.decided), STARTED, job)

    def _submitted(self, record: JobRecord) -> Job:
        pool, time = record.spec.pool, max(self.begin, record.submitted)
        if self._since is not None:
            self._since[pool] = min(record.submitted, self.seen(pool))
        job = core_job(record, time)
        if not job.id:  # the job has left the core
            job = Job(record.spec.id, job.pool, time, job.width, job.user, job.name)
        self._add(time, SUBMITTED, job)
        return job

    def _add(self, time: float, kind: int, job: Job, run_time: float = 0.0) -> None:
        if kind == ENDED and not run_time:
            kind = GONE  # sorts after the start
        self._events.append(_Event(time, kind, len(self._events), job, run_time))

    def seen(self, pool: str) -> float:
        """Return the start of a pool's history."""
        return self.begin if self._since is None else self._since.get(pool, self.end)

    def tell_run_times(self, run_times: RunTimes) -> dict[str, float]:
        """Replay the history to a predictor; return its estimates by job id. O(n log n)."""
        self._events.sort(key=lambda event: event[:3])
        estimates: dict[str, float] = {}
        for time, kind, _, job, run_time in self._events:
            if kind == SUBMITTED:
                estimates[job.id] = run_times.run_time(job)
            elif kind == STARTED:
                run_times.started(time, job)
            elif kind == ENDED:
                run_times.finished(time, job, run_time)
            else:
                run_times.withdrawn(time, job)
        return estimates

    def tell_loads(self, loads: Loads, estimates: Mapping[str, float]) -> None:
        """Replay the history, with a query at each tick, to a predictor. O(n log n + ticks)."""
        self._events.sort(key=lambda event: event[:3])
        tick = ceil(self.begin / TICK)
        for time, kind, _, job, _ in self._events:
            while tick * TICK < time:
                loads.unasked(tick * TICK)
                tick += 1
            if kind == SUBMITTED:
                loads.submitted(time, job)
            elif kind == STARTED:
                loads.started(time, job, estimates.get(job.id, 0.0))
            elif kind == ENDED:
                loads.finished(time, job)
            else:
                loads.withdrawn(time, job)
        while tick * TICK < self.end:
            loads.unasked(tick * TICK)
            tick += 1


def said_to(state: ClusterState) -> list[Load]:
    """Return the load forecasts that the core uses."""
    return [
        Load(pool.name, window, gpus)
        for pool in state.pools.values()
        for window, gpus in enumerate(pool.load)
    ]
