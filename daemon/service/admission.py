"""Admission control: limits on submissions a second and on pending jobs, by pool and by token.

A refused submission may be sent again later. A resubmission of a known job passes.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from daemon.config.access import LimitsConfig, RateLimit
from daemon.model.job import JobPhase
from daemon.model.limits import MAX_TOKENS
from daemon.model.outputs import Refused
from daemon.runtime.rate_limit import TokenBucket

if TYPE_CHECKING:
    from daemon.model.book import Book, JobRecord

WAITS = (JobPhase.HELD, JobPhase.PENDING)

COUNT_EVERY = 1.0
"""Minimum seconds between two counts of all pending jobs. With 150,000 jobs a count takes some ten
milliseconds."""

COUNT_ANYWAY = 10.0
"""Seconds after which pending jobs are counted again even if no limit is reached, because jobs may
be requeued, or submitted in the backend."""

ADMITTED_FOR = 5.0
"""Seconds after which an admitted job that is not in the book counts as refused by the engine."""

MOST_ADMITTED = 20_000
"""Number of jobs admitted since the last count above which the jobs are counted again."""

AGAIN = 5.0
"""Seconds after which a client should retry if too many jobs are pending. It is unknown when a job
will start."""

LimitKey = tuple[str, str]
"""Kind (`pool` or `token`) and name of the owner of a limit."""

LookupEvicted = Callable[[Sequence[str]], Awaitable[Mapping[str, "JobRecord"]]]
"""Returns the ended jobs among these ids, from the journal."""


class JobCount(NamedTuple):
    """A job or array, its pool and its number of jobs."""

    id: str
    pool: str
    jobs: int


class _Admitted(NamedTuple):
    """Admitted jobs that are not in the book yet."""

    since: float
    keys: tuple[LimitKey, ...]
    jobs: int


class Admission:
    """Decides whether jobs may be submitted now."""

    def __init__(
        self,
        limits: LimitsConfig,
        pools: Mapping[str, RateLimit],
        book: Callable[[], Book],
        past: LookupEvicted,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Use these limits; `pools` has limits of single pools."""
        self._limits, self._pools = limits, pools
        self._book, self._past, self._clock = book, past, clock
        self._buckets: dict[LimitKey, TokenBucket] = {}
        self._counts: Counter[LimitKey] = Counter()  # upper bounds of the pending jobs
        self._admitted: dict[str, _Admitted] = {}
        self._counted = float("-inf")
        self._number = 0
        self._open = {limits.pool, limits.token, *pools.values()} == {RateLimit()}

    async def refusals(self, who: str, asks: Sequence[JobCount]) -> list[Refused | None]:
        """Return, for each submission, why it is refused now; None if it is admitted.

        Raises JournalError if the journal cannot be asked whether a job is known.
        """
        if self._open:
            return [None] * len(asks)
        found = [
            None
            if self._book().knows(each.id)
            else self.refusal(each.pool, each.jobs, who, each.id)
            for each in asks
        ]
        refused = [each.id for each, why in zip(asks, found, strict=True) if why is not None]
        if refused:
            past = await self._past([*refused, *(f"{job_id}.0" for job_id in refused)])
            for i, each in enumerate(asks):
                if each.id in past or f"{each.id}.0" in past:
                    found[i] = None
        return found

    def refusal(self, pool: str, jobs: int, who: str = "", job_id: str = "") -> Refused | None:
        """Return why these new jobs are refused now; None if they are admitted, which counts them.

        `refusals` handles known jobs. O(1), and once a second O(jobs in memory).
        """
        if self._open or pool not in self._book().pools:
            return None  # the engine refuses a pool that does not exist
        limits = dict(self._limits_of(pool, who))
        for key, limit in limits.items():
            if limit.max_waiting is None:
                continue
            if jobs > limit.max_waiting:
                return _wide(key, limit.max_waiting, jobs)
            if not self._room(key, limit.max_waiting, jobs):
                return _full(key, limit.max_waiting)
        waits = {key: self._bucket(key, lim).wait(jobs) for key, lim in limits.items() if lim.rate}
        late = max(waits, key=lambda key: waits[key], default=None)
        if late is not None and waits[late]:
            return _fast(late, limits[late], waits[late])
        for key in waits:
            self._buckets[key].take(jobs)
        self._admit(tuple(k for k, lim in limits.items() if lim.max_waiting), jobs, job_id)
        return None

    def _limits_of(self, pool: str, who: str) -> Iterator[tuple[LimitKey, RateLimit]]:
        yield ("pool", pool), self._pools.get(pool, self._limits.pool)
        if who:
            yield ("token", who), self._limits.token

    def _bucket(self, key: LimitKey, limit: RateLimit) -> TokenBucket:
        bucket = self._buckets.get(key)
        if bucket is None:
            assert limit.rate is not None, "only a rate needs a bucket"
            if len(self._buckets) > 2 * MAX_TOKENS:
                self._buckets.clear()  # many are those of revoked tokens: start all again
            bucket = self._buckets[key] = TokenBucket(limit.rate, limit.at_once, self._clock)
        return bucket

    def _room(self, key: LimitKey, most: int, jobs: int) -> bool:
        stale = self._clock() - self._counted > COUNT_ANYWAY
        if stale or self._counts[key] + jobs > most:
            self._count()
        return self._counts[key] + jobs <= most

    def _admit(self, keys: tuple[LimitKey, ...], jobs: int, job_id: str) -> None:
        if not keys:
            return
        for key in keys:
            self._counts[key] += jobs
        self._number += 1
        self._admitted[job_id or f" {self._number}"] = _Admitted(self._clock(), keys, jobs)
        if len(self._admitted) > MOST_ADMITTED:
            self._count()

    def _count(self) -> None:
        """Count pending and admitted jobs, at most once a second."""
        now = self._clock()
        if now - self._counted < COUNT_EVERY:
            return
        self._counted = now
        counts: Counter[LimitKey] = Counter()
        for record in self._book().jobs.values():
            if record.phase in WAITS:
                counts["pool", record.spec.pool] += 1
                counts["token", record.by] += 1
        self._admitted = {
            job_id: way
            for job_id, way in self._admitted.items()
            if way.since > now - ADMITTED_FOR and not self._book().knows(job_id)
        }
        for way in self._admitted.values():
            for key in way.keys:
                counts[key] += way.jobs
        self._counts = counts


def _full(key: LimitKey, most: int) -> Refused:
    what, name = key
    why = f"{what} {name} may have {most:,} pending jobs"
    return Refused(429, "too many pending jobs", why, "retry when some have started", AGAIN)


def _wide(key: LimitKey, most: int, jobs: int) -> Refused:
    what, name = key
    why = f"the array has {jobs:,} jobs, and {what} {name} may have {most:,} pending jobs"
    return Refused(422, "invalid", why, "submit it as several arrays")


def _fast(key: LimitKey, limit: RateLimit, wait: float) -> Refused:
    what, name = key
    why = f"{what} {name} submits more than {limit.rate:g} jobs a second"
    if what == "pool":
        why = f"pool {name} gets more than {limit.rate:g} jobs a second"
    return Refused(429, "too many jobs", why, f"retry in {wait:.1f} s", wait)
