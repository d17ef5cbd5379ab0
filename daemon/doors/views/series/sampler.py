"""Sample the use of GPUs, and add the samples and the verdicts on jobs to sums in the journal."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from msgspec.structs import replace

from daemon.doors.views.resources import pool_views
from daemon.doors.views.series import table
from daemon.doors.views.series.sums import GAUGES, Gain, Key, Sums
from daemon.doors.views.series.table import STEPS, USERS, Judged, Rows, period
from daemon.model.book import JobRecord
from daemon.model.errors import JournalError, UnavailableError
from daemon.model.job import ON_GPUS, JobPhase
from sia.limits import MAX_GROUP
from sia.wording import DAY, HOUR

if TYPE_CHECKING:
    from daemon.engine.engine import Engine
    from daemon.forecasts.load_errors import EndedWindow
    from daemon.journal.journal import Journal
    from daemon.service.service import Service

EVERY = 30.0
"""Seconds of the daemon's clock between two samples."""

LEAST = 0.25
"""Minimum real seconds between two samples when the daemon's clock runs faster than real time. A
sample takes milliseconds."""

JOBS_AT_ONCE = 2000
"""Number of jobs counted before control returns to the event loop: about a millisecond."""

INSTANT = 0.001
"""A range that includes the newest verdict ends this many seconds after it. This is the smallest
step of a time in the address of a page."""

CACHED = 32
"""Number of results kept until the next sample. Each reader's page is read again after each
event."""

T = TypeVar("T")

NOTHING = Sums()

Buckets = list[tuple[int, Sums]]
"""Sums with the begin of their period (epoch seconds), in order."""


class _Asked(NamedTuple):
    """Which rows to read, and how to add them up: see `UsageHistory.periods`."""

    key: Key
    step: int
    width: int
    start: int
    end: int = table.LAST
    pools: frozenset[str] | None = None


class Periods(NamedTuple):
    """Sums of periods of `step` seconds, from `since` until before `until` (epoch seconds)."""

    step: int
    since: float
    until: float
    sums: Buckets


class UsageHistory:
    """Take samples, and read the time series made from them.

    Attributes:
        newest: Time up to which the series have all samples and verdicts; None before the first
            sample since the start.
    """

    def __init__(self, service: Service) -> None:
        """Store samples of a service in its journal."""
        self._service = service
        self.newest: float | None = None
        self._cursor = -1
        self._made: dict[int, int] = {}
        self._one = asyncio.Lock()
        self._ended: list[EndedWindow] = []
        self._cache: OrderedDict[_Asked, Buckets] = OrderedDict()

    @property
    def window(self) -> float:
        """Length in seconds of the windows whose load forecasts are compared with the load.

        The forecast window nearest to an hour: such forecasts matter for lending, and many of them
        end each day.
        """
        windows = self._service.engine.core.state.options.windows
        return min(windows, key=lambda window: abs(window - HOUR), default=0.0)

    def window_ended(self, ended: EndedWindow) -> None:
        """Take note of a window of load forecasts that has ended. O(1)."""
        if ended.length == self.window:
            self._ended.append(ended)

    async def run(self) -> None:
        """Take a sample every `EVERY` seconds until cancelled."""
        clock = self._service.clock
        while True:
            due = clock.now() + EVERY
            await self.look()
            await asyncio.sleep(max(LEAST, clock.seconds_until(due)))

    async def look(self) -> None:
        """Take a sample; skip it if the state is not durable, or cannot be stored."""
        async with self._one:
            with suppress(UnavailableError, JournalError):
                await self._look()

    async def _look(self) -> None:
        service = self._service
        if self._cursor < 0:
            self._cursor, self._made = await service.journal(table.marks)
        await service.settled()
        service.engine.settle_accounts()
        now, gathered = service.clock.now(), Gathered(self._made)
        gathered.sample_pools(service.engine, now)
        ended, self._ended = self._ended, []
        for some in parted([*service.book.jobs.values()], JOBS_AT_ONCE):
            gathered.sample_users(some, now)
            await asyncio.sleep(0)
        for window in ended:
            gathered.compare(window)
        cursor, judged = await self._judge(gathered)
        await service.journal(partial(table.add, rows=gathered.rows, cursor=cursor))
        self._cursor, self.newest = cursor, max(now, judged) + INSTANT
        self._cache.clear()
        for step in STEPS[1:]:
            await self._make(step, now)
        await service.journal(partial(table.prune, now=now))

    async def _judge(self, gathered: Gathered) -> tuple[int, float]:
        """Add the verdicts that no row has yet.

        Return the number of the last verdict, and the time at which it was booked.
        """
        last, time = self._cursor, 0.0
        while found := await self._service.journal(partial(table.verdicts_after, number=last)):
            gathered.judge(found)
            last, time = found[-1].number, found[-1].time
            if len(found) < table.AT_ONCE:
                break
        return last, time

    async def _make(self, step: int, now: float) -> None:
        """Make the rows of longer periods that have ended, one period at a time."""
        service = self._service
        todo = partial(table.periods_to_make, step=step, made=self._made[step], now=now)
        for begin in await service.journal(todo):
            parts = await service.journal(partial(table.parts_of, step=step, begin=begin))
            rows = await asyncio.to_thread(table.merged, parts)
            for some in parted(rows, table.AT_ONCE):
                await service.journal(partial(table.make, step=step, begin=begin, rows=some))
        until = period(step, now)
        if until > self._made[step]:
            await service.journal(partial(table.made_until, step=step, time=until))
            self._made[step] = until

    async def periods(
        self,
        key: Key,
        start: float,
        end: float | None,
        points: int,
        pools: frozenset[str] | None = None,
    ) -> Periods:
        """Return sums from `start` until before `end`; without `end`, of all samples since `start`.

        There are at most `points` periods of equal length; periods without samples are omitted.
        With an `end`, the first period contains `start`; without one, it is the first period that
        begins after `start`. `pools` limits which jobs of a user count; None means all. The caller
        must not change the sums.
        """
        now = self._service.clock.now()
        oldest = now - table.KEPT[STEPS[-1]]
        if end is None or end > oldest:  # otherwise no row of the range is kept
            start = max(start, oldest)
        step = step_of(now - start, key)
        span = max(0.0, (now if end is None else end) - start)
        parts = points if end is None else points - 1  # one period more at either end
        width = step * max(1, -(-int(span) // (step * parts)), self._samples_apart(step))
        if end is None:
            since, until = period(width, start) + width, table.LAST
        else:
            since, until = period(width, start), -period(width, -end)
        found = await self._buckets(_Asked(key, step, width, since, until, pools))
        if key.user:  # users without jobs have no rows; the cluster's count the samples
            looks = await self._buckets(_Asked(Key(), step, width, since, until))
            own = dict(found)
            found = [(at, replace(own.get(at, NOTHING), looks=sums.looks)) for at, sums in looks]
        last = self.newest if self.newest is not None else now
        return Periods(width, float(since), last if end is None else float(until), found)

    def _samples_apart(self, step: int) -> int:
        """Return the number of periods between two samples if the daemon's clock is fast, or 1."""
        clock, count = self._service.clock, 1
        apart = LEAST / max(clock.seconds_until(clock.now() + 1.0), LEAST / DAY)
        while step * count < apart:
            count *= 2
        return count

    async def _buckets(self, asked: _Asked) -> Buckets:
        if asked not in self._cache:
            key, step, width, start, end, pools = asked
            read = partial(table.read, key=key, step=step, start=start, end=end)
            rows = await self._service.journal(read)
            seen = [row for row in rows if pools is None or row.pool in pools]
            self._cache[asked] = await asyncio.to_thread(table.buckets, seen, width)
            while len(self._cache) > CACHED:
                self._cache.popitem(last=False)
        return self._cache[asked]


def step_of(span: float, key: Key) -> int:
    """Return the shortest period, in seconds, whose rows are kept for at least `span` seconds."""
    first = USERS if key.user else STEPS[0]
    kept = (step for step in STEPS if step >= first and table.KEPT[step] > span)
    return next(kept, STEPS[-1])


class Gathered:
    """Samples and verdicts that are not stored yet.

    Attributes:
        rows: Their sums, by period.
    """

    def __init__(self, made: Mapping[int, int] | None = None) -> None:
        """Start empty. `made` has the time up to which the rows of each longer period exist."""
        self.rows: Rows = {}
        self._made = made or {}
        self._sampled = float("nan")
        self._of_user: dict[tuple[str, str], list[float]] = {}  # gauges in the newest sample

    def _at(self, step: int, time: float, key: Key) -> Sums:
        """Return the sums of a period.

        A late value counts in the first period that is not made yet.
        """
        longer = self._made.get(STEPS[STEPS.index(step) + 1], 0)
        return self.rows.setdefault((step, max(period(step, time), longer), key), Sums())

    def sample_pools(self, engine: Engine, now: float) -> None:
        """Add a sample of all pools, and of the cluster. O(pools + loans)."""
        whole = Sums(looks=1)
        found = {Key(): whole}
        for pool in pool_views(engine, now):
            gauges = [float(getattr(pool, name)) for name in GAUGES]
            found[Key(pool.name)] = Sums(looks=1, gauges=gauges)
            whole.gauges = [a + b for a, b in zip(whole.gauges, gauges, strict=True)]
        for loans in engine.book.lent.values():
            for lender, loan in loans.items():
                for key in (Key(), Key(loan.borrower)):
                    if key in found:
                        _more(found[key].lenders, lender, loan.gpus)
                for key in (Key(), Key(lender)):
                    if key in found:
                        _more(found[key].borrowers, loan.borrower, loan.gpus)
        for key, sums in found.items():
            self._at(STEPS[0], now, key).add(sums)

    def sample_users(self, jobs: Iterable[JobRecord], now: float) -> None:
        """Add these jobs to the sample of their users. O(jobs)."""
        if now != self._sampled:
            self._sampled, self._of_user = now, {}
        found = self._of_user
        for record in jobs:
            spec = record.spec
            if not spec.user:
                continue
            gauges = found.get((spec.pool, spec.user))
            if gauges is None:
                gauges = self._at(USERS, now, Key(spec.pool, spec.user)).gauges
                found[spec.pool, spec.user] = gauges
            if record.phase is JobPhase.PENDING:
                gauges[JOBS] += 1
                gauges[GPUS] += record.gpus
            elif record.phase in ON_GPUS:
                borrowed = sum(gpus for lender, gpus in record.loans if lender != spec.pool)
                gauges[BORROWED] += borrowed
                gauges[DEDICATED] += record.gpus - borrowed

    def compare(self, window: EndedWindow) -> None:
        """Add the load forecasts of a window that has ended, and the load. O(pools)."""
        if max(window.foreseen, default=MAX_GROUP) >= MAX_GROUP:
            return  # the daemon's assumption without a forecast
        whole = self._at(STEPS[0], window.end, Key())
        for pool, foreseen, came in zip(window.pools, window.foreseen, window.peak, strict=True):
            own = Sums(windows=1, foreseen=foreseen, came=came)
            self._at(STEPS[0], window.end, Key(pool)).add(own)
            whole.add(own)
        whole.windows += 1 - len(window.pools)

    def judge(self, rows: Iterable[Judged]) -> None:
        """Add verdicts. O(rows)."""
        for row in rows:
            pool = row.verdict.pool
            own = Sums()
            own.judge(row.verdict)
            if row.user:
                self._at(USERS, row.time, Key(pool, row.user)).add(own)
            self._at(STEPS[0], row.time, Key(pool)).add(own)
            whole = self._at(STEPS[0], row.time, Key())
            whole.add(own)
            whole.gains.setdefault(pool, Gain()).add(own.gain)


def store(journal: Journal, gathered: Gathered, now: float) -> None:
    """Store what was gathered in a journal that no daemon uses, with all its verdicts."""
    cursor = 0
    while found := table.verdicts_after(journal, cursor):
        gathered.judge(found)
        cursor = found[-1].number
    table.add(journal, gathered.rows, cursor)
    for step in STEPS[1:]:
        for begin in table.periods_to_make(journal, step, 0, now):
            table.make(journal, step, begin, table.merged(table.parts_of(journal, step, begin)))
        table.made_until(journal, step, period(step, now))


def _more(sums: dict[str, float], name: str, value: float) -> None:
    sums[name] = sums.get(name, 0.0) + value


DEDICATED, BORROWED, JOBS, GPUS = (
    GAUGES.index(name) for name in ("dedicated", "borrowed", "waiting", "waiting_gpus")
)


def parted(values: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """Yield the values in parts of this size."""
    return (values[start : start + size] for start in range(0, len(values), size))
