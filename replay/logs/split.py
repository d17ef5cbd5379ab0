"""Split pools by job width, so that one large pool can be replayed as several."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from replay.logs.trace import Trace
from sia.core.playout import Arrival


def split_by_width(trace: Trace) -> Trace:
    """Return the trace with each job in pool `POOL-wN`, N being the width class of the job."""
    arrivals = [
        Arrival(msgspec.structs.replace(job, pool=f"{job.pool}-w{width_class(job.width)}"), seconds)
        for job, seconds in trace.arrivals
    ]
    return replace(trace, arrivals=arrivals)


def width_class(width: int) -> int:
    """Return the least power of two that is at least `width`, which must be at least 1."""
    return 1 << (width - 1).bit_length()
