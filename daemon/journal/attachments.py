"""Key-value store and dead letters in the journal's database, for other components."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from daemon.journal.journal import DeadLetter
from daemon.journal.writer import JournalWriter


class NoteStore:
    """Short texts by key. Writes are durable; each method raises JournalError on failure."""

    def __init__(self, writer: JournalWriter) -> None:
        """Use the journal's thread, so that writes are ordered with steps."""
        self._writer = writer

    async def read(self, prefix: str) -> dict[str, str]:
        """Return all entries whose key starts with `prefix`, ordered by key."""
        return await self._writer.run(lambda: self._writer.journal.marks(prefix))

    async def write(self, changes: Mapping[str, str | None]) -> None:
        """Set these values in one transaction; None deletes the key."""
        await self._writer.run(lambda: self._writer.journal.mark(changes))


class DeadLetters:
    """Failed webhook deliveries. Writes are durable; methods raise JournalError on failure."""

    def __init__(self, writer: JournalWriter) -> None:
        """Use the journal's thread, so that writes are ordered with steps."""
        self._writer = writer

    async def add(self, letter: DeadLetter, marks: Mapping[str, str]) -> None:
        """Store a failed delivery and set the cursors in `marks`, in one transaction."""
        await self._writer.run(lambda: self._writer.journal.add_dead_letters([letter], marks))

    async def dead(self, hook: str, after: int, limit: int) -> list[DeadLetter]:
        """Return up to `limit` dead letters of a webhook after a number, in order."""
        return await self._writer.run(lambda: self._writer.journal.dead(hook, after, limit))

    async def numbers(self, hook: str) -> list[int]:
        """Return the numbers of all dead letters of a webhook, in order."""
        return await self._writer.run(lambda: self._writer.journal.dead_numbers(hook))

    async def remove(self, hook: str, numbers: Sequence[int]) -> int:
        """Delete dead letters; return how many of the webhook remain."""
        journal = self._writer.journal

        def do() -> int:
            journal.remove_dead_letters(hook, numbers)
            return len(journal.dead_numbers(hook))

        return await self._writer.run(do)
