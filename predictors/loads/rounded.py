"""Loads in cells: what a forecast hears of a job is the GPUs that it takes (SIA §5.5)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from sia.forecasts import Loads
from sia.model import Job, Load


def rounded(job: Job, gpus: Callable[[str, int], int]) -> Job:
    """The same job as wide as the cells that it takes; `gpus` is asked with pool and width."""
    width = gpus(job.pool, job.width)
    if width == job.width:
        return job
    return replace(job, width=width, min_width=0, max_width=0, demand=())


class RoundedLoads(Loads):
    """Another forecast, which is told of jobs as wide as the cells that they take."""

    def __init__(self, loads: Loads, gpus: Callable[[str, int], int]) -> None:
        """Ask `gpus`, with pool and width, for what a job takes."""
        self._loads = loads
        self._gpus = gpus

    def submitted(self, now: float, job: Job) -> None:
        """As the other."""
        self._loads.submitted(now, rounded(job, self._gpus))

    def started(self, now: float, job: Job, run_time: float) -> None:
        """As the other."""
        self._loads.started(now, rounded(job, self._gpus), run_time)

    def finished(self, now: float, job: Job) -> None:
        """As the other."""
        self._loads.finished(now, rounded(job, self._gpus))

    def withdrawn(self, now: float, job: Job) -> None:
        """As the other."""
        self._loads.withdrawn(now, rounded(job, self._gpus))

    def unasked(self, now: float) -> None:
        """As the other."""
        self._loads.unasked(now)

    def changes(self, now: float) -> Sequence[Load]:
        """As the other."""
        return self._loads.changes(now)
