"""The lease: of several daemons on one PostgreSQL, the one that acts has it.

A row says who and until when, by the server's clock, and counts the epochs. Who has it renews it
over a connection and a thread of its own, and believes in it for a while shorter than the row says,
counted from before it asked. Who takes it over makes the epoch greater: what the old one sends to
the journal later is refused there (`postgres.FENCE`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

from psycopg import errors, sql

from daemon.config.database import DatabaseUrl
from daemon.journal.migrations import check_version
from daemon.journal.pg_connection import SCHEMA, PgConnection, connect, said
from daemon.model.errors import JournalError
from daemon.runtime.clock import uptime

LEASE = 6.0
"""Seconds for which it is given: a leader that is heard of no more is replaced soon after."""

MARGIN = 1.0
"""Seconds by which its holder believes it over sooner: between its last look and what it does."""

RENEW_EVERY = 1.5
"""Seconds: one renewal may fail, and another one be made, within one lease."""

LOOK_EVERY = 0.5
"""Seconds between two looks of a stand-by, and two tries where the server is gone."""

DEAF = 30.0
"""Seconds for which a daemon that has begun to serve may do nothing at all, and keep the lease: far
more than its longest work, and one that hangs must not keep others from leading for good."""

BEGIN = 2 * 3600.0
"""Seconds from its turn until it serves, likewise: a migration of an hour, and as much again."""

ANSWER_WITHIN = 2.0
"""Seconds for an answer about the lease: longer ones leave no time for another try."""

SETUP_LOCK = 0x51A_DAE
"""Of two daemons that make the first tables at once, one waits for the other."""

TABLES = (
    "CREATE SCHEMA IF NOT EXISTS {schema}",
    "CREATE TABLE IF NOT EXISTS about (version INTEGER NOT NULL)",
    "INSERT INTO about SELECT 0 WHERE NOT EXISTS (SELECT 1 FROM about)",
    """CREATE TABLE IF NOT EXISTS lease (epoch BIGINT PRIMARY KEY, holder TEXT NOT NULL,
        place TEXT NOT NULL, until TIMESTAMPTZ NOT NULL)""",
    "INSERT INTO lease SELECT 0, '', '', clock_timestamp() WHERE NOT EXISTS (SELECT 1 FROM lease)",
)

LOOK = """SELECT epoch, holder, place, until::text,
    extract(epoch FROM until - clock_timestamp())::float8 FROM lease"""

TAKE = """UPDATE lease SET epoch = epoch + 1, holder = %s, place = %s,
    until = clock_timestamp() + make_interval(secs => %s)
    WHERE epoch = %s AND until::text = %s AND (holder = '' OR until <= clock_timestamp())
    RETURNING epoch"""

RENEW = """UPDATE lease SET until = clock_timestamp() + make_interval(secs => %s)
    WHERE epoch = %s"""

GIVE_BACK = "UPDATE lease SET holder = '', until = clock_timestamp() WHERE epoch = %s"

END_WRITERS = """SELECT pg_terminate_backend(pid) FROM pg_locks
    WHERE relation = 'lease'::regclass AND mode = 'RowShareLock' AND pid <> pg_backend_pid()
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"""
"""Transactions of the journal that have not ended: a daemon that was stopped in the midst of one
would hold up whoever takes over, for as long as it is stopped. The server lists those of all its
databases, and one that was copied has tables of the same numbers."""


class Seen(NamedTuple):
    """The lease as it stands in the row."""

    epoch: int
    holder: str
    place: str
    until: str
    """By the server's clock; it is another one after each renewal."""
    left: float
    """Seconds until then; below 0, it has run out."""


class LeaseConnection:
    """A connection about the lease. All raise JournalError."""

    def __init__(self, url: DatabaseUrl) -> None:
        """Connect, and make the first tables where there are none.

        Raises UserError for tables of a newer release.
        """
        self._url = url
        self._db: PgConnection = connect(url, "sia lease", ANSWER_WITHIN)
        try:
            with said(url):
                self._set_up()
        except BaseException:
            self._db.close()
            raise

    def _set_up(self) -> None:
        db = self._db
        if not _one(db, "SELECT to_regclass(%s) IS NOT NULL", f"{SCHEMA}.lease")[0]:
            with db.transaction():
                db.execute("SELECT pg_advisory_xact_lock(%s)", (SETUP_LOCK,))
                for each in TABLES:
                    db.execute(sql.SQL(each).format(schema=sql.Identifier(SCHEMA)))
        check_version(str(self._url), _one(db, "SELECT version FROM about")[0])

    def look(self) -> Seen:
        """Who has it."""
        with said(self._url):
            return Seen(*_one(self._db, LOOK))

    def take(self, seen: Seen, holder: str, place: str) -> int | None:
        """Have it as the next, unless somebody renewed or took it since; the new epoch."""
        values = (holder, place, LEASE, seen.epoch, seen.until)
        with said(self._url):
            try:
                row = self._db.execute(TAKE, values).fetchone()
            except errors.LockNotAvailable:
                self._db.execute(END_WRITERS)
                row = self._db.execute(TAKE, values).fetchone()
        return None if row is None else int(row[0])

    def renew(self, epoch: int) -> bool:
        """Whether it is still ours, and for another while."""
        with said(self._url):
            return self._db.execute(RENEW, (LEASE, epoch)).rowcount == 1

    def give_back(self, epoch: int) -> None:
        """Let others take it at once."""
        with said(self._url):
            self._db.execute(GIVE_BACK, (epoch,))

    def close(self) -> None:
        """Disconnect."""
        self._db.close()


def _one(db: PgConnection, ask: Any, *values: Any) -> Any:
    row = db.execute(ask, values).fetchone()
    assert row is not None, ask
    return row


class PostgresLease:
    """A lease that was taken: a `fence.Fence`, renewed until `close`.

    Attributes:
        epoch: Whose turn it is.
        lost: Whether another daemon has taken over.
        trouble: Why it cannot be renewed at the moment; empty if it can.
    """

    def __init__(
        self,
        url: DatabaseUrl,
        desk: LeaseConnection,
        epoch: int,
        since: float,
        deposed: Callable[[], None],
    ) -> None:
        """Taken over this desk, asked for at `since` (`clock.uptime`).

        `deposed` is called once, from another thread, where another daemon has taken over.
        """
        self._url, self.epoch = url, epoch
        self.lost, self.trouble = False, ""
        self._until = since + LEASE - MARGIN
        self._heard = since + BEGIN - DEAF  # there is a lot to do before it serves
        self._deposed = deposed
        self._desk: LeaseConnection | None = desk
        self._enough = threading.Event()
        self._thread = threading.Thread(target=self._work, name="lease", daemon=True)
        self._thread.start()

    def holds(self) -> bool:
        """Whether nobody else can have it yet, by the seconds since the last renewal was sent."""
        return not self.lost and uptime() < self._until

    def alive(self) -> None:
        """Whoever has it serves, and says so each second from now on."""
        self._heard = uptime()

    def close(self) -> None:
        """Give it back, if it is ours and the server is there."""
        self._enough.set()
        self._thread.join()
        self._until = 0.0
        if self._desk is not None:
            with suppress(JournalError):
                self._desk.give_back(self.epoch)
            self._desk.close()

    def _work(self) -> None:
        wait = RENEW_EVERY
        while not self._enough.wait(wait):
            sent = uptime()
            if sent - self._heard > DEAF:
                self.trouble = "the daemon does nothing any more; end it"
                continue
            try:
                if self._desk is None:
                    self._desk = LeaseConnection(self._url)
                    sent = uptime()
                ours = self._desk.renew(self.epoch)
            except Exception as error:  # noqa: BLE001  whatever it is, it is tried again
                self._drop(str(error))
                wait = LOOK_EVERY
                continue
            if not ours:
                self.lost = True
                self._deposed()
                return
            self._until, self.trouble, wait = sent + LEASE - MARGIN, "", RENEW_EVERY

    def _drop(self, why: str) -> None:
        self.trouble = why
        if self._desk is not None:
            self._desk.close()
            self._desk = None
