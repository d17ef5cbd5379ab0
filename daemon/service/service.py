"""The service: collects inputs, makes a step of them, commits it, then lets it take effect.

One task takes the inputs that wait, makes one step of the engine and writes it to the journal. Only
when the step is durable does the service answer clients, publish notices and act on the backend.
While a step is written, the next inputs gather.
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
from daemon.journal.attachments import DeadLetters, NoteStore
from daemon.journal.audit import records_of
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
from daemon.runtime.health import HealthRegistry, ServiceStatus
from daemon.runtime.job_token import ReportVariables
from daemon.service.durability import DurabilityBarrier
from daemon.service.effects import EffectRunner
from daemon.service.ended_jobs import answer, evicted_ids
from daemon.service.event_feed import NoticeStream
from daemon.service.inbox import Inbox, StepInputs, not_now
from daemon.service.observer import Observer, SafeObserver
from daemon.service.queries import Reader
from daemon.service.solving.runner import SolverRunner
from sia.console.errors import UserError
from sia.core.guard import PolicyFailedError
from sia.decisions import ProposalRefused, SolveProgram

__all__ = ["Service", "ServiceStatus", "UnavailableError"]


MEND = (
    "the pass is made again at the next event or tick; jobs may start late until the policy is "
    "repaired or daemon.policy names another one"
)

UNSURE = "another daemon may be the leader; ask that one, or wait"
"""Reason for refusing commands while the fence does not hold."""


class Service(Reader):
    """Runs the engine: turns inputs into steps, and steps into effects.

    The service lives on one event loop; the journal has a thread of its own.

    Attributes:
        backend: The backend, for reading logs of jobs.
        clock: The daemon's clock.
        fence: Whether this daemon is the leader.
        parts: The health of the daemon's components.
        notes: Values that components store in the journal.
        letters: Notices that could not be delivered to webhooks.
        solver: The name of the solver of the policy's programs; None for the best one.
        watch: Receives reports about the service's work.
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
        reports: ReportVariables | None = None,
        solver: str | None = None,
    ) -> None:
        """Create the service; `start` starts it.

        A snapshot is taken every `snapshot_every` inputs. `reports` are the variables with which
        jobs can report their progress. `solver` names the solver of the policy's programs; None for
        the best one that is installed.
        """
        self._setup, self._writer, self.clock = setup, JournalWriter(journal), clock
        self.watch = SafeObserver(watch or Observer())
        self.fence = fence or SoleLeader(journal.epoch)
        self.parts = HealthRegistry(clock.now)
        self.notes, self.letters = NoteStore(self._writer), DeadLetters(self._writer)
        self._effects = EffectRunner(backend, self.fence, self.observe)
        self._policy_failed = False  # whether it failed in the latest pass
        self.solver = solver
        self._solver = SolverRunner(self.observe, self.parts, solver)
        self._shadow_solver = SolverRunner(self.observe, self.parts, solver, shadow=True)
        self._shadow_asked: SolveProgram | None = None
        self.backend, self._reports = backend, reports or ReportVariables()
        self._inbox = Inbox()
        self._batch = StepInputs([], [])  # the inputs of the current step
        self._snapshots = Snapshots(snapshot_every)
        self._foresight = foresight
        if foresight is not None:
            foresight.wake = self._inbox.news.set
            foresight.failed = self.watch.blind
        self._stopping = False
        self._durability, self._garbage = DurabilityBarrier(), GcScheduler()
        self._status = ServiceStatus(serving=False, reason="starting", since=clock.now())

    @property
    def ready(self) -> bool:
        """Whether the service accepts commands."""
        return self._status.serving and self.fence.holds()

    def status(self) -> ServiceStatus:
        """Return the service's status. O(1)."""
        status = self._status._replace(waiting=len(self._inbox))
        if status.serving and not self.fence.holds():
            return status._replace(serving=False, reason=UNSURE)
        return status

    async def start(self) -> None:
        """Recover from the journal, reconcile the backend, and serve.

        Raises UserError if the journal cannot be read or the backend cannot work.
        """
        try:
            self.engine = await self._writer.recover(self._setup)
            unseen = 0 if self._foresight is None else self._foresight.predictors.unseen
            await self._writer.configure(self.engine, self._setup, self.clock, unseen)
        except JournalError as error:
            raise UserError(str(error)) from error
        self._garbage.freeze()
        self._event_feed = NoticeStream(self._writer, self.engine.book.notices)
        await self.backend.open(self._backend_context())
        await self._effects.reconcile(self.engine)
        if self.book.solving is not None:  # the journal has no answer to it
            self._solver.ask(self.book.solving)
        self._solve_for_shadow()
        self._restart_forecasts()
        self._serve("")
        self._runner = asyncio.create_task(self._run())

    async def finished(self) -> None:
        """Wait until the service has stopped. Raises the exception of a defect that stopped it."""
        await asyncio.shield(self._runner)

    async def stop(self) -> None:
        """Commit the waiting inputs, write a snapshot and stop; jobs continue to run."""
        self._stopping = True
        self._inbox.shut()
        try:
            await self._runner
        finally:
            if self._foresight is not None:
                self._foresight.forget()
            await self._solver.close()
            await self._shadow_solver.close()
            await self._effects.close()
            await self.backend.close()
            self._event_feed.close()
            self._writer.close()

    def _backend_context(self) -> BackendContext:
        """Return what the backend may use of the service."""
        read = lambda: self.book, lambda: self.engine.core.state.pools
        return BackendContext(
            self.observe, self.fence, self.notes, self.submit, self.parts, *read, self._reports
        )

    def observe(self, seen: Observation) -> None:
        """Queue an observation of the backend for the next step."""
        self._inbox.observe(seen)

    async def submit(self, commands: Sequence[Command], origin: str = "") -> list[Answer]:
        """Carry out commands in order; return their answers once they are durable.

        `origin` is the client's address. Many commands take several steps. If only some of these
        steps become durable, the commands of the others are refused with a status of `NOT_NOW`.

        Raises UnavailableError while the journal cannot be written, and if too many commands wait.
        Nothing was done then, unless the message ends with `IN_DOUBT`.
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
                await self._work()
            if self.ready:
                await self._save_all()
        finally:
            self._serve("stopped")
            self._durability.step_in_doubt("stopped")
            self._batch.refuse(UnavailableError(503, f"stopped; {IN_DOUBT}", PROBE_EVERY))
            self._inbox.refuse_all(UnavailableError(503, "stopped", PROBE_EVERY))

    async def _wait(self) -> None:
        """Wait for an input or a due time."""
        if self._inbox or self._stopping or self._snapshots or self._forecasts_due:
            await asyncio.sleep(0)  # let other tasks run
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
    def _forecasts_due(self) -> bool:
        """Whether the forecasts may have changed."""
        foresight = self._foresight
        return foresight is not None and (
            foresight.wants or foresight.curious or self.clock.now() >= foresight.due
        )

    async def _work(self) -> None:
        """Make a step or write a part of a snapshot, if there is anything to do."""
        if self._foresight is not None and self._foresight.wants:
            self._foresight.begin_anew(self.engine, self.clock.now(), self.observed_jobs)
        batch = self._batch = self._inbox.take()
        if batch or self._forecasts_due or self.clock.now() >= self.engine.due:
            await self._step(batch)
        elif self._snapshots:
            await self._save_part()

    async def _step(self, batch: StepInputs) -> None:
        """Make a step, commit it and let it take effect; no step if there is no input."""
        try:
            await self._answer_evicted(batch)
            began, anchor = perf_counter(), self.clock.anchor()
            inputs = self._inputs(batch, anchor.now)
            if not inputs:
                batch.answer([])
                return
            self._durability.step_pending()
            step = self.engine.step(anchor.now, inputs)
        except JournalError as error:
            await self._read_failed(batch, str(error))
            return
        except Exception as error:  # noqa: BLE001  a defect should fail one client only
            await self._isolate(batch, error)
            return
        self.watch.stepped(perf_counter() - began, inputs, step)
        await self._commit(batch, step, anchor, inputs)

    async def _answer_evicted(self, batch: StepInputs) -> None:
        """Answer commands for jobs that only the journal has."""
        ids = evicted_ids(batch.asked, self.engine.book)
        if ids:
            answer(batch.asked, await self._writer.jobs(ids))

    def _inputs(self, batch: StepInputs, now: float) -> list[Input]:
        """Return the inputs of the next step; none if no step is due."""
        inputs: list[Input] = [*batch.inputs] or ([Tick()] if self.engine.due <= now else [])
        if self._foresight is not None:
            inputs = self._foresight.before(now, inputs, self.engine.book)
        return inputs

    async def _isolate(self, batch: StepInputs, error: Exception) -> None:
        """Handle a defect that broke a step.

        The inputs are retried one by one, and the input that breaks its step is dropped.
        """
        alone = batch.alone()
        if not alone:
            raise error
        if not await self._recover():
            self._put_back(batch, self._status.reason)
            return
        if len(alone) > 1:
            for each in alone:
                if self.ready:
                    await self._step(each)
                else:
                    self._put_back(each, self.status().reason)
            return
        self.watch.broke(repr(error), batch.inputs)
        why = f"a defect of the daemon: {error!r}"
        wrong = Refused(500, "defect", why, "report the defect; nothing was done")
        batch.answer([wrong] * len(batch))

    async def _commit(
        self, batch: StepInputs, step: Step, anchor: Anchor, inputs: Sequence[Input]
    ) -> None:
        began, part = perf_counter(), self._snapshots.next
        seq = self._writer.last + 1
        records = records_of(batch.commands, step.answers, step.traces)
        audit = self._writer.trail.rows(anchor.now, records)
        entry = JournalEntry.of(seq, anchor, inputs, step, audit)
        try:
            await self._writer.commit(entry, part)
        except JournalError as error:
            await self._commit_failed(batch, step, entry, str(error))
            return
        except Exception as error:  # noqa: BLE001  a defect, such as a value that is no JSON
            self._snapshots.drop()
            await self._isolate(batch, error)
            return
        if part is not None:
            self._snapshots.written()
        self.watch.committed(perf_counter() - began, len(inputs))
        self._take_effect(batch, step, entry)
        if self._snapshots.due:
            await self._snapshot(seq)
            self._garbage.freeze()  # include the jobs that were submitted since the last freeze

    async def _snapshot(self, seq: int) -> None:
        """Take a snapshot; if the policy fails meanwhile, a restart repeats more steps instead."""
        try:
            await self._snapshots.take(seq, self.engine)
        except PolicyFailedError as error:
            self._policy_failed = True
            self.parts.say("policy", f"{self.book.setup.policy}: {error}", MEND)

    def _take_effect(self, batch: StepInputs, step: Step, entry: JournalEntry) -> None:
        """Let a durable step take effect: answer clients, publish notices, act on the backend."""
        self._status = self._status._replace(last_commit=entry.anchor.now, steps=entry.seq)
        self._durability.step_durable()
        batch.answer(step.answers)
        self._event_feed.publish(step.notices)
        self._effects.do(step.effects)
        failure = ""
        for decision in step.decisions:
            if type(decision) is SolveProgram:
                self._solver.ask(decision)
            elif type(decision) is ProposalRefused and not decision.job_id:
                failure = f"{self.book.setup.policy}: {decision.why}"
        if failure or (self._policy_failed and step.events):
            self._policy_failed = bool(failure)
            self.parts.say("policy", failure, MEND if failure else "")
        self._solve_for_shadow()
        if self._foresight is not None:
            self._foresight.after(entry.anchor.now, step)
        self._snapshots.stepped(len(entry.inputs))
        self.engine.do_idle_work()

    def _solve_for_shadow(self) -> None:
        """Have the shadow core's newest program solved."""
        if self.book.shadow is None or not self.engine.core.policy.needs.solver:
            return
        asked = self.engine.shadow_request
        if asked is not None and asked is not self._shadow_asked:
            self._shadow_solver.ask(asked)
        self._shadow_asked = asked

    def _restart_forecasts(self) -> None:
        """Restart the predictors with the journal's state."""
        if self._foresight is None:
            self._inbox.put_back(unwatched(self.engine.book))
        else:
            self._foresight.forget()
            self._foresight.begin_anew(self.engine, self.clock.now(), self.observed_jobs)

    async def _save_all(self) -> None:
        """Write a last snapshot, so that the next start replays nothing."""
        await self._snapshot(self._writer.last)
        while self._snapshots:
            await self._save_part()

    async def _save_part(self) -> None:
        part = self._snapshots.next
        assert part is not None, "nothing is left to be written"
        try:
            await self._writer.save(part)
        except JournalError:
            self._snapshots.drop()
        else:
            self._snapshots.written()

    async def _commit_failed(
        self, batch: StepInputs, step: Step, entry: JournalEntry, why: str
    ) -> None:
        """Handle a failed commit: the step counts only if the reopened journal has it."""
        self._serve(why)
        self.watch.failed(why)
        self._snapshots.drop()
        self._inbox.refuse_all(UnavailableError(503, why, PROBE_EVERY))
        if not await self._reopen(batch, why):
            return
        if self._writer.last == entry.seq:
            self._take_effect(batch, step, entry)
        else:
            self._put_back(batch, why)
            await self._recover()
        await self._until_writable()

    async def _reopen(self, batch: StepInputs, why: str) -> bool:
        """Reopen the journal; return False if the service stops before that succeeds.

        Clients do not wait for it: their requests fail at once with an unknown outcome.
        """
        while not await self._writer.reopens():
            batch.refuse(UnavailableError(503, f"{why}; {IN_DOUBT}", PROBE_EVERY))
            self._durability.step_in_doubt(why)
            if self._stopping:
                return False
            await asyncio.sleep(PROBE_EVERY)
        return True

    def _put_back(self, batch: StepInputs, why: str) -> None:
        """Fail the requests of a batch that made no step, and put its observations back."""
        batch.refuse(UnavailableError(503, why, PROBE_EVERY))
        self._inbox.put_back(batch.seen)

    async def _read_failed(self, batch: StepInputs, why: str) -> None:
        """Handle a journal that cannot be read: nothing was done, and the batch is put back."""
        self._serve(why)
        self.watch.failed(why)
        self._put_back(batch, why)
        await self._writer.reopens()
        await self._until_writable()

    async def _recover(self) -> bool:
        """Recover the engine from the journal.

        Return False if the service stops before that succeeds. Then no more steps are made, because
        the engine's state is unknown.
        """
        while True:
            try:
                self.engine = await self._writer.recover(self._setup)
            except JournalError as error:
                self._serve(str(error))
                self._durability.step_in_doubt(str(error))
            else:
                self._garbage.freeze()
                self._durability.step_durable()
                self._restart_forecasts()
                return True
            if self._stopping:
                return False
            await asyncio.sleep(PROBE_EVERY)
            await self._writer.reopens()

    async def _until_writable(self) -> None:
        """Wait until the journal can be written again; commands are refused until then."""
        while not self._stopping:
            self._serve(await self._writer.trouble())
            if self.ready:
                return
            await asyncio.sleep(PROBE_EVERY)

    def _serve(self, reason: str) -> None:
        """Accept commands from now on, or refuse them for a reason."""
        if not self._stopping and reason != "stopped":
            why, _, mend = reason.rpartition("; ")
            self.parts.say("database", why or mend, mend if why else "")
        serving = not reason
        since = self._status.since if serving is self._status.serving else self.clock.now()
        self._status = self._status._replace(serving=serving, reason=reason, since=since)
