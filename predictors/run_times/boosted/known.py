"""Features of a job when it is submitted or pending, as a row of numbers.

The row has the job's own attributes, then, for each kind of jobs to which it belongs, the run times
of the latest jobs and facts about running ones. The kinds are: all jobs, jobs of the pool, of the
pool and width, of the user, of the user with the same width and stated run time, of the name, of
the batch.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from math import inf, log, nan

import numpy as np
from numpy.typing import NDArray

from predictors.run_times.survival import BATCH
from sia.model import Job

Row = NDArray[np.float32]

LATEST = 20
"""Number of run times stored for each kind: enough for a 10th percentile, few enough to follow
changes."""

FEW = 5
"""Number of the newest run times, whose median is a feature."""

MOST_KINDS = 2**13
"""Largest number of stored kinds, those used last. With 20 run times each they take 10 MB."""

OWN, OF_A_KIND, KINDS = 6, 11, 7

NUMBERS = OWN + OF_A_KIND * KINDS
"""Number of features of a job."""

HOUR, DAY = 3600.0, 86400.0

_Key = tuple[str | int | float | None, ...]


class Kind:
    """Jobs with something in common."""

    __slots__ = ("count", "ended", "latest", "running", "submitted")

    def __init__(self) -> None:
        """Start without jobs."""
        self.latest: deque[float] = deque(maxlen=LATEST)  # logarithms of run times
        self.running: dict[str, float] = {}  # starts in seconds, in their order
        self.submitted = self.ended = -inf  # the latest time of each
        self.count = 0

    def numbers(self, now: float) -> list[float]:
        """Return `OF_A_KIND` numbers; unknown ones are nan. O(`LATEST`)."""
        latest, running = self.latest, self.running
        if latest:
            rising = sorted(latest)
            n = len(rising)
            few = sorted(list(latest)[-FEW:])
            tenth, half, most = rising[n // 10], rising[n // 2], rising[9 * n // 10]
            row = [latest[-1], few[len(few) // 2], tenth, half, most, n]
        else:
            row = [nan, nan, nan, nan, nan, 0.0]
        if running:
            oldest = now - next(iter(running.values()))
            newest = now - next(reversed(running.values()))
            row += [len(running), log(max(oldest, 0.0) + 1.0), log(max(newest, 0.0) + 1.0)]
        else:
            row += [0.0, nan, nan]
        for time in (self.submitted, self.ended):
            row.append(nan if time == -inf else log(max(now - time, 0.0) + 1.0))
        return row


class KnownJob:
    """A job that has not ended, with its kinds; a kind is None if the job lacks its attributes."""

    __slots__ = ("batch", "job", "kinds")

    def __init__(self, job: Job, kinds: list[Kind | None], batch: Kind) -> None:
        """Take the kinds, of which the batch is the last."""
        self.job, self.kinds, self.batch = job, kinds, batch


class KnownJobs:
    """Kinds of jobs, and the jobs that have not ended."""

    def __init__(self) -> None:
        """Start without jobs."""
        self.alive: dict[str, KnownJob] = {}
        self._kinds: OrderedDict[_Key, Kind] = OrderedDict()
        self._batches: OrderedDict[_Key, Kind] = OrderedDict()

    def submitted(self, job: Job) -> KnownJob:
        """Add a job. Call `row` before `counted`, so that its row does not include itself."""
        kinds = [None if key is None else self._kind(key) for key in _keys(job)]
        batch = self._batch(job)
        known = self.alive[job.id] = KnownJob(job, [*kinds, batch], batch)
        return known

    def like(self, job: Job) -> KnownJob:
        """Return a job that is not submitted, with the kinds that it would have; add nothing."""
        kinds = [None if key is None else self._kinds.get(key) or Kind() for key in _keys(job)]
        batch = self._batches.get(_batch_of(job))
        if batch is None or job.submit > batch.submitted + BATCH:
            batch = Kind()
        return KnownJob(job, [*kinds, batch], batch)

    def counted(self, known: KnownJob) -> None:
        """Record the submission of a job with its kinds."""
        for kind in known.kinds:
            if kind is not None:
                kind.submitted = known.job.submit
                kind.count += 1

    def row(self, known: KnownJob, now: float) -> list[float]:
        """Return the features of a job at this time: `NUMBERS` numbers."""
        job = known.job
        stated = nan if not job.estimate else log(max(job.estimate, 1.0))
        hour, day = now // HOUR % 24.0, now // DAY % 7.0
        row = [log(job.width), job.priority or 0.0, stated, hour, day, float(known.batch.count)]
        for kind in known.kinds:
            row += [nan] * OF_A_KIND if kind is None else kind.numbers(now)
        return row

    def started(self, now: float, known: KnownJob) -> None:
        """Record a start."""
        for kind in known.kinds:
            if kind is not None:
                kind.running[known.job.id] = now

    def gone(self, known: KnownJob) -> None:
        """Remove a job, whether it ran or not."""
        del self.alive[known.job.id]
        for kind in known.kinds:
            if kind is not None:
                kind.running.pop(known.job.id, None)

    def ended(self, now: float, known: KnownJob, run_time: float) -> None:
        """Remove a job that has ended, with its run time in seconds."""
        self.gone(known)
        took = log(max(run_time, 1.0))
        for kind in known.kinds:
            if kind is not None:
                kind.latest.append(took)
                kind.ended = now

    def _kind(self, key: _Key) -> Kind:
        kind = self._kinds.get(key)
        if kind is not None:
            self._kinds.move_to_end(key)
            return kind
        if len(self._kinds) >= MOST_KINDS:
            self._kinds.popitem(last=False)
        kind = self._kinds[key] = Kind()
        return kind

    def _batch(self, job: Job) -> Kind:
        key = _batch_of(job)
        batch = self._batches.get(key)
        if batch is not None and job.submit <= batch.submitted + BATCH:
            self._batches.move_to_end(key)
            return batch
        if batch is None and len(self._batches) >= MOST_KINDS:
            self._batches.popitem(last=False)
        batch = self._batches[key] = Kind()
        return batch


def _size(job: Job) -> int:
    return (job.width - 1).bit_length()


def _batch_of(job: Job) -> _Key:
    return job.pool, _size(job), job.user


def _keys(job: Job) -> list[_Key | None]:
    """Return the key of each kind except the batch; None if the job lacks its attributes."""
    user, own = job.user, ("own", job.user, job.pool, job.width, job.estimate)
    return [
        ("all",),
        ("pool", job.pool),
        ("width", job.pool, _size(job)),
        ("user", user) if user else None,
        own if user else None,
        ("name", user, job.name) if job.name else None,
    ]
