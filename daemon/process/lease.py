"""The lease on PostgreSQL: of several daemons on one database, the holder is the leader.

One row holds the epoch, the holder and the end by the server's clock. The leader renews the lease
on its own thread and connection. It trusts the lease for `MARGIN` seconds less than the row says,
counted from before the renewal was sent. A new leader increments the epoch; the journal then
refuses writes of the former leader (`postgres.FENCE`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

from psycopg import errors, sql

from daemon.config.database import DatabaseUrl
from daemon.journal.pg_connection import SCHEMA, PgConnection, connect, translated_errors
from daemon.journal.schema import check_version
from daemon.model.errors import JournalError
from daemon.runtime.clock import uptime

LEASE = 6.0
"""Length of a lease in seconds: a leader that has failed is replaced soon after."""

MARGIN = 1.0
"""Seconds before its end at which the holder treats the lease as over: time between its check and
its action."""

RENEW_EVERY = 1.5
"""Seconds between renewals: within one lease a renewal can fail and be repeated."""

LOOK_EVERY = 0.5
"""Seconds between two checks by a standby, and between two attempts to reach the server."""

DEAF = 30.0
"""Seconds that a serving daemon may be unresponsive before it stops renewing: far more than its
longest work. A daemon that hangs must not keep others from leading."""

BEGIN = 2 * 3600.0
"""The same limit between taking the lease and serving: recovery of a large journal takes long."""

ANSWER_WITHIN = 2.0
"""Timeout in seconds of a query about the lease: a longer one leaves no time to retry."""

SETUP_LOCK = 0x51A_DAE
"""Advisory lock that serialises two daemons creating the first tables."""

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
"""Ends open transactions of the journal: a daemon stopped within one would block its successor for
as long as it is stopped. The condition on the database is needed because `pg_locks` covers all
databases, and a copied one has the same table numbers."""


class Seen(NamedTuple):
    """The lease as stored."""

    epoch: int
    holder: str
    place: str
    until: str
    """The end by the server's clock; it changes with each renewal."""
    left: float
    """Seconds until the end; negative once the lease has expired."""


class LeaseConnection:
    """A database connection for the lease. All methods raise JournalError."""

    def __init__(self, url: DatabaseUrl) -> None:
        """Connect, and create the first tables if there are none.

        Raises UserError for tables of a newer release.
        """
        self._url = url
        self._db: PgConnection = connect(url, "sia lease", ANSWER_WITHIN)
        try:
            with translated_errors(url):
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
        """Return the lease as stored."""
        with translated_errors(self._url):
            return Seen(*_one(self._db, LOOK))

    def take(self, seen: Seen, holder: str, place: str) -> int | None:
        """Take the lease unless it changed since `seen`; return the new epoch, or None."""
        values = (holder, place, LEASE, seen.epoch, seen.until)
        with translated_errors(self._url):
            try:
                row = self._db.execute(TAKE, values).fetchone()
            except errors.LockNotAvailable:
                self._db.execute(END_WRITERS)
                row = self._db.execute(TAKE, values).fetchone()
        return None if row is None else int(row[0])

    def renew(self, epoch: int) -> bool:
        """Extend the lease of `epoch`; return False if another daemon has taken it."""
        with translated_errors(self._url):
            return self._db.execute(RENEW, (LEASE, epoch)).rowcount == 1

    def give_back(self, epoch: int) -> None:
        """Release the lease, so that another daemon can take it at once."""
        with translated_errors(self._url):
            self._db.execute(GIVE_BACK, (epoch,))

    def close(self) -> None:
        """Disconnect."""
        self._db.close()


def _one(db: PgConnection, ask: Any, *values: Any) -> Any:
    row = db.execute(ask, values).fetchone()
    assert row is not None, ask
    return row


class PostgresLease:
    """A held lease: a `fence.Fence` that renews itself until `close`.

    Attributes:
        epoch: The number of this lease.
        lost: Whether another daemon has taken over.
        trouble: Why the lease cannot be renewed at the moment; empty if it can.
    """

    def __init__(
        self,
        url: DatabaseUrl,
        connection: LeaseConnection,
        epoch: int,
        since: float,
        deposed: Callable[[], None],
    ) -> None:
        """Renew the lease that was requested at `since` (`clock.uptime`) on this connection.

        `deposed` is called once, from another thread, when another daemon has taken over.
        """
        self._url, self.epoch = url, epoch
        self.lost, self.trouble = False, ""
        self._until = since + LEASE - MARGIN
        self._responsive_at = since + BEGIN - DEAF  # recovery comes before serving
        self._deposed = deposed
        self._connection: LeaseConnection | None = connection
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._work, name="lease", daemon=True)
        self._thread.start()

    def holds(self) -> bool:
        """Return whether no other daemon can hold the lease, judged by the last renewal sent."""
        return not self.lost and uptime() < self._until

    def alive(self) -> None:
        """Record that the daemon is responsive. Called every second while it serves."""
        self._responsive_at = uptime()

    def close(self) -> None:
        """Stop renewing, and release the lease if it is still held and the server is reachable."""
        self._stopped.set()
        self._thread.join()
        self._until = 0.0
        if self._connection is not None:
            with suppress(JournalError):
                self._connection.give_back(self.epoch)
            self._connection.close()

    def _work(self) -> None:
        wait = RENEW_EVERY
        while not self._stopped.wait(wait):
            sent = uptime()
            if sent - self._responsive_at > DEAF:
                self.trouble = "the daemon does not respond; stop it"
                continue
            try:
                if self._connection is None:
                    self._connection = LeaseConnection(self._url)
                    sent = uptime()
                ours = self._connection.renew(self.epoch)
            except Exception as error:  # noqa: BLE001  every failure is retried
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
        if self._connection is not None:
            self._connection.close()
            self._connection = None
