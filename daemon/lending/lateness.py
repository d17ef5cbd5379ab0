"""Late jobs of a pool: jobs that would already run, or would have started earlier, without sharing.

An account has a verdict on a job only once the job has ended, but guard rails need it earlier.
"""

from __future__ import annotations

from math import fsum, inf
from typing import NamedTuple

from sia.limits import SLOWED
from sia.virtual.virtual_clock import VirtualClock


class Late(NamedTuple):
    """Late jobs that have not ended.

    `waiting` and `running` are their numbers; `delays` is the sum of the seconds by which the
    running ones began late; `following` is when the next job will be late (seconds).
    """

    waiting: int
    running: int
    delays: float
    following: float


def late_of(clock: VirtualClock, now: float) -> Late:
    """Count the late jobs that a pool's virtual clock knows now. O(jobs that are or were late)."""
    waits, runs, following = set[str](), dict[str, float](), inf
    for began, job_id in (*clock.due, *clock.freed):
        twin = clock.twins.get(job_id)
        if twin is not None and twin.judged and twin.started is None and not twin.withdrawn:
            if began + SLOWED < now:
                waits.add(job_id)
            else:
                following = min(following, began + 2 * SLOWED)
    for _, job_id in (*clock.behind, *clock.freed):
        twin = clock.twins.get(job_id)
        if twin is None or twin.ended is not None or not twin.judged:
            continue
        if twin.began is not None and twin.started is not None:
            later = twin.started - twin.began
            if later > SLOWED:
                runs[job_id] = later
    return Late(len(waits), len(runs), fsum(runs.values()), following)
