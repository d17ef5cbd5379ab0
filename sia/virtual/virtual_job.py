"""A job beside itself as it would be if its pool shared nothing, and what comes of both."""

from __future__ import annotations

from math import inf
from typing import NamedTuple

from msgspec import Struct


class JobComparison(NamedTuple):
    """What became of a job, and what would have, alone. Times are seconds.

    `began` is None where it would never have started: wider than its pool's quota; or where that
    will not be known (see `VirtualClock.bound`). `started` is None of a job that was withdrawn
    while it waited, though alone it would have run.
    """

    job_id: str
    width: int
    submit: float
    began: float | None
    started: float | None
    ended: float
    known: bool = True

    @property
    def later(self) -> float:
        """Seconds by which it started later than alone; below 0, sooner; minus infinity, at all."""
        if self.began is None:
            return -inf
        return (self.ended if self.started is None else self.started) - self.began


class VirtualJob(Struct, array_like=True, gc=False):
    """A job beside itself as it would be alone. Times are seconds."""

    width: int
    arrival: int
    submit: float
    judged: bool
    """Whether a verdict is wanted: not of what was there before the clock."""
    sequence: int = 0
    """Its place in the virtual queue, least first."""
    began: float | None = None
    """Virtually."""
    started: float | None = None
    """Really, as what follows."""
    ended: float | None = None
    withdrawn: bool = False
    freed: bool = False
    """Its virtual GPUs were taken from it: others are not to wait for its end any more."""

    @property
    def waits_over(self) -> bool:
        """Whether it is really over, and has not had its turn virtually."""
        return self.ended is not None and self.began is None
