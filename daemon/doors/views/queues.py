"""Page through pending, running and held jobs pool by pool without visiting every job."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from operator import attrgetter
from typing import NamedTuple

from daemon.answers.explain.explain import waiting_in
from daemon.model.book import Book, JobRecord, job_of
from daemon.model.job import JobPhase
from sia.core.core import Core
from sia.core.guard import PolicyFailedError, ask
from sia.explain.glance import missing_quota
from sia.wording import counted


class QueuePosition(NamedTuple):
    """A job, and its position in its pool's queue (from 1) if it is in the queue."""

    record: JobRecord
    position: int | None = None


Passes = Callable[[JobRecord], bool]


class Waiting:
    """Pending jobs of some pools: first the started ones without GPUs, then the queue in order."""

    def __init__(self, book: Book, core: Core, pools: Iterable[str]) -> None:
        """Select pools, in the order to list them. O(started jobs without GPUs)."""
        self._book, self._core, self._pools = book, core, list(pools)
        self._turn: dict[str, list[JobRecord]] = {}
        for job_id in book.seatless:
            record = book.jobs[job_id]
            self._turn.setdefault(record.spec.pool, []).append(record)

    def piece(
        self, offset: int, limit: int, user: str | None = None
    ) -> tuple[int, Sequence[QueuePosition]]:
        """Return the number of pending jobs (of a user, or all) and one page of them.

        O(pools + jobs of the pools on the page); with a user O(live jobs).
        """
        counts = None if user is None else self._counts(user)
        found: list[QueuePosition] = []
        total = 0
        for pool in self._pools:
            count = self._count(pool) if counts is None else counts[pool]
            start = max(0, offset - total)
            total += count
            if start < count and len(found) < limit:
                places = [each for each in self._of(pool) if user in (None, each.record.spec.user)]
                found += places[start : start + limit - len(found)]
        return total, found

    def _counts(self, user: str) -> Counter[str]:
        """Count a user's pending jobs by pool."""
        specs = (r.spec for r in self._book.jobs.values() if r.spec.user == user and waits(r))
        return Counter(spec.pool for spec in specs)

    def _count(self, pool: str) -> int:
        queue = self._core.state.pools[pool].length
        return len(self._turn.get(pool, ())) + queue + len(self._book.pools[pool].waiting)

    def _of(self, pool: str) -> Iterator[QueuePosition]:
        """Yield a pool's jobs: started without GPUs, in the queue, outside because of a hold."""
        jobs = self._book.jobs
        yield from map(QueuePosition, self._turn.get(pool, ()))
        queued = self._core.policy.queued
        for position, job in enumerate(self._core.state.pools[pool].waiting(), 1):
            yield QueuePosition(jobs[job_of(job.job.id)], position if queued else None)
        for job_id in self._book.pools[pool].waiting:
            yield QueuePosition(jobs[job_id])


def waits(record: JobRecord) -> bool:
    """Return whether a job is pending, or was started and waits for its GPUs.

    A job that is being stopped is already in the core's queue.
    """
    stopping = record.phase is JobPhase.STOPPING and bool(record.core)
    return stopping or record.phase is JobPhase.PENDING or has_turn(record)


def has_turn(record: JobRecord) -> bool:
    """Return whether a job was started and waits only for its GPUs to become free."""
    return record.phase is JobPhase.STARTING and not record.placed


def held(record: JobRecord) -> bool:
    """Return whether a job is held until a release."""
    return record.phase is JobPhase.HELD


KINDS: Mapping[str, Passes] = {"held": held, "running": attrgetter("placed")}
"""Filters by kind. The filter `placed` selects exactly the running jobs (`check_book`) and is
fast."""


def alive(
    book: Book, pools: frozenset[str], what: str, user: str | None
) -> Sequence[QueuePosition]:
    """Return running or held jobs of some pools, of one user or all, by pool and submission.

    O(live jobs).
    """
    found: dict[str, list[QueuePosition]] = {pool: [] for pool in sorted(pools)}
    for record in filter(KINDS[what], book.jobs.values()):
        spec = record.spec
        if spec.pool in pools and user in (None, spec.user):
            found[spec.pool].append(QueuePosition(record))
    return [*chain.from_iterable(found.values())]


def shortly(core: Core, place: QueuePosition) -> str:
    """Return one line on why a job is pending, or "" for a running job.

    O(1), or O(leases of the job + trials) under a policy without queues.
    """
    record, position = place
    if record.phase is not JobPhase.PENDING:
        return _in_no_queue(record)
    job = waiting_in(core, record)
    if job is None:
        return f"pool {record.spec.pool} is on hold"
    if not core.policy.queued:
        awaited = None
        with suppress(PolicyFailedError):  # component `policy` reports it with the next decision
            awaited = ask(core.policy, "awaits", job)
        return f"waiting for {'idle GPUs' if awaited is None else awaited.what}"
    if position is not None and position > 1:
        return f"{counted(position - 1, 'job')} ahead of it"
    pool, short = job.pool, missing_quota(core.policy, job)
    left = f"{pool.name} has {max(0, pool.quota - pool.dedicated):,} of {pool.quota:,} free"
    starts = "first in its queue: waiting for idle GPUs"
    return f"waiting for {counted(short, 'more GPU')}: {left}" if short > 0 else starts


def _in_no_queue(record: JobRecord) -> str:
    """Return why a job that is not pending does not run; "" if it runs."""
    if held(record):
        return "held: release the job to queue it"
    if record.phase is JobPhase.STOPPING:
        return "saving its work: it starts again after it has stopped"
    return "started: waiting for its GPUs to become free" if has_turn(record) else ""
