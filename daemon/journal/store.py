"""What the journal needs of a database; SQLite and PostgreSQL are behind it.

SQL is what both understand, with `?` for values; types that differ stand in `Store.types`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from daemon.journal.highwater import HighWater


class Store(Protocol):
    """A database of one daemon, for one thread at a time.

    What a database says is wrong is a JournalError, or a RowError. UserError where it is none of
    ours, or somebody else's.

    Attributes:
        where: How messages name it; tells no secret.
        epoch: Grows with each daemon that takes hold of it; 0 where the journal is to count.
    """

    where: str
    epoch: int
    types: Mapping[str, str]
    """How it calls `real`, `blob`, `big`, `text` (in order of its bytes), `key_number` (a key), and
    `number` (one that counts by itself)."""

    def open(self) -> None:
        """Take hold of it, or look anew at what is durable; whatever was under way is over."""

    def close(self) -> None:
        """Let go of what `open` got, but keep others away."""

    def release(self) -> None:
        """Let go of it."""

    def lost(self) -> str:
        """Say what is missing of what was acknowledged; empty if nothing. Raises UserError."""

    def acknowledge(self, mark: HighWater) -> None:
        """Note that everything up to this step is durable and may be answered for.

        A server that owns its durability needs no note. Raises JournalError.
        """

    def version(self) -> int:
        """Of the tables; 0 where there are none yet."""

    def set_version(self, version: int) -> None:
        """Within a transaction."""

    def transaction(self, *, long: bool = False) -> AbstractContextManager[None]:
        """All that is done within is durable at the end, or nothing; `long` may take minutes."""

    def run(self, sql: str, values: Sequence[Any] = ()) -> None:
        """Do something. Within a transaction it may be said only at its end what is wrong."""

    def many(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        """Do it with each of these."""

    def all(self, sql: str, values: Sequence[Any] = ()) -> list[Any]:
        """What is asked for, as tuples."""
