"""Connections to PostgreSQL that wait no longer than they should, and what is wrong with them."""

from __future__ import annotations

import logging
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import psycopg
from psycopg import sql as text

from daemon.config.database import DatabaseUrl
from daemon.model.errors import JournalError, RowError

T = TypeVar("T")

logging.getLogger("psycopg").addHandler(logging.NullHandler())  # what is wrong is raised as well

CONNECT_PATIENCE = 3
"""Seconds until a server that does not answer is not there; libpq counts whole ones."""

PATIENCE = 8.0
"""Seconds that an answer may take: more than any step needs, and few enough to notice that a
connection carries nothing any more, when nobody else says so."""

LOCK_PATIENCE = 4.0
"""Seconds to wait for what another transaction holds, or half of what an answer may take."""

IDLE_PATIENCE = 3.0
"""Seconds after which the server ends a transaction of which nothing more is heard: its daemon is
dead or stopped, and who takes over must not wait for it."""

SCHEMA = "sia"
"""Of our tables: others may have theirs in the same database."""


class SilentError(psycopg.OperationalError):
    """Nothing has come for too long."""


class PgConnection(psycopg.Connection[tuple[Any, ...]]):
    """A connection that waits no longer than it should.

    Neither TCP nor the server notices where somebody between takes what is sent and passes it on to
    nobody: only a clock of one's own does.
    """

    patience = PATIENCE

    def wait(self, gen: Any, *args: Any, **more: Any) -> Any:
        """As ever, but not for ever."""
        try:
            return super().wait(_limited(gen, self.patience), *args, **more)
        except SilentError:
            self.close()  # there is no telling what would be answered to what
            raise


def _limited(gen: Generator[Any, Any, T], patience: float) -> Generator[Any, Any, T]:
    """What psycopg does while it waits, given up after a silence; it looks often."""
    until = time.monotonic() + patience
    try:
        state = next(gen)
        while True:
            ready = yield state
            if ready:
                until = time.monotonic() + patience
            elif time.monotonic() > until:
                raise SilentError("the server does not answer")
            state = gen.send(ready)
    except StopIteration as end:
        result: T = end.value
        return result


def connect(url: DatabaseUrl, name: str, patience: float = PATIENCE) -> PgConnection:
    """A connection in our schema, each statement by itself. Raises JournalError."""
    with said(url):
        db = PgConnection.connect(
            url.reveal(), autocommit=True, connect_timeout=CONNECT_PATIENCE, application_name=name,
            keepalives=1, keepalives_idle=2, keepalives_interval=1, keepalives_count=3,
            tcp_user_timeout=int(patience * 1000), client_encoding="utf8",
        )  # fmt: skip
        db.patience = patience
        try:
            db.execute(_settings(patience))
        except BaseException:
            db.close()
            raise
    return db


def _settings(patience: float) -> text.Composed:
    """What the server is told at the beginning, in one go."""
    return text.SQL(
        "SET search_path = {}; SET statement_timeout = {}; SET lock_timeout = {};"
        "SET idle_in_transaction_session_timeout = {};"
        "SET default_transaction_isolation = 'read committed';"
        "SELECT set_config('synchronous_commit', 'on', false)"
        " WHERE current_setting('synchronous_commit') = 'off'"
    ).format(
        text.Identifier(SCHEMA),
        *(int(1000 * each) for each in (patience, min(patience / 2, LOCK_PATIENCE), IDLE_PATIENCE)),
    )


@contextmanager
def said(url: DatabaseUrl) -> Iterator[None]:
    """What psycopg says is wrong, as our errors, without secrets."""
    try:
        yield
    except (psycopg.IntegrityError, psycopg.DataError) as error:
        raise RowError(_line(error, url)) from None
    except psycopg.Error as error:
        raise JournalError(f"{_line(error, url)}; {_mend(error)}") from None


def _line(error: psycopg.Error, url: DatabaseUrl) -> str:
    line = " ".join(str(error).split()) or type(error).__name__
    for secret in url.secrets():
        line = line.replace(secret, "***")
    return line


def _mend(error: psycopg.Error) -> str:
    for kind, mend in MENDS:
        if isinstance(error, kind):
            return mend
    return "see that PostgreSQL runs, can be reached, and lets this user in"


MENDS: Sequence[tuple[type[psycopg.Error], str]] = (
    (psycopg.errors.DiskFull, "make room on the server's disk"),
    (psycopg.errors.InsufficientPrivilege, "GRANT CREATE ON DATABASE … TO the daemon's user"),
    (psycopg.errors.ReadOnlySqlTransaction, "name the server that takes writes"),
    (psycopg.errors.InvalidPassword, "give the password in the URL or in PGPASSFILE"),
    (psycopg.errors.DuplicateTable, "its schema sia has other tables; name another database"),
    (psycopg.errors.UndefinedTable, "restore the tables from a backup, or name another database"),
)
"""What to do about it, where the error tells more than that something is wrong."""
