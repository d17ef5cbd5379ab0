"""Forecasts in a cluster with cells: widths are rounded up to cells (SIA §5.5)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from sia.forecasts import Loads
from sia.model import Job, Load


def rounded(job: Job, gpus: Callable[[str, int], int]) -> Job:
    """Return the job with its width rounded up to cells; `gpus` maps pool and width to GPUs."""
    width = gpus(job.pool, job.width)
    if width == job.width:
        return job
    return replace(job, width=width, min_width=0, max_width=0, demand=())


class RoundedLoads(Loads):
    """Wraps a forecast, and reports jobs to it with widths rounded up to cells."""

    def __init__(self, loads: Loads, gpus: Callable[[str, int], int]) -> None:
        """Take `gpus`, which maps pool and width to the GPUs that a job takes."""
        self._loads = loads
        self._gpus = gpus

    def submitted(self, now: float, job: Job) -> None:
        """Record an arrival."""
        self._loads.submitted(now, rounded(job, self._gpus))

    def started(self, now: float, job: Job, run_time: float) -> None:
        """Record a start, with the run-time estimate in seconds."""
        self._loads.started(now, rounded(job, self._gpus), run_time)

    def finished(self, now: float, job: Job) -> None:
        """Record an end."""
        self._loads.finished(now, rounded(job, self._gpus))

    def withdrawn(self, now: float, job: Job) -> None:
        """Record that a job was cancelled."""
        self._loads.withdrawn(now, rounded(job, self._gpus))

    def forget(self, pool: str, before: float) -> None:
        """Drop what the forecast has observed of a pool before that second."""
        self._loads.forget(pool, before)

    def requota(self, now: float, pool: str, quota: int) -> None:
        """Record a pool's quota in GPUs."""
        self._loads.requota(now, pool, quota)

    def unasked(self, now: float) -> None:
        """Record a tick without a query."""
        self._loads.unasked(now)

    def changes(self, now: float) -> Sequence[Load]:
        """Return the changed loads."""
        return self._loads.changes(now)
