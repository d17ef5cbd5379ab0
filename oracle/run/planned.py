"""A policy that starts each job at a planned time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from heapq import heappop, heappush
from math import inf

from replay.logs.trace import PoolTable, Trace
from replay.run.schedule import Recorder, Schedule
from sia import Core
from sia.contract.policy import Changes, Policy, stream_of
from sia.contract.proposals import Proposals, Start, Wake
from sia.contract.views import JobStateView
from sia.core.playout import play


class Planned(Policy):
    """Starts jobs at given times (seconds), dedicated where their pool's quota allows it."""

    shares = True

    def __init__(self, starts: Mapping[str, float]) -> None:
        """Take the start of each job by job ID."""
        super().__init__()
        self._starts = starts
        self._due: list[tuple[float, int, JobStateView]] = []

    def submitted(self, job: JobStateView) -> None:
        """Add a job to the queue of planned starts. O(log n)."""
        start = self._starts[job.job.id]
        heappush(self._due, (start, job.sequence, job))
        self.plan[job.pool.group].intend(job, start, inf, job.width)

    def propose(self, now: float, changes: Changes) -> Proposals:
        """Start the jobs that are due, and request a wake-up for the next one."""
        while self._due and self._due[0][0] <= now:
            job = heappop(self._due)[2]
            self.plan[job.pool.group].forget(job.job.id, self._starts[job.job.id])
            yield Start(job, stream_of(job.pool, job.width), "planned for now")
        if self._due:
            yield Wake(self._due[0][0])


def carried_out(label: str, trace: Trace, table: PoolTable, starts: Sequence[float]) -> Schedule:
    """Return the schedule, with streams and loans, of jobs that start at these times.

    Raises AssertionError if a job's GPUs are not idle at its start.
    """
    by_id = {a.job.id: start for a, start in zip(trace.arrivals, starts, strict=True)}
    recorder = Recorder(label, trace, segments=False)
    for instant in play(Core(table.pools, Planned(by_id)), trace.arrivals):
        recorder.take(instant)
    return recorder.schedule
