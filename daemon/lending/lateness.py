"""Late jobs of a pool: jobs that would already run, or would have started earlier, without sharing.

An account has a verdict on a job only once the job has ended, but guard rails need it earlier.
"""

from __future__ import annotations

from math import inf
from typing import NamedTuple

from sia.limits import SLOWED
from sia.virtual.virtual_clock import VirtualClock


class Late(NamedTuple):
    """Number of late jobs that have not ended, and when the next job will be late (seconds)."""

    waiting: int
    running: int
    following: float


def late_of(clock: VirtualClock, now: float) -> Late:
    """Count the late jobs that a pool's virtual clock knows now. O(jobs that are or were late)."""
    waits, runs, following = set(), set(), inf
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
        both = twin.began is not None and twin.started is not None
        if both and twin.started > twin.began + SLOWED:  # type: ignore[operator]
            runs.add(job_id)
    return Late(len(waits), len(runs), following)
