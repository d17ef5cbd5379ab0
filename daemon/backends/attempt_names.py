"""What attempts are called where they run: notes that are durable before anything hangs on them."""

from __future__ import annotations

import asyncio
from collections.abc import Container, Mapping

from daemon.backends.interface import BackendContext

AttemptKey = tuple[str, int]
"""A job and its attempt."""

KEEP = 10.0
"""Seconds for which what an attempt was called is kept after its end was taken note of: until then
that may not be durable yet."""


class AttemptNotes:
    """By attempt, each a note whose key begins with a prefix."""

    def __init__(self, house: BackendContext, prefix: str, notes: Mapping[str, str]) -> None:
        """Those of them that are under the prefix."""
        self._house, self._prefix = house, prefix
        self._names = {
            self._key(note): name for note, name in notes.items() if note.startswith(prefix)
        }
        self._over: dict[AttemptKey, float] = {}  # attempts that are over, and since when

    def get(self, key: AttemptKey) -> str | None:
        """What an attempt is called, where that is known."""
        return self._names.get(key)

    async def note(self, names: Mapping[AttemptKey, str]) -> None:
        """Have it be durable what these are called. Raises JournalError."""
        await self._house.notes.write({self._note(key): name for key, name in names.items()})
        self._names.update(names)

    async def forget(self, runs: Container[AttemptKey]) -> None:
        """Delete those of attempts that are over, once that is surely durable.

        Raises JournalError.
        """
        now, jobs = asyncio.get_running_loop().time(), self._house.book().jobs
        gone = []
        for key in self._names:
            record = jobs.get(key[0])
            if key in runs or (record is not None and record.placed and record.attempt == key[1]):
                self._over.pop(key, None)
            elif now - self._over.setdefault(key, now) >= KEEP:
                gone.append(key)
        if gone:
            await self._house.notes.write({self._note(key): None for key in gone})
            for key in gone:
                del self._names[key], self._over[key]

    def _note(self, key: AttemptKey) -> str:
        return f"{self._prefix}{key[1]}/{key[0]}"

    def _key(self, note: str) -> AttemptKey:
        attempt, _, job = note.removeprefix(self._prefix).partition("/")
        return job, int(attempt)
