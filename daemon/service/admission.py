"""How many jobs are taken: so many a second, and so many that wait, of each pool and each token.

What is refused is to be sent again later. A job that is known already is no new one, and passes.
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
"""Seconds between two counts of all jobs that wait: with 150,000 it takes some ten milliseconds."""

COUNT_ANYWAY = 10.0
"""Seconds after which they are counted although there seems to be room: jobs wait again, or come
by other doors."""

ON_THEIR_WAY = 5.0
"""Seconds after which a job that was let in and is in no book will not be: it was refused."""

MOST_ON_THEIR_WAY = 20_000
"""Jobs that were let in since all were counted: more are worth another count."""

AGAIN = 5.0
"""Seconds after which to ask again where too many wait: nobody knows when one will start."""

LimitKey = tuple[str, str]
"""`pool` or `token`, and its name."""

LookupEvicted = Callable[[Sequence[str]], Awaitable[Mapping[str, "JobRecord"]]]
"""Which of these jobs have ended, however long ago."""


class JobCount(NamedTuple):
    """A job, or an array of so many."""

    id: str
    pool: str
    jobs: int


class _Way(NamedTuple):
    """Jobs that were let in: by whom, and when."""

    since: float
    keys: tuple[LimitKey, ...]
    jobs: int


class Admission:
    """Who asks here before jobs are submitted keeps to the limits."""

    def __init__(
        self,
        limits: LimitsConfig,
        pools: Mapping[str, RateLimit],
        book: Callable[[], Book],
        past: LookupEvicted,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """By these limits; `pools` have others than most."""
        self._limits, self._pools = limits, pools
        self._book, self._past, self._clock = book, past, clock
        self._buckets: dict[LimitKey, TokenBucket] = {}
        self._counts: Counter[LimitKey] = Counter()  # as many as wait, or more
        self._ways: dict[str, _Way] = {}
        self._counted = float("-inf")
        self._number = 0
        self._open = {limits.pool, limits.token, *pools.values()} == {RateLimit()}

    async def refusals(self, who: str, asks: Sequence[JobCount]) -> list[Refused | None]:
        """For each, in order, why it is not taken now; None where it may be submitted.

        Raises JournalError where it cannot be seen whether a job is known.
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
        """Why so many jobs are not taken now; None where they may be, and then they count.

        They are not known yet: see `refusals`. O(1), and once a second O(jobs alive).
        """
        if self._open or pool not in self._book().pools:
            return None  # the engine knows better why not
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
        self._let_in(tuple(k for k, lim in limits.items() if lim.max_waiting), jobs, job_id)
        return None

    def _limits_of(self, pool: str, who: str) -> Iterator[tuple[LimitKey, RateLimit]]:
        yield ("pool", pool), self._pools.get(pool, self._limits.pool)
        if who:
            yield ("token", who), self._limits.token

    def _bucket(self, key: LimitKey, limit: RateLimit) -> TokenBucket:
        bucket = self._buckets.get(key)
        if bucket is None:
            assert limit.rate is not None, "whoever has no rate needs no bucket"
            if len(self._buckets) > 2 * MAX_TOKENS:
                self._buckets.clear()  # tokens came and went: all begin anew
            bucket = self._buckets[key] = TokenBucket(limit.rate, limit.at_once, self._clock)
        return bucket

    def _room(self, key: LimitKey, most: int, jobs: int) -> bool:
        stale = self._clock() - self._counted > COUNT_ANYWAY
        if stale or self._counts[key] + jobs > most:
            self._count()
        return self._counts[key] + jobs <= most

    def _let_in(self, keys: tuple[LimitKey, ...], jobs: int, job_id: str) -> None:
        if not keys:
            return
        for key in keys:
            self._counts[key] += jobs
        self._number += 1
        self._ways[job_id or f" {self._number}"] = _Way(self._clock(), keys, jobs)
        if len(self._ways) > MOST_ON_THEIR_WAY:
            self._count()

    def _count(self) -> None:
        """Count what waits, and what is still on its way, unless that was done just now."""
        now = self._clock()
        if now - self._counted < COUNT_EVERY:
            return
        self._counted = now
        counts: Counter[LimitKey] = Counter()
        for record in self._book().jobs.values():
            if record.phase in WAITS:
                counts["pool", record.spec.pool] += 1
                counts["token", record.by] += 1
        self._ways = {
            job_id: way
            for job_id, way in self._ways.items()
            if way.since > now - ON_THEIR_WAY and not self._book().knows(job_id)
        }
        for way in self._ways.values():
            for key in way.keys:
                counts[key] += way.jobs
        self._counts = counts


def _full(key: LimitKey, most: int) -> Refused:
    what, name = key
    why = f"{what} {name} has {most:,} jobs that wait, or would have more"
    return Refused(429, "too many jobs wait", why, "send it again when some have started", AGAIN)


def _wide(key: LimitKey, most: int, jobs: int) -> Refused:
    what, name = key
    why = f"an array of {jobs:,} jobs, and {most:,} of {what} {name} may wait"
    return Refused(422, "cannot be", why, "submit it in parts")


def _fast(key: LimitKey, limit: RateLimit, wait: float) -> Refused:
    what, name = key
    why = f"more than {limit.rate:g} jobs a second come from {what} {name}"
    if what == "pool":
        why = f"more than {limit.rate:g} jobs a second come for pool {name}"
    return Refused(429, "too many jobs", why, f"send it again in {wait:.1f} s", wait)
