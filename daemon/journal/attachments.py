"""Short texts by key, and failed webhook deliveries, in the journal's database."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from daemon.journal.journal import DeadLetter
from daemon.journal.writer import JournalWriter


class NoteStore:
    """Durable once written. All raise JournalError where the database cannot."""

    def __init__(self, keeper: JournalWriter) -> None:
        """Kept there, in its order."""
        self._keeper = keeper

    async def read(self, prefix: str) -> dict[str, str]:
        """All of which the key begins so, in order of their keys."""
        return await self._keeper.run(lambda: self._keeper.journal.marks(prefix))

    async def write(self, changes: Mapping[str, str | None]) -> None:
        """Have these values from now on, all or none of them; None is to be no more."""
        await self._keeper.run(lambda: self._keeper.journal.mark(changes))


class DeadLetters:
    """Durable once written. All raise JournalError where the database cannot."""

    def __init__(self, keeper: JournalWriter) -> None:
        """Kept there, in its order."""
        self._keeper = keeper

    async def bury(self, letter: DeadLetter, marks: Mapping[str, str]) -> None:
        """Keep a letter, and have these marks, both or neither."""
        await self._keeper.run(lambda: self._keeper.journal.bury([letter], marks))

    async def dead(self, hook: str, after: int, limit: int) -> list[DeadLetter]:
        """Those of a hook after a number, in order, so many at most."""
        return await self._keeper.run(lambda: self._keeper.journal.dead(hook, after, limit))

    async def numbers(self, hook: str) -> list[int]:
        """Of all of a hook, in order."""
        return await self._keeper.run(lambda: self._keeper.journal.dead_numbers(hook))

    async def dig_out(self, hook: str, numbers: Sequence[int]) -> int:
        """Keep these no longer; how many of the hook are left."""
        journal = self._keeper.journal

        def do() -> int:
            journal.dig_out(hook, numbers)
            return len(journal.dead_numbers(hook))

        return await self._keeper.run(do)
