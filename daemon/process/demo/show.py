"""Run the demo: a daemon at a speed of an hour per second, its users, and the printed lines."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

import click

from daemon.config.config import Address, Config
from daemon.model.access import public_notice
from daemon.model.book import Book
from daemon.model.errors import UnavailableError
from daemon.model.inputs import Submit
from daemon.model.limits import PROBE_EVERY
from daemon.model.outputs import Notice, Refused
from daemon.process.build import Daemon
from daemon.process.demo.diary import HEADER, Booking, Diary, newest
from daemon.process.demo.setting import (
    BEGIN,
    LEARNED,
    begin_journal,
    config_in,
    live_alone,
    spec_of,
)
from daemon.process.demo.virtual import VirtualDaemon
from daemon.process.serve import serving, stop_on_signals, until
from replay.synthetic.teams import TEAMS, Crowd
from sia.console.tables import show_table
from sia.core.playout import Arrival
from sia.wording import DAY, HOUR, counted

QUOTAS = [(team.profile.pool.name, team.profile.pool.quota) for team in TEAMS]

GPUS = sum(quota for _, quota in QUOTAS)

DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")

OVER = frozenset(("ended", "cancelled", "lost"))
"""Kinds of notices after which a user no longer waits for a job."""

AGAIN = HOUR
"""Seconds of simulated time after which a user whose job was refused continues."""

LONGEST = DAY
"""Maximum seconds of one sleep: while all users wait for jobs, no next event is known."""

LATER = """\
Slowed: forecasts come from history, and are wrong now and then. A pool that lent GPUs which it soon
needed waits until the borrower ends."""


async def show(span: float | None, seed: int) -> None:
    """Run the company until interrupted, or for `span` seconds, and print what happens."""
    stop = stop_on_signals()
    with TemporaryDirectory(prefix="sia-demo-") as folder:
        config, crowd = config_in(Path(folder)), Crowd(seed)
        origin = monday_before(datetime.now(UTC).astimezone())
        virtual = prepared(config, crowd, origin)
        virtual.play(origin + BEGIN)
        virtual.close()
        async with serving(config) as (daemon, address):
            live = LiveDemo(daemon, crowd, origin)
            _introduce(config, address)
            if span is not None:
                asyncio.get_running_loop().call_later(span, stop.set)
            seen = virtual.engine.book.notices
            tasks = [asyncio.create_task(each) for each in (live.live(seen), live.tell())]
            await until(daemon, stop)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await live.show_gain()


def prepared(config: Config, crowd: Crowd, origin: float) -> VirtualDaemon:
    """Return a daemon with a history of two weeks without sharing, which its crowd continues.

    Second 0 of the simulated time is `origin` on the daemon's clock.
    """
    begin_journal(config, live_alone(crowd, LEARNED), origin, origin + LEARNED)
    return VirtualDaemon(config, crowd, origin)


def monday_before(now: datetime) -> float:
    """Return a Monday's midnight; `BEGIN` seconds later it is the first Wednesday morning from now.

    The daemon's clock never goes back, so the demo takes place up to a week ahead.
    """
    begin = timedelta(seconds=BEGIN % DAY)
    morning = now.replace(hour=0, minute=0, second=0, microsecond=0) + begin
    wednesday = int(BEGIN // DAY) % 7
    morning += timedelta(days=(wednesday - morning.weekday()) % 7)
    if morning < now:
        morning += timedelta(days=7)
    return morning.timestamp() - BEGIN


class LiveDemo:
    """The users of the demo in the pace of the daemon's clock, and the lines printed about them."""

    def __init__(self, daemon: Daemon, crowd: Crowd, origin: float) -> None:
        """Continue with this crowd, whose second 0 is `origin` on the daemon's clock."""
        self._daemon, self._crowd, self._origin = daemon, crowd, origin
        self._news = asyncio.Event()
        self._diary, self._booked = Diary(), Booking()

    async def live(self, seen: int) -> None:
        """Simulate the users until cancelled; `seen` is the last notice that they know."""
        await asyncio.gather(self._submit(), self._listen(seen))

    async def _submit(self) -> None:
        """Submit each job at its time."""
        daemon, crowd = self._daemon, self._crowd
        while True:
            self._news.clear()
            due = crowd.due(daemon.clock.now() - self._origin)
            if due:
                await self._hand_in(due)
            seconds = daemon.clock.seconds_until(self._origin + crowd.next)
            with suppress(TimeoutError):
                async with asyncio.timeout(min(seconds, LONGEST)):
                    await self._news.wait()

    async def _hand_in(self, due: list[Arrival]) -> None:
        try:
            answers = await self._daemon.service.submit([Submit(spec_of(each)) for each in due])
        except UnavailableError:  # for example because its disk is full
            self._crowd.put_back(due)
            await asyncio.sleep(PROBE_EVERY)
            return
        for arrival, answer in zip(due, answers, strict=True):
            if isinstance(answer, Refused):  # the viewer may have closed a pool
                self._crowd.ended(arrival.job.submit + AGAIN, arrival.job.id)

    async def _listen(self, seen: int) -> None:
        """Tell users that their jobs have ended."""
        async for notice in self._daemon.service.notices(seen):
            if notice.kind in OVER:
                self._crowd.ended(notice.time - self._origin, notice.job)
                self._news.set()

    async def tell(self) -> None:
        """Print a line every simulated hour, and some more at the end of each day."""
        await self._read_accounts()
        for line in self._diary.end_day("Since Monday"):
            click.echo(line)
        click.echo(
            "\n  time              started  ended  running  pending  GPUs in use  lent  newest loan"
        )
        clock, hour, seen = self._daemon.clock, BEGIN // HOUR + 1, self._daemon.service.last_notice
        while True:
            while clock.now() < self._origin + hour * HOUR:
                await clock.sleep_until(self._origin + hour * HOUR)
            newest_ = self._daemon.service.last_notice
            self._show_hour(hour, await self._notices(seen, newest_))
            seen = newest_
            if not hour % 24:
                await self._end_day(int(hour // 24) - 1)
            hour += 1

    async def _notices(self, seen: int, newest_: int) -> list[Notice]:
        """Return the notices of the last hour."""
        found = []
        while seen < newest_ and (page := await self._daemon.service.page(seen)):
            found += [notice for notice in page if notice.seq <= newest_]
            seen = page[-1].seq
        return found

    def _show_hour(self, hour: float, notices: list[Notice]) -> None:
        kinds = Counter(notice.kind for notice in notices)
        loan = ""
        for notice in notices:
            told = public_notice(notice) if notice.kind == "loan_opened" else None
            if told is not None:
                loan = f"{told.pool} lends {told.data['gpus']} to {told.job}"
        state = self._daemon.service.engine.core.state
        used = sum(pool.dedicated + pool.spare for pool in state.pools.values())
        running = len(state.jobs) - state.waiting
        lent = _lent(self._daemon.service.book)
        line = (
            f"  {_time(hour):16} {kinds['started']:8} {kinds['ended']:6} {running:8} "
            f"{state.waiting:8}  {used:4} of {GPUS}  {lent:4}  {loan}"
        )
        click.echo(line.rstrip())

    async def _end_day(self, day: int) -> None:
        await self._read_accounts()
        click.echo()
        for line in self._diary.end_day(f"{DAYS[day % 7]}"):
            click.echo(line)
        click.echo()
        if day % 7 == 6:
            await self.show_gain()

    async def _read_accounts(self) -> None:
        pools = [name for name, _ in QUOTAS]
        seen = self._booked
        read = lambda journal: newest(journal, pools, seen)  # noqa: E731
        booked, self._booked = await self._daemon.service.journal(read)
        self._diary.add(booked)

    async def show_gain(self) -> None:
        """Print a table of what jobs have waited, with sharing and alone."""
        await self._read_accounts()
        rows = self._diary.rows(QUOTAS)
        show_table("Mean waits with sharing and alone, since pools share", HEADER, rows)
        if any(row[-1] != "0" for row in rows):
            click.echo(f"\n{LATER}")
        click.echo()


def _time(hour: float) -> str:
    day, clock = divmod(int(hour), 24)
    first = int(BEGIN // DAY)
    return f"day {day - first + 1}, {DAYS[day % 7][:3]} {clock:02}:00"


def _lent(book: Book) -> int:
    return sum(
        gpus for record in book.loans() for donor, gpus in record.loans if donor != record.spec.pool
    )


def _introduce(config: Config, address: Address) -> None:
    click.echo(f"A made-up company of {counted(len(TEAMS), 'team')} with {GPUS} GPUs:\n")
    for team in TEAMS:
        click.echo(f"  {team.profile.pool.name:10} {team.profile.pool.quota:3} GPUs  {team.story}")
    click.echo(
        "\nAn hour takes a second. SIA knows two weeks in which no team shared; since Monday all "
        "share.\n"
        "\nTo look at it from another terminal:\n"
        f"  export SIA_URL={address.url} SIA_TOKEN_FILE={config.token_file}\n"
        "  sia top; sia pools; sia jobs; sia loans; sia events --follow\n"
        f"  or open {address.url}/ in a browser, with the token in that file\n"
    )
