"""Durable notes that map each attempt to its name in an external system."""

from __future__ import annotations

import asyncio
from collections.abc import Container, Mapping

from daemon.backends.interface import BackendContext

AttemptKey = tuple[str, int]
"""Job id and attempt number."""

KEEP = 10.0
"""Seconds for which a note is kept after the attempt's end was observed, until the end is
durable."""


class AttemptNotes:
    """Names by attempt, stored as notes with a common key prefix."""

    def __init__(self, context: BackendContext, prefix: str, notes: Mapping[str, str]) -> None:
        """Read the notes that have the prefix."""
        self._context, self._prefix = context, prefix
        self._names = {
            self._key(note): name for note, name in notes.items() if note.startswith(prefix)
        }
        self._over: dict[AttemptKey, float] = {}  # ended attempts: time when first seen as ended

    def get(self, key: AttemptKey) -> str | None:
        """Return the name of an attempt, or None if unknown."""
        return self._names.get(key)

    async def note(self, names: Mapping[AttemptKey, str]) -> None:
        """Store names durably. Raises JournalError."""
        await self._context.notes.write({self._note(key): name for key, name in names.items()})
        self._names.update(names)

    async def forget(self, runs: Container[AttemptKey]) -> None:
        """Delete the notes of attempts that ended at least `KEEP` seconds ago.

        Raises JournalError.
        """
        now, jobs = asyncio.get_running_loop().time(), self._context.book().jobs
        gone = []
        for key in self._names:
            record = jobs.get(key[0])
            if key in runs or (record is not None and record.placed and record.attempt == key[1]):
                self._over.pop(key, None)
            elif now - self._over.setdefault(key, now) >= KEEP:
                gone.append(key)
        if gone:
            await self._context.notes.write({self._note(key): None for key in gone})
            for key in gone:
                del self._names[key], self._over[key]

    def _note(self, key: AttemptKey) -> str:
        return f"{self._prefix}{key[1]}/{key[0]}"

    def _key(self, note: str) -> AttemptKey:
        attempt, _, job = note.removeprefix(self._prefix).partition("/")
        return job, int(attempt)
