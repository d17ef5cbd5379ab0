"""The interface between the journal and its database, SQLite or PostgreSQL.

Statements use SQL that both understand, with `?` for values. `Store.types` maps differing types.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from daemon.journal.highwater import HighWater


class Store(Protocol):
    """A database that one daemon uses. Not thread-safe.

    Methods raise JournalError if the database fails, RowError for an invalid row, and UserError if
    the database belongs to another program or daemon.

    Attributes:
        where: Name of the database in messages, without secrets.
        epoch: Grows with each daemon that opens the database; 0: the journal counts epochs.
    """

    where: str
    epoch: int
    types: Mapping[str, str]
    """SQL types for `real`, `blob`, `big`, `text` (ordered by bytes), `key_number` (a primary key)
    and `number` (a primary key that the database assigns)."""

    def open(self) -> None:
        """Open or reopen the database, after all earlier statements have committed or failed."""

    def close(self) -> None:
        """Close the database, but keep excluding other daemons."""

    def release(self) -> None:
        """Close the database and let other daemons open it."""

    def lost(self) -> str:
        """Describe the acknowledged steps that are missing; empty if none. Raises UserError."""

    def acknowledge(self, mark: HighWater) -> None:
        """Record that all steps up to this one are durable and acknowledged.

        A server ensures durability itself, so its store records nothing. Raises JournalError.
        """

    def version(self) -> int:
        """Return the version of the tables; 0 if there are none."""

    def set_version(self, version: int) -> None:
        """Store the version of the tables, in the current transaction."""

    def transaction(self) -> AbstractContextManager[None]:
        """Run a durable, atomic transaction."""

    def run(self, sql: str, values: Sequence[Any] = ()) -> None:
        """Execute a statement; in a transaction, errors may appear only at its end."""

    def many(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        """Execute a statement for each row."""

    def all(self, sql: str, values: Sequence[Any] = ()) -> list[Any]:
        """Run a query and return all rows as tuples."""
