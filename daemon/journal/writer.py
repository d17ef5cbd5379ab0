"""Runs all journal I/O on one thread, so that the event loop never blocks on the database."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from daemon.engine.engine import Engine
from daemon.journal.audit import AuditHead, record_of_configuration, trail_of
from daemon.journal.journal import Journal, JournalEntry, SnapshotPart
from daemon.journal.recovery import recover
from daemon.model.book import JobRecord
from daemon.model.errors import JournalError
from daemon.model.inputs import Configured
from daemon.model.outputs import Refused
from daemon.model.setup import Setup
from daemon.runtime.clock import Clock
from sia.console.errors import UserError

T = TypeVar("T")


class JournalWriter:
    """Runs journal calls one after another. Methods raise JournalError on failure.

    Attributes:
        trail: End of the durable audit log.
    """

    def __init__(self, journal: Journal) -> None:
        """Take over the journal; no other code may use it directly."""
        self.journal = journal
        self.trail = AuditHead()
        self._thread = ThreadPoolExecutor(1, "journal")

    @property
    def last(self) -> int:
        """Return the number of the last durable step."""
        return self.journal.last

    def close(self) -> None:
        """Finish the queued calls, then close the journal."""
        self._thread.shutdown()
        self.journal.close()

    def run(self, do: Callable[[], T]) -> Awaitable[T]:
        """Run a function on the journal's thread."""
        return asyncio.get_running_loop().run_in_executor(self._thread, do)

    async def recover(self, setup: Setup) -> Engine:
        """Restore the engine; see `recovery.recover`."""
        engine = await self.run(lambda: recover(self.journal, setup))
        self.trail = trail_of(await self.run(self.journal.last_audit))
        return engine

    async def configure(self, engine: Engine, setup: Setup, clock: Clock, unseen: int = 0) -> None:
        """Apply the settings to the engine, if they differ, and commit the change.

        New pools have a load of `unseen` GPUs until predictors are ready.

        Raises UserError, without a commit, if the engine refuses the settings.
        """
        setup = setup.continuing(engine.book.setup)
        if setup == engine.book.setup:
            return
        before = engine.book.setup
        anchor, inputs = clock.anchor(), [Configured(setup, unseen)]
        step = engine.step(anchor.now, inputs)
        answer = step.answers[0]
        if isinstance(answer, Refused):
            raise UserError(f"{answer.detail}; {answer.mend}")
        seq = self.last + 1
        audit = self.trail.rows(anchor.now, [record_of_configuration(before, inputs[0])])
        await self.commit(JournalEntry.of(seq, anchor, inputs, step, audit))

    async def commit(self, entry: JournalEntry, part: SnapshotPart | None = None) -> None:
        """Commit a step, and optionally a part of a snapshot."""
        await self.run(lambda: self.journal.commit(entry, part))
        self.trail = self.trail.after(entry.audit)

    def save(self, part: SnapshotPart) -> Awaitable[None]:
        """Commit a part of a snapshot."""
        return self.run(lambda: self.journal.save(part))

    async def reopens(self) -> bool:
        """Reopen the database; return whether this succeeded."""
        try:
            await self.run(self.journal.reopen)
            self.trail = trail_of(await self.run(self.journal.last_audit))
        except JournalError:
            return False
        return True

    async def trouble(self) -> str:
        """Test a write; return the error, or an empty text."""
        try:
            await self.run(self.journal.probe)
        except JournalError as error:
            return str(error)
        return ""

    def job(self, job_id: str) -> Awaitable[JobRecord | None]:
        """Return an ended job from the history, or None."""
        return self.run(lambda: self.journal.job(job_id))

    def jobs(self, job_ids: Sequence[str]) -> Awaitable[dict[str, JobRecord]]:
        """Return those of the given jobs that have ended, by id."""
        return self.run(lambda: self.journal.jobs(job_ids))

    def history(
        self, before: int, limit: int, pools: Collection[str] | None
    ) -> Awaitable[list[tuple[int, JobRecord]]]:
        """Return ended jobs, newest first; see `Journal.history`."""
        return self.run(lambda: self.journal.history(before, limit, pools))
