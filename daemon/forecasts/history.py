"""What was before: told to predictors that were not there."""

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
"""Seconds that predictors are told of: twice what they look back on."""

ENDED, SUBMITTED, STARTED, GONE = range(4)
"""The order of what happens at one moment."""


class _Event(NamedTuple):
    time: float
    kind: int
    order: int
    job: Job
    run_time: float = 0.0


class JournalHistory:
    """What happened from `begin` to `end`, in seconds since the epoch.

    Attributes:
        alive: Jobs that are in the core at its end, under their ids there, and when they started.
    """

    def __init__(self, begin: float, end: float, opened: Mapping[str, float] | None = None) -> None:
        """Nothing yet.

        Pools are seen since they were `opened` or their first job came; without it since `begin`.
        """
        self.begin, self.end = begin, end
        self._since = None if opened is None else dict(opened)
        self._events: list[_Event] = []
        self.alive: list[tuple[Job, float | None]] = []

    def add_ended(self, records: Iterable[JobRecord]) -> None:
        """Jobs that are over; those that never started left their queue."""
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
        """Jobs that wait or run; those that were there before `begin` are submitted then."""
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
        if not job.id:  # it has left the core
            job = Job(record.spec.id, job.pool, time, job.width, job.user, job.name)
        self._add(time, SUBMITTED, job)
        return job

    def _add(self, time: float, kind: int, job: Job, run_time: float = 0.0) -> None:
        if kind == ENDED and not run_time:
            kind = GONE  # after its start
        self._events.append(_Event(time, kind, len(self._events), job, run_time))

    def seen(self, pool: str) -> float:
        """Since when anything is known of a pool."""
        return self.begin if self._since is None else self._since.get(pool, self.end)

    def tell_run_times(self, run_times: RunTimes) -> dict[str, float]:
        """What was thought of each job, by its id. O(n log n)."""
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
        """All of it, and each tick. O(n log n + ticks)."""
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
    """The loads that a core believes."""
    return [
        Load(pool.name, window, gpus)
        for pool in state.pools.values()
        for window, gpus in enumerate(pool.load)
    ]
