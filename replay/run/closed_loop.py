"""A closed loop: who gets results earlier submits the next jobs earlier (§2, what §6.1 leaves out).

A job follows the job of the same user that, in the baseline, was the last to end before it was
submitted. It is submitted as much earlier, or later, as that one ends. Jobs without a user, and
those before which none of their user's jobs ended, come when the log says. Under the baseline
itself nothing is shifted.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from math import fsum
from operator import itemgetter

import msgspec

from replay.logs.trace import Trace
from replay.run.schedule import Schedule
from sia.core.playout import Arrival


class ClosedLoop:
    """Decides, while a policy is replayed, when the jobs of a log are submitted."""

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
        self.unprompted: list[Arrival] = []
        self._after: dict[str, list[Arrival]] = {}
        for arrival in trace.arrivals:
            own = ended.get(arrival.job.user, [])
            before = bisect_right(own, arrival.job.submit, key=itemgetter(0))
            if before:
                self._after.setdefault(own[before - 1][1], []).append(arrival)
            else:
                self.unprompted.append(arrival)
        self._submitted: list[Arrival] = [*self.unprompted]

    def followers(self, now: float, job_id: str) -> Sequence[Arrival]:
        """The jobs that follow one that has ended now, with their shifted submissions."""
        earlier = (self._ends[job_id] or 0.0) - now
        shifted = [
            Arrival(
                msgspec.structs.replace(job, submit=max(now, job.submit - earlier))
                if earlier
                else job,
                duration,
            )
            for job, duration in self._after.pop(job_id, ())
        ]
        self._submitted += shifted
        return shifted

    def sooner(self, effective: Trace, schedule: Schedule, warmup: float) -> float | None:
        """Seconds by which jobs end earlier, on average, than under the baseline on the log.

        Of those that the log has from `warmup` on and that end in both; None of none.
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
        """The log as it came about, in order of submission, and `schedule` by its positions.

        Jobs whose predecessor never ended were never submitted: they are dropped, counted.
        """
        places = {arrival.job.id: i for i, arrival in enumerate(self._trace.arrivals)}
        arrivals = sorted(self._submitted, key=lambda arrival: arrival.job.submit)
        order = [places[arrival.job.id] for arrival in arrivals]
        dropped = Counter(self._trace.dropped)
        if missing := len(places) - len(order):
            dropped["that follow a job that never ended"] += missing
        trace = replace(self._trace, arrivals=arrivals, dropped=dropped)
        return trace, replace(
            schedule,
            starts=[schedule.starts[i] for i in order],
            ends=[schedule.ends[i] for i in order],
            spare=[schedule.spare[i] for i in order],
        )
