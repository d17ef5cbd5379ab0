"""A job in the virtual schedule, and the comparison of its real and virtual runs."""

from __future__ import annotations

from math import inf
from typing import NamedTuple

from msgspec import Struct


class JobComparison(NamedTuple):
    """The real and the virtual course of a job. Times are in seconds.

    `began` is the virtual start. It is None if the job would never have started because it is wider
    than its pool's quota, or if the virtual start is not known (see `VirtualClock.bound`; `known`
    is then False). `started` is the real start, None if the job was withdrawn while pending
    although it would have run in the baseline.
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
        """Seconds by which it started later than in the baseline.

        Negative if it started sooner, minus infinity if it would never have started.
        """
        if self.began is None:
            return -inf
        return (self.ended if self.started is None else self.started) - self.began


class VirtualJob(Struct, array_like=True, gc=False):
    """A job with its virtual and real times in seconds."""

    width: int
    arrival: int
    submit: float
    judged: bool
    """Whether a comparison is wanted. False for jobs from before the clock started."""
    sequence: int = 0
    """Its place in the virtual queue, lowest first."""
    began: float | None = None
    """The virtual start."""
    started: float | None = None
    """The real start. The following fields are real as well."""
    ended: float | None = None
    withdrawn: bool = False
    freed: bool = False
    """Whether `VirtualClock.bound` released its virtual GPUs. Others no longer wait for its end."""

    @property
    def waits_over(self) -> bool:
        """Whether it has really ended and is virtually pending."""
        return self.ended is not None and self.began is None
