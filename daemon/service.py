"""The service: whatever comes from outside becomes a step, is made durable, and then takes effect.

One task takes all that waits, has the engine take one step, and writes it; only then it answers
clients, tells those who follow, and acts on the backend. While it writes, the next inputs gather.
"""

from __future__ import annotations

import asyncio
import gc
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from math import inf
from time import perf_counter
from typing import NamedTuple, TypeVar

from daemon.answers import Answer, Notice
from daemon.backends import Backend
from daemon.book import Book, JobRecord
from daemon.clock import Clock
from daemon.effects import Hands
from daemon.engine import Engine, Step
from daemon.foresight import Foresight
from daemon.inputs import Command, Input, Observation, Tick
from daemon.journal import Entry, Journal, JournalError, Part, parts_of
from daemon.limits import MAX_BATCH, MAX_INBOX, PROBE_EVERY, SNAPSHOT_EVERY
from daemon.live import Live
from daemon.recovery import recover
from daemon.setup import Setup
from daemon.watch import Watch

T = TypeVar("T")


class UnavailableError(Exception):
    """Commands cannot be taken now: an HTTP status (429, 503), and when to come again (seconds)."""

    def __init__(self, status: int, why: str, retry_after: float) -> None:
        """Say why, in a line."""
        super().__init__(why)
        self.status = status
        self.retry_after = retry_after


class Status(NamedTuple):
    """How the service is. Times are seconds."""

    serving: bool
    """Whether commands are taken; reads are answered either way."""
    reason: str
    since: float
    """When it became so, in seconds since the epoch."""
    waiting: int = 0
    """Inputs that are not durable yet."""
    last_commit: float = 0.0
    """When a step last became durable, in seconds since the epoch."""
    steps: int = 0


class _Asked(NamedTuple):
    """Commands that somebody waits for."""

    commands: Sequence[Command]
    answers: asyncio.Future[list[Answer]]


class Service:
    """The daemon's heart. All of it lives on one event loop; the journal has a thread of its own.

    Attributes:
        engine: For reading; another one after the journal failed.
        clock: The daemon's.
    """

    engine: Engine

    def __init__(
        self,
        setup: Setup,
        backend: Backend,
        journal: Journal,
        clock: Clock,
        *,
        watch: Watch | None = None,
        foresight: Foresight | None = None,
        snapshot_every: int = SNAPSHOT_EVERY,
    ) -> None:
        """Nothing happens before `start`; a snapshot follows so many inputs."""
        self._setup, self._journal, self.clock = setup, journal, clock
        self._watch = watch or Watch()
        self._snapshot_every = snapshot_every
        self._hands = Hands(backend, self.observe)
        self._backend = backend
        self._thread = ThreadPoolExecutor(1, "journal")
        self._news = asyncio.Event()
        self._foresight = foresight
        if foresight is not None:
            foresight.wake = self._news.set
        self._seen: deque[Observation] = deque()
        self._asked: deque[_Asked] = deque()
        self._inbox = 0
        self._parts: deque[Part] = deque()
        self._since_snapshot = 0
        self._stopping = False
        self._status = Status(serving=False, reason="starting", since=clock.now())

    @property
    def book(self) -> Book:
        """Jobs, pools, nodes and maintenance, for reading on the loop's thread."""
        return self.engine.book

    @property
    def told(self) -> int:
        """The number of the newest notice that is durable; 0 before the first."""
        return self._live.newest

    @property
    def ready(self) -> bool:
        """Whether commands are taken."""
        return self._status.serving

    def status(self) -> Status:
        """How the service is. O(1)."""
        return self._status._replace(waiting=self._inbox + len(self._seen))

    async def start(self) -> None:
        """Go on where the journal ends, find the jobs that run, and serve.

        Raises UserError where the journal cannot be read or the backend cannot work.
        """
        self.engine = await self._in_thread(lambda: recover(self._journal, self._setup))
        gc.collect()
        gc.freeze()  # what is there now stays: no use in looking at it again and again
        self._live = Live(self._journal, self.engine.book.notices, self._in_thread)
        await self._backend.open(self.observe)
        await self._hands.reconcile(self.engine)
        self._foresee_anew()
        self._serve("")
        self._runner = asyncio.create_task(self._run())

    async def finished(self) -> None:
        """Wait until it has stopped. Raises what made it stop, if that was a defect."""
        await asyncio.shield(self._runner)

    async def stop(self) -> None:
        """Write what waits and a snapshot, and let go; jobs go on running."""
        self._stopping = True
        self._news.set()
        try:
            await self._runner
        finally:
            if self._foresight is not None:
                self._foresight.forget()
            await self._hands.close()
            await self._backend.close()
            self._live.close()
            self._thread.shutdown()
            self._journal.close()

    def observe(self, seen: Observation) -> None:
        """Take what a backend saw."""
        self._seen.append(seen)
        self._news.set()

    async def submit(self, commands: Sequence[Command]) -> list[Answer]:
        """Have these done, in order; returns once that is durable.

        Raises UnavailableError while the journal cannot be written, and when too many wait; nothing
        is done then.
        """
        if not self._status.serving or self._stopping:
            raise UnavailableError(503, self._status.reason or "stopping", PROBE_EVERY)
        if self._inbox + len(commands) > MAX_INBOX:
            raise UnavailableError(429, f"{self._inbox} commands wait", 1.0)
        future: asyncio.Future[list[Answer]] = asyncio.get_running_loop().create_future()
        self._asked.append(_Asked(commands, future))
        self._inbox += len(commands)
        self._news.set()
        return await future

    async def past_job(self, job_id: str) -> JobRecord | None:
        """A job that ended too long ago for the book."""
        return await self._in_thread(lambda: self._journal.job(job_id))

    async def past_jobs(
        self, before: int, limit: int, pool: str = ""
    ) -> list[tuple[int, JobRecord]]:
        """Jobs that have ended, newest first: see `Journal.history`."""
        return await self._in_thread(lambda: self._journal.history(before, limit, pool))

    def notices(self, after: int) -> AsyncIterator[Notice]:
        """All notices after one, those to come too: none is left out, none comes twice."""
        return self._live.follow(after)

    async def _in_thread(self, do: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, do)

    async def _run(self) -> None:
        try:
            while not self._stopping or (self.ready and (self._asked or self._seen)):
                await self._wait()
                await self._once()
            if self.ready:
                await self._save_all()
        finally:
            self._serve("stopped")
            self._refuse(list(self._asked), "stopped")
            self._asked.clear()

    async def _once(self) -> None:
        asked, inputs = self._take()
        now, foresight = self.clock.now(), self._foresight
        if inputs or now >= self.engine.due:
            await self._turn(asked, inputs or [Tick()])
        elif foresight is not None and (foresight.curious or now >= foresight.due):
            await self._turn([], [])
        elif self._parts:
            await self._save_part()

    def _foresee_anew(self) -> None:
        """Have the predictors hear what the journal says, and nothing else."""
        if self._foresight is not None:
            self._foresight.forget()
            self._foresight.begin(self.engine, self.clock.now(), self.past_jobs)

    async def _save_all(self) -> None:
        """A snapshot of the end, so that the next start repeats nothing."""
        if self._since_snapshot:
            self._parts = deque(parts_of(self._journal.last, self.engine.dump()))
        while self._parts:
            await self._save_part()

    async def _wait(self) -> None:
        """Until something has come, or is due."""
        foresight = self._foresight
        curious = foresight is not None and foresight.curious
        if self._asked or self._seen or self._stopping or self._parts or curious:
            await asyncio.sleep(0)  # others want the loop too
            return
        self._news.clear()
        due = self.engine.due if foresight is None else min(self.engine.due, foresight.due)
        timer = None
        if due < inf:
            wait = self.clock.seconds_until(due)
            timer = asyncio.get_running_loop().call_later(wait, self._news.set)
        await self._news.wait()
        if timer is not None:
            timer.cancel()

    def _take(self) -> tuple[list[_Asked], list[Input]]:
        """What waits, but no more than one step should have: observations first."""
        inputs: list[Input] = []
        while self._seen and len(inputs) < MAX_BATCH:
            inputs.append(self._seen.popleft())
        asked = []
        while self._asked and (not inputs or len(inputs) + len(self._asked[0][0]) <= MAX_BATCH):
            asked.append(self._asked.popleft())
            inputs += asked[-1].commands
        return asked, inputs

    async def _turn(self, asked: list[_Asked], inputs: list[Input]) -> None:
        """One step, durable, and then in effect; none if there is nothing new to foresee either."""
        began = perf_counter()
        anchor = self.clock.anchor()
        if self._foresight is not None:
            inputs = self._foresight.before(anchor.now, inputs, self.engine.book)
            if not inputs:
                return
        step = self.engine.step(anchor.now, inputs)
        stepped = perf_counter()
        self._watch.stepped(stepped - began, inputs, step)
        part = self._parts[0] if self._parts else None
        entry = Entry(
            self._journal.last + 1, anchor, inputs, step.decisions, step.notices, step.over
        )
        try:
            await self._in_thread(lambda: self._journal.commit(entry, part))
        except JournalError as error:
            await self._fail(entry, asked, step, error)
            return
        if part is not None:
            self._parts.popleft()
        self._watch.committed(perf_counter() - stepped, len(inputs))
        self._done(entry, asked, step)

    def _done(self, entry: Entry, asked: list[_Asked], step: Step) -> None:
        """A step is durable: answer, tell, act."""
        self._status = self._status._replace(last_commit=entry.anchor.now, steps=entry.seq)
        place = len(entry.inputs) - sum(len(each.commands) for each in asked)
        for each in asked:
            self._inbox -= len(each.commands)
            if not each.answers.done():
                each.answers.set_result(step.answers[place : place + len(each.commands)])
            place += len(each.commands)
        self._live.publish(step.notices)
        self._hands.do(step.effects)
        if self._foresight is not None:
            self._foresight.after(entry.anchor.now, step)
        self._since_snapshot += len(entry.inputs)
        if self._since_snapshot >= self._snapshot_every and not self._parts:
            self._parts.extend(parts_of(entry.seq, self.engine.dump()))
            self._since_snapshot = 0

    async def _save_part(self) -> None:
        part = self._parts[0]
        try:
            await self._in_thread(lambda: self._journal.save(part))
        except JournalError:
            self._parts.clear()  # the next snapshot will do
            return
        self._parts.popleft()

    async def _fail(
        self, entry: Entry, asked: list[_Asked], step: Step, error: JournalError
    ) -> None:
        """A step is not durable: it has not happened, unless the journal says so when reopened."""
        self._serve(str(error))
        self._watch.failed(str(error))
        self._parts.clear()
        try:
            await self._in_thread(self._journal.reopen)
        except JournalError:
            reopened = False
        else:
            reopened = True
        if reopened and self._journal.last == entry.seq:
            self._done(entry, asked, step)
        else:
            self._refuse([*asked, *self._asked], str(error))
            self._asked.clear()
            kept = [each for each in entry.inputs if isinstance(each, Observation)]
            self._seen.extendleft(reversed(kept))
            await self._go_back(reopened=reopened)
        await self._until_it_writes()

    def _refuse(self, asked: Sequence[_Asked], why: str) -> None:
        for each in asked:
            self._inbox -= len(each.commands)
            if not each.answers.done():
                each.answers.set_exception(UnavailableError(503, why, PROBE_EVERY))

    async def _go_back(self, *, reopened: bool) -> None:
        """Have the engine be what the journal says again."""
        while not self._stopping:
            try:
                if not reopened:
                    await self._in_thread(self._journal.reopen)
                self.engine = await self._in_thread(lambda: recover(self._journal, self._setup))
            except JournalError:
                reopened = False
                await asyncio.sleep(PROBE_EVERY)
            else:
                self._foresee_anew()
                return

    async def _until_it_writes(self) -> None:
        while not self._stopping:
            try:
                await self._in_thread(self._journal.probe)
            except JournalError as error:
                self._status = self._status._replace(reason=str(error))
                await asyncio.sleep(PROBE_EVERY)
            else:
                self._serve("")
                return

    def _serve(self, reason: str) -> None:
        """Take commands from now on, or none for a reason."""
        serving = not reason
        self._status = self._status._replace(serving=serving, reason=reason, since=self.clock.now())
