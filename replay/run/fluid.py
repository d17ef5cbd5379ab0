"""Fluid fair share: at every moment the jobs of a pool have equal shares of its GPUs.

What a job cannot use of its share goes to the others. Shares can be fractions of a GPU, and below
the least width of the job, as if it ran part of the time. Unfairness is measured against this
schedule (PCS, §2.2), which is also the policy `fair-share` in replays.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import inf

from replay.logs.trace import PoolTable, Trace
from replay.run.schedule import Schedule, Segment
from sia.core.playout import Arrival
from sia.policies.shared.elastic import most_width, speed_on

DONE = 1e-9
"""A job ends when less than this share of its work remains, because of rounding errors."""


class FluidPool:
    """One pool under fluid fair share. A change costs O(jobs · log jobs).

    Attributes:
        now: The present time in seconds.
        jobs: The jobs in the pool, in order of arrival.
    """

    def __init__(self, gpus: int) -> None:
        """Start without jobs."""
        self.now = -inf
        self.jobs: list[FluidJob] = []
        self._gpus = gpus

    def next_end(self) -> float:
        """Return when the next job ends if nothing changes, or infinity."""
        return min((job.end(self.now) for job in self.jobs), default=inf)

    def advance(self, now: float) -> list[FluidJob]:
        """Run until `now`, at most until the next end, and return the jobs that end then."""
        passed = now - self.now if self.jobs else 0.0
        ended = [job for job in self.jobs if job.end(self.now) <= now]
        for job in self.jobs:
            job.left -= passed * job.speed
        self.now = now
        if ended:
            self.jobs = [job for job in self.jobs if job not in ended]
        return ended

    def submit(self, arrival: Arrival) -> FluidJob:
        """Add a job; `divide` gives it its share."""
        job = FluidJob(arrival)
        self.jobs.append(job)
        return job

    def resize(self, gpus: int) -> None:
        """Change the number of GPUs of the pool; `divide` distributes them."""
        self._gpus = gpus

    def divide(self) -> None:
        """Give each job its share of the GPUs."""
        left, waiting = float(self._gpus), len(self.jobs)
        for job in sorted(self.jobs, key=lambda job: job.most):
            job.set(min(job.most, left / waiting))
            left -= job.gpus
            waiting -= 1

    def copy(self) -> FluidPool:
        """Return an independent pool in the same state. O(jobs)."""
        pool = FluidPool(self._gpus)
        pool.now, pool.jobs = self.now, [job.copy() for job in self.jobs]
        return pool


class FluidJob:
    """A job in a fluid pool; `left` is its work in seconds at its own width."""

    __slots__ = ("arrival", "gpus", "left", "most", "speed")

    def __init__(self, arrival: Arrival) -> None:
        """Start without GPUs."""
        self.arrival = arrival
        self.left, self.most = arrival.duration, most_width(arrival.job)
        self.gpus = self.speed = 0.0

    def set(self, gpus: float) -> None:
        """Run on this number of GPUs from now on; it can be a fraction."""
        if gpus != self.gpus:
            self.gpus = gpus
            self.speed = speed_on(self.arrival.job, gpus) if gpus else 0.0

    def end(self, now: float) -> float:
        """Return when it ends if nothing changes."""
        if self.left <= DONE * self.arrival.duration:
            return now
        return now + self.left / self.speed if self.speed else inf

    def copy(self) -> FluidJob:
        """Return an independent job in the same state."""
        job = FluidJob.__new__(FluidJob)
        job.arrival, job.left, job.most = self.arrival, self.left, self.most
        job.gpus, job.speed = self.gpus, self.speed
        return job


PEAK_DIGITS = 6
"""Digits to which the peak of GPUs in use is rounded, to remove errors of summation."""

Told = Callable[[FluidPool, FluidJob], None]
"""Called with the pool after each submission, before the next one of the same instant."""


def fluid_ends(
    trace: Trace,
    table: PoolTable,
    told: Told | None = None,
    segments: list[Segment] | None = None,
) -> list[float | None]:
    """Return the end of each job under fluid fair share, by position; None if it never ends.

    The periods in which a job had the same share of the GPUs are added to `segments`. O(jobs · jobs
    at once · log jobs at once).
    """
    by_pool: dict[str, list[int]] = defaultdict(list)
    for i, arrival in enumerate(trace.arrivals):
        by_pool[arrival.job.pool].append(i)
    ends: list[float | None] = [None] * len(trace.arrivals)
    quotas = table.quotas()
    for name, positions in by_pool.items():
        for end, position in _play(trace, positions, quotas[name], told, segments):
            ends[position] = end
    if segments is not None:
        segments.sort(key=lambda segment: (segment.end, segment.start))
    return ends


def _play(
    trace: Trace,
    positions: Sequence[int],
    quota: Sequence[tuple[float, int]],
    told: Told | None,
    segments: list[Segment] | None,
) -> Iterator[tuple[float, int]]:
    """Yield the end and the position of each job of a pool."""
    pool = FluidPool(quota[0][1])
    changes = [*quota[1:], (inf, 0)]
    where: dict[str, int] = {}
    since: dict[str, tuple[float, float]] = {}
    queue = [*positions]
    queue.reverse()
    while True:
        arrives = trace.arrivals[queue[-1]].job.submit if queue else inf
        now = min(pool.next_end(), arrives, changes[0][0])
        if now == inf:
            return
        for job in pool.advance(now):
            _note(segments, since, job, now, over=True)
            yield now, where[job.arrival.job.id]
        if changes[0][0] == now:
            pool.resize(changes.pop(0)[1])
        pool.divide()
        while queue and trace.arrivals[queue[-1]].job.submit == now:
            arrival = trace.arrivals[queue[-1]]
            where[arrival.job.id] = queue.pop()
            job = pool.submit(arrival)
            pool.divide()
            if told is not None:
                told(pool, job)
        for job in pool.jobs:
            _note(segments, since, job, now)


def _note(
    segments: list[Segment] | None,
    since: dict[str, tuple[float, float]],
    job: FluidJob,
    now: float,
    *,
    over: bool = False,
) -> None:
    """If a job's share of the GPUs has changed, close its segment and begin the next one."""
    if segments is None:
        return
    name = job.arrival.job.id
    begun, gpus = since.get(name, (now, 0.0))
    if name in since and gpus == job.gpus and not over:
        return
    if gpus and now > begun:
        segments.append(Segment(name, begun, now, gpus, spare=False))
    since[name] = now, job.gpus


def fluid_schedule(
    label: str, trace: Trace, table: PoolTable, estimates: Mapping[str, float] | None
) -> Schedule:
    """Return the schedule of fluid fair share, with predictions if there are `estimates`.

    `estimates` are run times in seconds by job; a job without one gets no prediction. The widths of
    segments can be fractions of a GPU.
    """
    jobs = len(trace.arrivals)
    predictions: list[float | None] = [None] * jobs
    places = {arrival.job.id: i for i, arrival in enumerate(trace.arrivals)}
    segments: list[Segment] = []

    def foretell(pool: FluidPool, job: FluidJob) -> None:
        if estimates and job.arrival.job.id in estimates:
            predictions[places[job.arrival.job.id]] = end_of(pool, job.arrival.job.id, estimates)

    ends = fluid_ends(trace, table, None if estimates is None else foretell, segments)
    starts: list[float | None] = [None] * jobs
    for segment in segments:
        place = places[segment.job_id]
        begun = starts[place]
        starts[place] = segment.start if begun is None else min(begun, segment.start)
    schedule = Schedule(label, starts, ends, [False] * jobs, segments=segments)
    schedule.predictions = None if estimates is None else predictions
    schedule.peak_gpus = _peak(segments)
    return schedule


def _peak(segments: Sequence[Segment]) -> float:
    """Return the largest number of GPUs in use at one time, rounded to `PEAK_DIGITS`."""
    changes = [(segment.start, segment.width) for segment in segments]
    changes += [(segment.end, -segment.width) for segment in segments]
    most = used = 0.0
    for _, change in sorted(changes):  # ends come first
        used += change
        most = max(most, used)
    return round(most, PEAK_DIGITS)


def end_of(pool: FluidPool, job_id: str, estimates: Mapping[str, float]) -> float | None:
    """Return when a job of the pool ends if no jobs arrive later, or None if never.

    Each job runs as long as its estimate, and ends at once if it has already run longer.
    """
    pool = pool.copy()
    for job in pool.jobs:
        name, run_time = job.arrival.job.id, job.arrival.duration
        job.left = max(0.0, job.left + estimates.get(name, run_time) - run_time)
    while (now := pool.next_end()) < inf:
        if any(job.arrival.job.id == job_id for job in pool.advance(now)):
            return now
        pool.divide()
    return None
