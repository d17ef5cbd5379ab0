"""A job log and its pools in memory."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from hashlib import sha256
from math import inf
from operator import itemgetter

from sia.core.playout import Arrival
from sia.events import PoolChanged
from sia.model import Job, Pool
from sia.policies.shared.elastic import least_width
from sia.state.places import Places
from sia.wording import some

REQUIRED = ("job_id", "pool", "submit", "width", "duration")
KNOWN = ("user", "name")
WISHES = (
    "min_width", "max_width", "demand", "deadline", "soft", "value", "budget", "estimate",
    "prefers", "slowdown", "strl", "preemptible", "min_run_time", "mode",
    "model", "regimes", "sched_class",
)  # fmt: skip
"""Optional columns with further requests of a job; each is a field of `Job`."""
CHECKPOINT = "checkpoint"
"""Column that says how to tell a job to save its work. It is checked but unused in replays, so it
is kept as an extra column."""
PROGRESS = "progress"
"""Extra column with the progress that a job reports while it runs (`replay.logs.progress`)."""


@dataclass(frozen=True)
class Trace:
    """Jobs in order of submission; jobs submitted at the same time are in file order.

    `extras` maps a job ID to the text of its extra `columns`. `dropped` counts omitted rows by
    reason. `notes` describe other changes made to the log. `origin` is the Unix time of second 0,
    where the log's local times count as UTC; None if it is unknown.
    """

    arrivals: Sequence[Arrival]
    columns: tuple[str, ...] = ()
    extras: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    dropped: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)
    origin: float | None = None


@dataclass(frozen=True)
class PoolTable:
    """Pools with their initial quotas, and the changes of quota. Times are seconds of the trace."""

    pools: list[Pool]
    changes: list[PoolChanged] = field(default_factory=list)
    columns: tuple[str, ...] = ()
    extras: Mapping[tuple[str, float], tuple[str, ...]] = field(default_factory=dict)
    """The text of each row's extra columns, by pool and the time from which the row is valid."""

    def quotas(self) -> dict[str, list[tuple[float, int]]]:
        """Return (from, quota) of each pool in ascending order; the first `from` is -inf."""
        steps = {pool.name: [(float("-inf"), pool.quota)] for pool in self.pools}
        for change in self.changes:
            steps[change.pool].append((change.time, change.quota))
        return steps


def playable(
    trace: Trace, table: PoolTable, places: Places | None = None, *, narrow: bool = False
) -> Trace:
    """Return the trace without jobs that their pool, or its cells, can never run.

    The new trace counts the omitted jobs by reason. With `narrow`, a job is kept if its least width
    fits, as elastic policies can run it.
    """
    largest_from = {name: _suffix_maxima(steps) for name, steps in table.quotas().items()}
    kept: list[Arrival] = []
    dropped = Counter(trace.dropped)
    lacking: dict[str, None] = {}
    could = (
        cache(places.fits_quota) if places is not None else None
    )  # jobs have few distinct widths
    for arrival in trace.arrivals:
        job = arrival.job
        maxima = largest_from.get(job.pool)
        width = least_width(job) if narrow else job.width
        if maxima is None:
            dropped["of a pool that the pools file lacks"] += 1
            lacking[job.pool] = None
        elif width > maxima[0][1]:
            dropped["wider than its pool"] += 1
        elif len(maxima) > 1 and width > _at(maxima, job.submit):
            dropped["wider than its pool will ever be again"] += 1
        elif could is not None and not could(job.pool, job.width):
            dropped["too wide for the pool's cells"] += 1
        else:
            kept.append(arrival)
    notes = [f"the pools file lacks {some([*lacking])}"] if lacking else []
    return Trace(kept, trace.columns, trace.extras, dropped, [*trace.notes, *notes])


def largest_load(jobs: Sequence[Job], window: float = 300.0) -> int:
    """Return the largest load (sum of widths) of the jobs submitted within a window, in GPUs.

    `jobs` must be in order of submission; `window` is in seconds. O(jobs).
    """
    most = total = first = 0
    for job in jobs:
        total += job.width
        while jobs[first].submit <= job.submit - window:
            total -= jobs[first].width
            first += 1
        most = max(most, total)
    return most


def _suffix_maxima(steps: Sequence[tuple[float, int]]) -> list[tuple[float, int]]:
    """Return, for each step, the largest quota from then on."""
    largest = 0
    maxima = []
    for time, quota in reversed(steps):
        largest = max(largest, quota)
        maxima.append((time, largest))
    return maxima[::-1]


def _at(steps: Sequence[tuple[float, int]], time: float) -> int:
    return steps[bisect_right(steps, time, key=itemgetter(0)) - 1][1]


def checksum_of_jobs(trace: Trace, until: float = inf) -> str:
    """Return the SHA-256 of the training data: the jobs submitted until `until` (seconds).

    Pass the log as read: the jobs that are playable also depend on the pools.
    """
    digest = sha256()
    for job, seconds in trace.arrivals:
        if job.submit <= until:
            row = (job.pool, job.submit, job.width, seconds, job.user, job.name)
            digest.update(repr(row).encode(errors="surrogatepass"))
    return digest.hexdigest()
