"""The journal on a thread of its own: the loop goes on while it writes and reads."""

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
    """Does one thing after the other. All raise JournalError where the journal cannot.

    Attributes:
        trail: Where the audit ends, as far as it is durable.
    """

    def __init__(self, journal: Journal) -> None:
        """Nobody else uses the journal from now on."""
        self.journal = journal
        self.trail = AuditHead()
        self._thread = ThreadPoolExecutor(1, "journal")

    @property
    def last(self) -> int:
        """The number of the last step that is durable."""
        return self.journal.last

    def close(self) -> None:
        """Let go of the journal once it has done what it was asked."""
        self._thread.shutdown()
        self.journal.close()

    def run(self, do: Callable[[], T]) -> Awaitable[T]:
        """Have anything done on the thread."""
        return asyncio.get_running_loop().run_in_executor(self._thread, do)

    async def recover(self, setup: Setup) -> Engine:
        """The engine that the last step left behind: see `recovery.recover`."""
        engine = await self.run(lambda: recover(self.journal, setup))
        self.trail = trail_of(await self.run(self.journal.last_audit))
        return engine

    async def configure(self, engine: Engine, setup: Setup, clock: Clock, unseen: int = 0) -> None:
        """Have an engine go by other settings than it does, if they are others.

        Until predictors are ready pools that are new have a load of `unseen` (GPUs).

        Raises UserError for what cannot be, with nothing recorded.
        """
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
        """Make a step durable, and a piece of a snapshot with it."""
        await self.run(lambda: self.journal.commit(entry, part))
        self.trail = self.trail.after(entry.audit)

    def save(self, part: SnapshotPart) -> Awaitable[None]:
        """Make a piece of a snapshot durable."""
        return self.run(lambda: self.journal.save(part))

    async def reopens(self) -> bool:
        """Whether the file can be closed and opened again."""
        try:
            await self.run(self.journal.reopen)
            self.trail = trail_of(await self.run(self.journal.last_audit))
        except JournalError:
            return False
        return True

    async def trouble(self) -> str:
        """Why it cannot be written; empty if it can."""
        try:
            await self.run(self.journal.probe)
        except JournalError as error:
            return str(error)
        return ""

    def job(self, job_id: str) -> Awaitable[JobRecord | None]:
        """A job that has ended, however long ago."""
        return self.run(lambda: self.journal.job(job_id))

    def jobs(self, job_ids: Sequence[str]) -> Awaitable[dict[str, JobRecord]]:
        """Those of these jobs that have ended."""
        return self.run(lambda: self.journal.jobs(job_ids))

    def history(
        self, before: int, limit: int, pools: Collection[str] | None
    ) -> Awaitable[list[tuple[int, JobRecord]]]:
        """Jobs that have ended, newest first: see `Journal.history`."""
        return self.run(lambda: self.journal.history(before, limit, pools))
