"""The service: whatever comes from outside becomes a step, is made durable, and then takes effect.

One task takes all that waits, has the engine take one step, and writes it; only then it answers
clients, tells those who follow, and acts on the backend. While it writes, the next inputs gather.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from math import inf
from time import perf_counter

from daemon.backends.interface import Backend, BackendContext
from daemon.engine.engine import Step
from daemon.forecasts.drift import unwatched
from daemon.forecasts.forecaster import ForecastService
from daemon.journal.attachments import NoteStore
from daemon.journal.audit import records_of
from daemon.journal.dead_letters import DeadLetters
from daemon.journal.journal import Journal, JournalEntry
from daemon.journal.snapshots import Snapshots
from daemon.journal.writer import JournalWriter
from daemon.model.errors import IN_DOUBT, JournalError, UnavailableError
from daemon.model.inputs import Command, Input, Observation, Tick
from daemon.model.limits import MAX_ASKED, PROBE_EVERY, SNAPSHOT_EVERY
from daemon.model.outputs import Answer, Refused
from daemon.model.setup import Setup
from daemon.runtime.clock import Anchor, Clock
from daemon.runtime.fence import Fence, SoleLeader
from daemon.runtime.gc import GcScheduler
from daemon.runtime.health import HealthRegistry
from daemon.runtime.status import ServiceStatus
from daemon.service.durability import DurabilityBarrier
from daemon.service.effects import EffectRunner
from daemon.service.ended_jobs import answer, evicted_ids
from daemon.service.event_feed import NoticeStream
from daemon.service.inbox import Inbox, StepInputs, not_now
from daemon.service.observer import Observer, SafeObserver
from daemon.service.queries import Reader
from sia.console.errors import UserError

__all__ = ["Service", "ServiceStatus", "UnavailableError"]


UNSURE = "another daemon may have taken over; ask that one, or wait"
"""Why commands are not taken where the fence does not hold."""


class Service(Reader):
    """The daemon's heart. All of it lives on one event loop; the journal has a thread of its own.

    Attributes:
        backend: For reading what jobs wrote.
        clock: The daemon's.
        fence: Whether this daemon is the one that acts.
        parts: How its parts are.
        notes: What they keep.
        letters: What could not be delivered to webhooks.
        watch: Who hears how it works.
    """

    def __init__(
        self,
        setup: Setup,
        backend: Backend,
        journal: Journal,
        clock: Clock,
        *,
        watch: Observer | None = None,
        foresight: ForecastService | None = None,
        fence: Fence | None = None,
        snapshot_every: int = SNAPSHOT_EVERY,
    ) -> None:
        """Nothing happens before `start`; a snapshot follows so many inputs."""
        self._setup, self._keeper, self.clock = setup, JournalWriter(journal), clock
        self.watch = SafeObserver(watch or Observer())
        self.fence = fence or SoleLeader(journal.epoch)
        self.parts = HealthRegistry(clock.now)
        self.notes, self.letters = NoteStore(self._keeper), DeadLetters(self._keeper)
        self._hands = EffectRunner(backend, self.fence, self.observe)
        self.backend = backend
        self._inbox = Inbox()
        self._hand = StepInputs([], [])  # what was taken last
        self._snapshots = Snapshots(snapshot_every)
        self._foresight = foresight
        if foresight is not None:
            foresight.wake = self._inbox.news.set
            foresight.failed = self.watch.blind
        self._stopping = False
        self._settled, self._garbage = DurabilityBarrier(), GcScheduler()
        self._status = ServiceStatus(serving=False, reason="starting", since=clock.now())

    @property
    def ready(self) -> bool:
        """Whether commands are taken."""
        return self._status.serving and self.fence.holds()

    def status(self) -> ServiceStatus:
        """How the service is. O(1)."""
        status = self._status._replace(waiting=len(self._inbox))
        if status.serving and not self.fence.holds():
            return status._replace(serving=False, reason=UNSURE)
        return status

    async def start(self) -> None:
        """Go on where the journal ends, find the jobs that run, and serve.

        Raises UserError where the journal cannot be read or the backend cannot work.
        """
        try:
            self.engine = await self._keeper.recover(self._setup)
            unseen = 0 if self._foresight is None else self._foresight.predictors.unseen
            await self._keeper.configure(self.engine, self._setup, self.clock, unseen)
        except JournalError as error:
            raise UserError(str(error)) from error
        self._garbage.freeze()
        self._live = NoticeStream(self._keeper, self.engine.book.notices)
        await self.backend.open(self._house())
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
        self._inbox.shut()
        try:
            await self._runner
        finally:
            if self._foresight is not None:
                self._foresight.forget()
            await self._hands.close()
            await self.backend.close()
            self._live.close()
            self._keeper.close()

    def _house(self) -> BackendContext:
        """What the backend may use."""
        read = lambda: self.book, lambda: self.engine.core.state.pools
        return BackendContext(self.observe, self.fence, self.notes, self.submit, self.parts, *read)

    def observe(self, seen: Observation) -> None:
        """Take what a backend saw."""
        self._inbox.observe(seen)

    async def submit(self, commands: Sequence[Command], origin: str = "") -> list[Answer]:
        """Have these done, in order; returns once that is durable. `origin` is whence they come.

        Many commands take several steps. Where some of these steps become durable and others do
        not, the commands of the others are refused with a status of `NOT_NOW`.

        Raises UnavailableError while the journal cannot be written, and when too many wait; nothing
        is done then, but for what it says is in doubt (`IN_DOUBT`).
        """
        if not commands:
            return []
        if not self.ready or self._stopping:
            raise UnavailableError(503, self.status().reason or "stopping", PROBE_EVERY)
        pieces = self._inbox.ask(commands, origin)
        if len(pieces) == 1:
            return await pieces[0]
        found = await asyncio.gather(*pieces, return_exceptions=True)
        wrong = [each for each in found if isinstance(each, BaseException)]
        if len(wrong) == len(found) or not all(isinstance(e, UnavailableError) for e in wrong):
            raise wrong[0]
        answers: list[Answer] = []
        for each in found:
            if isinstance(each, UnavailableError):
                start = len(answers)
                answers += [not_now(each)] * len(commands[start : start + MAX_ASKED])
            elif not isinstance(each, BaseException):
                answers += each
        return answers

    async def _run(self) -> None:
        try:
            while not self._stopping or (self.ready and self._inbox):
                await self._wait()
                await self._once()
            if self.ready:
                await self._save_all()
        finally:
            self._serve("stopped")
            self._settled.unknown("stopped")
            self._hand.refuse(UnavailableError(503, f"stopped; {IN_DOUBT}", PROBE_EVERY))
            self._inbox.refuse_all(UnavailableError(503, "stopped", PROBE_EVERY))

    async def _wait(self) -> None:
        """Until something has come, or is due."""
        if self._inbox or self._stopping or self._snapshots or self._curious:
            await asyncio.sleep(0)  # others want the loop too
            return
        news, timer = self._inbox.news, None
        news.clear()
        self._garbage.tidy()
        due = min(self.engine.due, inf if self._foresight is None else self._foresight.due)
        if due < inf:
            timer = asyncio.get_running_loop().call_later(self.clock.seconds_until(due), news.set)
        await news.wait()
        if timer is not None:
            timer.cancel()

    @property
    def _curious(self) -> bool:
        """Whether something else may be foreseen than was, or by others."""
        foresight = self._foresight
        return foresight is not None and (
            foresight.wants or foresight.curious or self.clock.now() >= foresight.due
        )

    async def _once(self) -> None:
        """One turn, if there is anything to do."""
        if self._foresight is not None and self._foresight.wants:
            self._foresight.begin_anew(self.engine, self.clock.now(), self.past_jobs)
        batch = self._hand = self._inbox.take()
        if batch or self._curious or self.clock.now() >= self.engine.due:
            await self._turn(batch)
        elif self._snapshots:
            await self._save_part()

    async def _turn(self, batch: StepInputs) -> None:
        """One step, durable, and then in effect; none if nothing has come of it."""
        try:
            await self._know(batch)
            began, anchor = perf_counter(), self.clock.anchor()
            inputs = self._inputs(batch, anchor.now)
            if not inputs:
                batch.answer([])
                return
            self._settled.ahead()
            step = self.engine.step(anchor.now, inputs)
        except JournalError as error:
            await self._cannot_read(batch, str(error))
            return
        except Exception as error:  # noqa: BLE001  a defect: of one client, if it can be helped
            await self._isolate(batch, error)
            return
        self.watch.stepped(perf_counter() - began, inputs, step)
        await self._commit(batch, step, anchor, inputs)

    async def _know(self, batch: StepInputs) -> None:
        """Answer what is asked of jobs that only the journal knows."""
        ids = evicted_ids(batch.asked, self.engine.book)
        if ids:
            answer(batch.asked, await self._keeper.jobs(ids))

    def _inputs(self, batch: StepInputs, now: float) -> list[Input]:
        """What a step is made of; nothing where none is due."""
        inputs: list[Input] = [*batch.inputs] or ([Tick()] if self.engine.due <= now else [])
        if self._foresight is not None:
            inputs = self._foresight.before(now, inputs, self.engine.book)
        return inputs

    async def _isolate(self, batch: StepInputs, error: Exception) -> None:
        """A step went wrong by a defect of ours: take it apart, and leave out what breaks it."""
        alone = batch.alone()
        if not alone:
            raise error
        if not await self._go_back():
            self._put_off(batch, self._status.reason)
            return
        if len(alone) > 1:
            for each in alone:
                if self.ready:
                    await self._turn(each)
                else:
                    self._put_off(each, self.status().reason)
            return
        self.watch.broke(repr(error), batch.inputs)
        why = f"a defect of the daemon: {error!r}"
        wrong = Refused(500, "defect", why, "report it; nothing was done")
        batch.answer([wrong] * len(batch))

    async def _commit(
        self, batch: StepInputs, step: Step, anchor: Anchor, inputs: Sequence[Input]
    ) -> None:
        began, part = perf_counter(), self._snapshots.next
        seq = self._keeper.last + 1
        records = records_of(batch.commands, step.answers, step.traces)
        audit = self._keeper.trail.rows(anchor.now, records)
        entry = JournalEntry.of(seq, anchor, inputs, step, audit)
        try:
            await self._keeper.commit(entry, part)
        except JournalError as error:
            await self._fail(batch, step, entry, str(error))
            return
        except Exception as error:  # noqa: BLE001  it is no JSON, or a job is over twice: a defect
            self._snapshots.drop()
            await self._isolate(batch, error)
            return
        if part is not None:
            self._snapshots.written()
        self.watch.committed(perf_counter() - began, len(inputs))
        self._done(batch, step, entry)
        if self._snapshots.due:
            await self._snapshots.take(seq, self.engine)
            self._garbage.freeze()  # jobs that came since, too: they go when nobody refers to them

    def _done(self, batch: StepInputs, step: Step, entry: JournalEntry) -> None:
        """A step is durable: answer, tell, act."""
        self._status = self._status._replace(last_commit=entry.anchor.now, steps=entry.seq)
        self._settled.reached()
        batch.answer(step.answers)
        self._live.publish(step.notices)
        self._hands.do(step.effects)
        if self._foresight is not None:
            self._foresight.after(entry.anchor.now, step)
        self._snapshots.stepped(len(entry.inputs))
        self.engine.do_idle_work()

    def _foresee_anew(self) -> None:
        """Have the predictors hear what the journal says, and nothing else."""
        if self._foresight is None:
            self._inbox.put_back(unwatched(self.engine.book))
        else:
            self._foresight.forget()
            self._foresight.begin_anew(self.engine, self.clock.now(), self.past_jobs)

    async def _save_all(self) -> None:
        """A snapshot of the end, so that the next start repeats nothing."""
        await self._snapshots.take(self._keeper.last, self.engine)
        while self._snapshots:
            await self._save_part()

    async def _save_part(self) -> None:
        part = self._snapshots.next
        assert part is not None, "nothing is left to be written"
        try:
            await self._keeper.save(part)
        except JournalError:
            self._snapshots.drop()
        else:
            self._snapshots.written()

    async def _fail(self, batch: StepInputs, step: Step, entry: JournalEntry, why: str) -> None:
        """A step may not be durable: it has not happened, unless the reopened journal has it."""
        self._serve(why)
        self.watch.failed(why)
        self._snapshots.drop()
        self._inbox.refuse_all(UnavailableError(503, why, PROBE_EVERY))
        if not await self._reopens(batch, why):
            return
        if self._keeper.last == entry.seq:
            self._done(batch, step, entry)
        else:
            self._put_off(batch, why)
            await self._go_back()
        await self._until_it_writes()

    async def _reopens(self, batch: StepInputs, why: str) -> bool:
        """Whether it is known what is durable; it is not where we are to stop before.

        Clients do not wait for it: they are told at once that nobody knows.
        """
        while not await self._keeper.reopens():
            batch.refuse(UnavailableError(503, f"{why}; {IN_DOUBT}", PROBE_EVERY))
            self._settled.unknown(why)
            if self._stopping:
                return False
            await asyncio.sleep(PROBE_EVERY)
        return True

    def _put_off(self, batch: StepInputs, why: str) -> None:
        """Nothing was made of it: clients come again, and what was seen is taken again."""
        batch.refuse(UnavailableError(503, why, PROBE_EVERY))
        self._inbox.put_back(batch.seen)

    async def _cannot_read(self, batch: StepInputs, why: str) -> None:
        """Nothing was done: what is to be done is for later."""
        self._serve(why)
        self.watch.failed(why)
        self._put_off(batch, why)
        await self._keeper.reopens()
        await self._until_it_writes()

    async def _go_back(self) -> bool:
        """Have the engine be what the journal says again; not where we are to stop before.

        There are no more turns then: nobody knows what the engine is.
        """
        while True:
            try:
                self.engine = await self._keeper.recover(self._setup)
            except JournalError as error:
                self._serve(str(error))
                self._settled.unknown(str(error))
            else:
                self._garbage.freeze()
                self._settled.reached()
                self._foresee_anew()
                return True
            if self._stopping:
                return False
            await asyncio.sleep(PROBE_EVERY)
            await self._keeper.reopens()

    async def _until_it_writes(self) -> None:
        """Take no commands until the journal can be written again."""
        while not self._stopping:
            self._serve(await self._keeper.trouble())
            if self.ready:
                return
            await asyncio.sleep(PROBE_EVERY)

    def _serve(self, reason: str) -> None:
        """Take commands from now on, or none for a reason."""
        if not self._stopping and reason != "stopped":
            why, _, mend = reason.rpartition("; ")
            self.parts.say("database", why or mend, mend if why else "")
        serving = not reason
        since = self._status.since if serving is self._status.serving else self.clock.now()
        self._status = self._status._replace(serving=serving, reason=reason, since=since)
