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
    paused: float = 0.0

    @property
    def later(self) -> float:
        """Seconds by which it started later than in the baseline.

        Negative if it started earlier, minus infinity if it would never have started.
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
    """The real start, the first one if the job was stopped. The following fields are real too."""
    ended: float | None = None
    withdrawn: bool = False
    freed: bool = False
    """Whether `VirtualClock.bound` released its virtual GPUs. Others no longer wait for its end."""
    paused: float = 0.0
    """Seconds from each stop to the next start, plus the seconds of work lost by stops."""
    stopped: float | None = None
    """When it was stopped; None while it runs."""

    def ran(self, now: float) -> float:
        """Return the seconds for which a job that has started has really run until `now`."""
        assert self.started is not None, "it has not started"
        return (now if self.stopped is None else self.stopped) - self.started - self.paused

    @property
    def waits_over(self) -> bool:
        """Whether it has really ended and is virtually pending."""
        return self.ended is not None and self.began is None
