"""`sia demo`: a simulated cloud goes through a week, an hour a second."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import click

from daemon.backends.simulated.config import SimulatedConfig
from daemon.config.config import Address, Config, PoolConfig
from daemon.journal.journal import Journal, JournalEntry
from daemon.journal.recovery import recover
from daemon.model.access import public_notice
from daemon.model.book import Book, JobRecord
from daemon.model.inputs import Submit, Tick
from daemon.model.job import JobPhase, JobSpec
from daemon.process.build import Daemon, setup_of
from daemon.process.serve import serving, stop_on_signals, until
from daemon.runtime.clock import Clock
from replay.logs.trace import PoolTable, Trace
from replay.run.starts import starts_of
from replay.synthetic.cloud import make_cloud
from replay.synthetic.cloud_parameters import Cloud
from sia.console.tables import show_table
from sia.core.playout import Arrival
from sia.model import Job, Stream
from sia.wording import DAY, HOUR, MINUTE, NONE, duration

SPEED = HOUR
"""Speed of the simulated clock: one hour a second."""

POOLS = 6
"""Pools of the cloud: few enough to follow, enough to lend to each other."""

BEFORE = 14
"""Days of history: as far as forecasts look back."""

DAYS = 7
"""Days of new jobs; then none arrive, so that a forgotten demo does not grow."""

MORNING = 8
"""Hour of Monday at which the demo starts; earlier there are few jobs."""

WINDOWS = tuple(hours * HOUR for hours in (1 / 12, 1 / 4, 1 / 2, 1, 2, 4, 12))
"""Seconds."""

LATER = """\
Later: forecasts come from history, and are wrong now and then. A pool that lent GPUs which it soon
needed waits until the borrower ends."""

APART = MINUTE
"""Seconds between two starts that count as two: a step takes the demo's clock some seconds."""


class DemoWeek(NamedTuple):
    """The demo's week of jobs; `begin` is the daemon's time at midnight of its Monday."""

    trace: Trace
    table: PoolTable
    begin: float


async def show(span: float | None, seed: int) -> None:
    """Run the cloud until interrupted, or for `span` seconds, and print what happens."""
    whole, table = make_cloud(Cloud(pools=POOLS, days=BEFORE + DAYS), seed)
    trace = _week(whole)
    stop = stop_on_signals()
    with TemporaryDirectory(prefix="sia-demo-") as folder:
        config = _config(Path(folder), table)
        _remember(config, whole, table)
        async with serving(config) as (daemon, address):
            _introduce(trace, table, config, address)
            lived = DemoWeek(trace, table, daemon.clock.now() - MORNING * HOUR)
            if span is not None:
                asyncio.get_running_loop().call_later(span, stop.set)
            tasks = [asyncio.create_task(task(daemon, lived)) for task in (_feed, _tell)]
            await until(daemon, stop)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            _show_gain(daemon.service.book, lived)


def _config(folder: Path, table: PoolTable) -> Config:
    return Config(
        database=folder / "sia.db",
        token_file=folder / "token",
        models=folder / "models",
        listen=Address("127.0.0.1", 0),
        windows=WINDOWS,
        backend=SimulatedConfig(SPEED),
        drift="off",  # it begins without a past
        pools=tuple(PoolConfig(pool.name, pool.quota) for pool in table.pools),
    )


def _week(whole: Trace) -> Trace:
    """Return the jobs from the first morning on, in seconds from its midnight."""
    midnight = BEFORE * DAY
    return Trace(
        [
            Arrival(job.submitted_at(job.submit - midnight), lasts)
            for job, lasts in whole.arrivals
            if job.submit >= midnight + MORNING * HOUR
        ]
    )


def _remember(config: Config, whole: Trace, table: PoolTable) -> None:
    """Write a journal of the days before, in which pools did not share."""
    clock = Clock()
    known = BEFORE * DAY + MORNING * HOUR
    anchor, begin = clock.anchor(), clock.now() - known
    past = [
        _ended(begin, arrival, start)
        for arrival, start in zip(whole.arrivals, starts_of(whole, table), strict=True)
        if start is not None and start + arrival.duration < known
    ]
    past.sort(key=lambda record: record.ended or 0.0)
    assert isinstance(config.database, Path), "the demo uses a file"
    with closing(Journal(config.database)) as journal:
        recover(journal, setup_of(config, None, {}))
        journal.commit(JournalEntry(1, anchor, [Tick()], (), over=past))


def _ended(begin: float, arrival: Arrival, start: float) -> JobRecord:
    lasts = arrival.duration
    return JobRecord(
        _spec(arrival.job, lasts),
        begin + arrival.job.submit,
        lasts,
        JobPhase.FINISHED,
        attempt=1,
        placed=True,
        decided=begin + start,
        started=begin + start,
        ended=begin + start + lasts,
        stream=Stream.DEDICATED,
    )


def _introduce(trace: Trace, table: PoolTable, config: Config, address: Address) -> None:
    pools = ", ".join(f"{pool.name} with {pool.quota} GPUs" for pool in table.pools)
    click.echo(
        f"A simulated cloud: {pools}.\n"
        f"{len(trace.arrivals):,} jobs arrive in a week; one hour takes a second. "
        f"SIA knows the {BEFORE} days before, in which no pool shared.\n"
        "\nTo look at it from another terminal:\n"
        f"  export SIA_URL={address.url} SIA_TOKEN_FILE={config.token_file}\n"
        "  sia pools; sia jobs; sia loans; sia events --follow\n"
        f"  or open {address.url}/ in a browser, with the token in that file\n"
        '  curl -H "Authorization: Bearer $(cat $SIA_TOKEN_FILE)" $SIA_URL/v1/plan\n'
    )


async def _feed(daemon: Daemon, lived: DemoWeek) -> None:
    """Submit each job at its time."""
    due: list[Submit] = []
    for job, lasts in lived.trace.arrivals:
        time = lived.begin + job.submit
        if time > daemon.clock.now() and due:
            await daemon.service.submit(due)
            due = []
        while time > daemon.clock.now():
            await daemon.clock.sleep_until(time)
        due.append(Submit(_spec(job, lasts), actor="demo"))
    await daemon.service.submit(due)


def _spec(job: Job, lasts: float) -> JobSpec:
    return JobSpec(job.id, job.pool, job.width, user=job.user, name=job.name, duration=lasts)


async def _tell(daemon: Daemon, lived: DemoWeek) -> None:
    """Print a line every simulated hour and a table every simulated day."""
    total = sum(pool.quota for pool in lived.table.pools)
    click.echo("  time         started  ended  running  pending  GPUs in use  lent  newest loan")
    hour = MORNING + 1
    seen = daemon.service.last_notice
    while True:
        await daemon.clock.sleep_until(lived.begin + hour * HOUR)
        if daemon.clock.now() < lived.begin + hour * HOUR:
            continue
        kinds, loan, seen = await _news(daemon, seen)
        state = daemon.service.engine.core.state
        used = sum(pool.dedicated + pool.spare for pool in state.pools.values())
        lent = sum(gpus for _, _, gpus in _lent(daemon.service.book))
        day, clock = divmod(hour, 24)
        running = len(state.jobs) - state.waiting
        click.echo(
            f"  day {day + 1}, {clock:02}:00 {kinds['started']:8} {kinds['ended']:6} {running:8} "
            f"{state.waiting:8}  {used:4} of {total:3}  {lent:4}  {loan}".rstrip()
        )
        if not clock:
            _show_gain(daemon.service.book, lived)
        hour += 1


async def _news(daemon: Daemon, seen: int) -> tuple[Counter[str], str, int]:
    """Return counts of notices by kind, the newest loan in words, and the last sequence number."""
    kinds: Counter[str] = Counter()
    loan = ""
    newest = daemon.service.last_notice
    if newest > seen:
        async for notice in daemon.service.notices(seen):
            public = public_notice(notice)
            if public is not None:
                kinds[public.kind] += 1
                if public.kind == "loan_opened":
                    loan = f"{public.pool} lends {public.data['gpus']} to {public.job}"
            if notice.seq >= newest:
                break
    return kinds, loan, newest


def _lent(book: Book) -> Iterator[tuple[str, str, int]]:
    """Yield (borrower, lender, GPUs) of each open loan."""
    for record in book.loans():
        for donor, gpus in record.loans:
            if donor != record.spec.pool:
                yield record.spec.pool, donor, gpus


def _show_gain(book: Book, lived: DemoWeek) -> None:
    """Print each pool's mean waits with sharing and alone (first come, first served).

    Covers jobs that have ended. Alone, each is given the time that it held its GPUs here, from
    the decision to start it, so that the commit time on the demo's fast clock is in both.
    """
    order = {arrival.job.id: i for i, arrival in enumerate(lived.trace.arrivals)}
    records = sorted(
        [*book.ended.values(), *book.jobs.values()],
        key=lambda record: (record.submitted, order.get(record.spec.id, -1)),
    )
    if not records:
        return
    arrivals = [_arrival(record, lived.begin) for record in records]
    alone = starts_of(Trace(arrivals), lived.table)
    rows = []
    for pool in lived.table.pools:
        waits = [
            (record.decided - record.submitted, lived.begin + start - record.submitted)
            for record, start in zip(records, alone, strict=True)
            if record.spec.pool == pool.name and record.phase is JobPhase.FINISHED
            if start is not None and record.decided is not None
        ]
        rows.append([pool.name, f"{pool.quota}", *_waits(waits)])
    header = ["pool", "GPUs", "jobs ended", "waited", "alone", "sooner", "later"]
    apart = duration(APART)
    title = f"Mean waits with sharing and alone; jobs that started {apart} sooner and later"
    show_table(title, header, rows)
    if any(row[-1] not in ("0", NONE) for row in rows):
        click.echo(f"\n{LATER}")
    click.echo()


def _arrival(record: JobRecord, begin: float) -> Arrival:
    spec = record.spec
    lasted = spec.duration or 1.0
    if record.ended is not None and record.decided is not None:
        lasted = max(1.0, record.ended - record.decided)
    return Arrival(Job(spec.id, spec.pool, record.submitted - begin, spec.gpus), lasted)


def _waits(waits: list[tuple[float, float]]) -> list[str]:
    """Return the row of a pool: jobs, mean waits here and alone, jobs sooner and later."""
    if not waits:
        return ["0", *4 * [NONE]]
    sooner = sum(alone - here > APART for here, alone in waits)
    later = sum(here - alone > APART for here, alone in waits)
    means = (duration(sum(column) / len(waits)) for column in zip(*waits, strict=True))
    return [f"{len(waits):,}", *means, f"{sooner:,}", f"{later:,}"]
