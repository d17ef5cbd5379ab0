"""A log's pools cut into classes of jobs, so that one large pool can be used as several."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from replay.logs.trace import Trace
from sia.core.playout import Arrival


def split_by_width(trace: Trace) -> Trace:
    """The same jobs, each in pool `POOL-wN`: N is its width, rounded up to a power of two."""
    arrivals = [
        Arrival(msgspec.structs.replace(job, pool=f"{job.pool}-w{width_class(job.width)}"), seconds)
        for job, seconds in trace.arrivals
    ]
    return replace(trace, arrivals=arrivals)


def width_class(width: int) -> int:
    """The least power of two that is at least `width`, which is 1 or more."""
    return 1 << (width - 1).bit_length()
