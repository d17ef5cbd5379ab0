"""Estimate a job submitted after the last simulation, from the results for other jobs. Pure."""

from __future__ import annotations

from daemon.answers.estimates.worlds import (
    FEW,
    WORLDS,
    Outlook,
    Times,
    overdue,
    plain_job,
    ran,
    spread,
)
from daemon.answers.simulate.futures import limited, of_attempt, reported
from daemon.model.book import JobRecord
from daemon.model.job import ON_GPUS, JobPhase
from predictors.run_time_distribution import RunTimeDistributions


def new_job(
    outlook: Outlook,
    lasting: RunTimeDistributions,
    record: JobRecord,
    now: float,
    queue: int = 0,
    worlds: int = WORLDS,
) -> Times | None:
    """Return a job's start and end times; None where the simulation has no similar job.

    `queue` is the job's queue, where the policy has several in a pool. A pending job is assumed to
    start when the last pending job of its queue and width starts. If there is no such job, it is
    assumed to wait as long as the simulated arrivals. O(worlds² · log worlds).
    """
    runs = record.phase in ON_GPUS
    if not runs and (record.phase is not JobPhase.PENDING or not record.core):
        return None
    job = plain_job(record)
    starts = [] if runs else _starts(outlook, job.pool, queue, job.width, now)
    if not runs and not starts:
        return None  # before the first simulation, every job ends here
    curve, chances = lasting.curve(job), lasting.chances(job, worlds)
    age, worked = ran(record, now), record.work(now)
    medians = [reported(record, now, chance) if runs else None for chance in chances]
    lasts = [
        limited(
            record,
            of_attempt(record, now, curve.quantile(chance, worked)) if seconds is None else seconds,
        )
        for seconds, chance in zip(medians, chances, strict=True)
    ]
    if runs:
        return Times(spread(now - age + max(age, seconds) for seconds in lasts))
    ends = spread(start + seconds for start in starts for seconds in lasts)
    return Times(ends, spread(starts), min(lasts))


def _starts(outlook: Outlook, pool: str, queue: int, width: int, now: float) -> list[float]:
    """Return possible start times of a pending job; an empty list if none are known.

    Worlds in which the last job of the queue has started by now are ignored.
    """
    pending = outlook.pools.get(pool, {}).get(queue)
    if pending is None:
        return []
    tails = [tail for tail in pending.tails if tail.width >= width] or pending.tails[-1:]
    if tails:
        nearest = min(tails, key=lambda tail: tail.width)
        left = [start for start in nearest.starts if start > now or now <= outlook.now]
        if len(left) >= FEW:
            return left
        if not pending.waits:
            return overdue(outlook.now, now)
    waits = [wait for gpus, wait in pending.waits if gpus >= width] or [
        wait for _, wait in pending.waits
    ]
    return [now + wait for wait in waits]
