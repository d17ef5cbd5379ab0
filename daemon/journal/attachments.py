"""What backends and other parts keep in the journal's database: short texts by key."""

from __future__ import annotations

from collections.abc import Mapping

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
