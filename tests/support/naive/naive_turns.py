"""A pool alone, simulated again from scratch: the model beside `sia.virtual.turns`."""

from math import inf
from typing import NamedTuple


class Alone(NamedTuple):
    """A job's real events, which suffice to simulate its pool without sharing."""

    arrival: int
    submit: float
    width: int
    priority: int
    ran: float  # inf while it has not ended
    gone: float = inf  # when it was cancelled while pending
    ranked: tuple[tuple[float, int], ...] = ()  # times and new priorities


def turns(quotas, jobs):
    """Return start and end of each job, by number, in a pool with these (time, quota) steps."""
    starts, ends = {}, {}
    known = [*(job.submit for job in jobs), *(job.gone for job in jobs), *(t for t, _ in quotas)]
    times = sorted({t for t in known if t < inf} | {t for job in jobs for t, _ in job.ranked})
    now = -inf
    while (now := min((t for t in [*times, *ends.values()] if t > now), default=inf)) < inf:
        while True:  # jobs of no length end in the instant in which they begin
            quota = quotas[
                max((time, at) for at, (time, _) in enumerate(quotas) if time <= now)[1]
            ][1]
            used = sum(job.width for job in jobs if ends.get(job.arrival, -inf) > now)
            queue = [j for j in jobs if j.submit <= now < j.gone and j.arrival not in starts]
            queue.sort(key=lambda j: (-_priority(j, now), j.arrival))
            if not queue or queue[0].width > quota - used:
                break
            starts[queue[0].arrival], ends[queue[0].arrival] = now, now + queue[0].ran
    return starts, ends


def _priority(job, now):
    return [job.priority, *(priority for time, priority in job.ranked if time <= now)][-1]
