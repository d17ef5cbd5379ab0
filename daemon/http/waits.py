"""Why a job waits, in words: what it is behind, and which reservation holds GPUs back from it."""

from __future__ import annotations

from bisect import bisect_left
from math import ceil

from daemon.book import Book, JobRecord
from daemon.jobs import JobPhase
from replay.text import counted, duration
from sia.core import Core
from sia.limits import UNKNOWN_RUN_TIME
from sia.model import Options
from sia.policies.sia import ROUNDING, Sia
from sia.state import GroupState, JobState, PoolState

NAMED = 3
"""Pools that are named for what is held back for them, the largest: more make no line."""


def held_back(pool: PoolState, window: int, options: Options) -> int:
    """GPUs that SIA holds back for a pool in a window: min(waiting + foreseen, unused quota).

    In cells a few more may be, for jobs whose turn is to come.
    """
    unused = max(0, pool.quota - pool.dedicated)
    if (pool.name, options.windows[window]) in options.no_lending:
        return unused
    need = (pool.pending_width + pool.load[window]) * options.slack
    return min(ceil(need - ROUNDING), unused)


def position_of(core: Core, record: JobRecord) -> int | None:
    """Its place in its pool's queue, from 1 on; None for a job that waits in none. O(waiting)."""
    job = _waiting(core, record)
    if job is None:
        return None
    pool, number = job.pool, job.sequence
    return 1 + sum(n < number for n in pool.pending) + sum(n < number for n in pool.aside)


def _waiting(core: Core, record: JobRecord) -> JobState | None:
    job = core.state.jobs.get(record.core) if record.core else None
    return job if job is not None and job.stream is None else None


def why(book: Book, core: Core, record: JobRecord) -> list[str]:
    """Why a job does not run yet, a line a reason; nothing for one that does. O(waiting)."""
    pool = record.spec.pool
    if record.phase is JobPhase.HELD:
        return [f"it is held: sia release {record.spec.id}"]
    if record.phase is JobPhase.STARTING:
        if record.placed:
            return ["it was started, and the backend has not yet said that it runs"]
        return ["its GPUs are given to it, and who had them has not ended yet"]
    if record.phase is not JobPhase.PENDING:
        return []
    job = _waiting(core, record)
    if job is None:
        return [f"pool {pool} is on hold: sia pool set {pool} --state open"]
    lines = [_in_order(core, record, job)]
    if isinstance(core.policy, Sia):
        lines += _on_spare(book, core, job)
    return lines


def _in_order(core: Core, record: JobRecord, job: JobState) -> str:
    """Why it does not start inside its pool's quota."""
    pool = job.pool
    left = max(0, pool.quota - pool.dedicated)
    uses = f"{pool.name} has {left} of its {counted(pool.quota, 'GPU')} left"
    head = pool.head
    if head is not job and head is not None:
        place = position_of(core, record)
        first = head.job.id.partition("\x1f")[0]
        return (
            f"number {place} in its queue, in which jobs start in order: "
            f"the first, {first}, needs {head.width}, and {uses}"
        )
    if job.width > left:
        return f"first in its queue: it needs {job.width}, and {uses}"
    return (
        f"first in its queue, and {uses}, of which {pool.idle} are idle; "
        "it starts as soon as they are, and lie together"
    )


def _on_spare(book: Book, core: Core, job: JobState) -> list[str]:
    """Why it does not start on what others do not need."""
    options, group = core.state.options, job.pool.group
    if not book.lending:
        return ["lending is off: sia lending on"]
    if job.run_time >= UNKNOWN_RUN_TIME:
        return [
            "nobody lends to it, as nothing is known of how long it runs: a time_limit would say"
        ]
    window = bisect_left(options.windows, job.run_time)
    if window == len(options.windows):
        longest = duration(options.windows[-1])
        thought = f"it is thought to run {duration(job.run_time)}"
        return [f"nobody lends to it: {thought}, and nobody foresees more than {longest}"]
    return [_held_from(group, window, options, job)]


def _held_from(group: GroupState, window: int, options: Options, job: JobState) -> str:
    """Which pools' reservations leave too few idle GPUs."""
    held = sorted(((held_back(p, window, options), p.name) for p in group.pools), reverse=True)
    total = sum(gpus for gpus, _ in held)
    named = ", ".join(f"{gpus} for {name}" for gpus, name in held[:NAMED] if gpus)
    back = f"{total} are held back ({named})" if total else "none are held back"
    return (
        f"it is thought to be gone within {duration(options.windows[window])}; of "
        f"{counted(group.idle, 'idle GPU')} {back}: {max(0, group.idle - total)} could be lent, "
        f"and it needs {job.width}"
    )
