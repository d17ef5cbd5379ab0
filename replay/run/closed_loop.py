"""Closed-loop replay: users who get results earlier submit their next jobs earlier (§2).

The predecessor of a job is the job of the same user that was the last to end, in the baseline,
before the job was submitted. If the predecessor ends earlier or later than in the baseline, the
submission of the job shifts by the same amount. Jobs without a user or a predecessor are submitted
at the time in the log. Under the baseline no submission is shifted. The paper's replay is open-loop
(§6.1).
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from math import fsum
from operator import itemgetter

from replay.logs.trace import Trace
from replay.run.schedule import Schedule
from sia.core.playout import Arrival


class ClosedLoop:
    """Determine the submission times of jobs while a policy is replayed."""

    def __init__(self, trace: Trace, baseline: Schedule) -> None:
        """Find each job's predecessor by the ends of `baseline`. O(n log n)."""
        self._trace = trace
        self._ends = dict(zip((a.job.id for a in trace.arrivals), baseline.ends, strict=True))
        ended: dict[str, list[tuple[float, str]]] = {}
        for (job, _), end in zip(trace.arrivals, baseline.ends, strict=True):
            if job.user and end is not None:
                ended.setdefault(job.user, []).append((end, job.id))
        for own in ended.values():
            own.sort(key=itemgetter(0))
        self.without_predecessor: list[Arrival] = []
        self._after: dict[str, list[Arrival]] = {}
        for arrival in trace.arrivals:
            own = ended.get(arrival.job.user, [])
            before = bisect_right(own, arrival.job.submit, key=itemgetter(0))
            if before:
                self._after.setdefault(own[before - 1][1], []).append(arrival)
            else:
                self.without_predecessor.append(arrival)
        self._submitted: list[Arrival] = [*self.without_predecessor]

    def followers(self, now: float, job_id: str) -> Sequence[Arrival]:
        """Return the successors of a job that ends at `now`, with shifted submission times."""
        earlier = (self._ends[job_id] or 0.0) - now
        shifted = [
            Arrival(
                job.submitted_at(max(now, job.submit - earlier)) if earlier else job,
                duration,
            )
            for job, duration in self._after.pop(job_id, ())
        ]
        self._submitted += shifted
        return shifted

    def sooner(self, effective: Trace, schedule: Schedule, warmup: float) -> float | None:
        """Return the mean time, in seconds, by which jobs end earlier than in the baseline.

        The mean is over jobs that the log submits at `warmup` or later and that end in both
        schedules; None if there are none.
        """
        submits = {arrival.job.id: arrival.job.submit for arrival in self._trace.arrivals}
        gains = [
            before - end
            for (job, _), end in zip(effective.arrivals, schedule.ends, strict=True)
            if end is not None
            and (before := self._ends[job.id]) is not None
            and submits[job.id] >= warmup
        ]
        return fsum(gains) / len(gains) if gains else None

    def effective(self, schedule: Schedule) -> tuple[Trace, Schedule]:
        """Return the log with the effective submission times, and `schedule` in its order.

        Jobs whose predecessor never ended were never submitted; the log drops and counts them.
        """
        places = {arrival.job.id: i for i, arrival in enumerate(self._trace.arrivals)}
        arrivals = sorted(self._submitted, key=lambda arrival: arrival.job.submit)
        order = [places[arrival.job.id] for arrival in arrivals]
        dropped = Counter(self._trace.dropped)
        if missing := len(places) - len(order):
            dropped["that follow a job that never ended"] += missing
        trace = replace(self._trace, arrivals=arrivals, dropped=dropped)
        told = schedule.predictions
        return trace, replace(
            schedule,
            starts=[schedule.starts[i] for i in order],
            ends=[schedule.ends[i] for i in order],
            spare=[schedule.spare[i] for i in order],
            predictions=None if told is None else [told[i] for i in order],
        )
