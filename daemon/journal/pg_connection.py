"""PostgreSQL connections with a client-side timeout, and the translation of their errors."""

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

logging.getLogger("psycopg").addHandler(logging.NullHandler())  # the errors are also raised

CONNECT_PATIENCE = 3
"""Connection timeout in seconds; libpq accepts only integers."""

PATIENCE = 8.0
"""Seconds without data from the server after which a statement fails: longer than any step takes,
and short enough to detect a connection that was silently broken."""

LOCK_PATIENCE = 4.0
"""Lock timeout in seconds, at most half of the statement timeout."""

IDLE_PATIENCE = 3.0
"""Seconds after which the server ends an idle transaction. Its daemon has died or was stopped, and
the next leader must not wait for it."""

SCHEMA = "sia"
"""Schema of the journal's tables, so that other applications can share the database."""


class SilentError(psycopg.OperationalError):
    """The server sent no data within the timeout."""


class PgConnection(psycopg.Connection[tuple[Any, ...]]):
    """A connection with a timeout on the client side.

    If a middlebox accepts packets but drops them, neither TCP nor the server notices; only a clock
    in the client does.
    """

    patience = PATIENCE

    def wait(self, gen: Any, *args: Any, **more: Any) -> Any:
        """Wait like the base class, but raise SilentError after `patience` seconds of silence."""
        try:
            return super().wait(_limited(gen, self.patience), *args, **more)
        except SilentError:
            self.close()  # a late answer could be taken for that of the next statement
            raise


def _limited(gen: Generator[Any, Any, T], patience: float) -> Generator[Any, Any, T]:
    """Wrap psycopg's wait generator, which polls often; stop after `patience` s of silence."""
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
    """Open an autocommit connection whose search path is `SCHEMA`. Raises JournalError."""
    with translated_errors(url):
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
    """Return the session settings as one query."""
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
def translated_errors(url: DatabaseUrl) -> Iterator[None]:
    """Translate psycopg's errors into JournalError and RowError, without secrets."""
    try:
        yield
    except (psycopg.IntegrityError, psycopg.DataError) as error:
        raise RowError(_line(error, url)) from None
    except psycopg.Error as error:
        raise JournalError(f"{_line(error, url)}; {_fix(error)}") from None


def _line(error: psycopg.Error, url: DatabaseUrl) -> str:
    line = " ".join(str(error).split()) or type(error).__name__
    for secret in url.secrets():
        line = line.replace(secret, "***")
    return line


def _fix(error: psycopg.Error) -> str:
    for kind, fix in FIXES:
        if isinstance(error, kind):
            return fix
    return "check that PostgreSQL runs, can be reached, and accepts this user"


FIXES: Sequence[tuple[type[psycopg.Error], str]] = (
    (psycopg.errors.DiskFull, "free space on the server's disk"),
    (psycopg.errors.InsufficientPrivilege, "GRANT CREATE ON DATABASE … TO the daemon's user"),
    (psycopg.errors.ReadOnlySqlTransaction, "name the primary server, which accepts writes"),
    (psycopg.errors.InvalidPassword, "set the password in the URL or in PGPASSFILE"),
    (
        psycopg.errors.DuplicateTable,
        "the schema sia has tables of another program; name another database",
    ),
    (psycopg.errors.UndefinedTable, "restore the tables from a backup, or name another database"),
)
"""The fix for each kind of error that has a specific one."""
