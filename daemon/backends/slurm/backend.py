"""Slurm backend: pools are partitions; jobs are submitted held, and released when they start.

No job runs twice: a job is submitted held, and released only after its Slurm job id is durable. Any
other submission of the same attempt was never released, and is cancelled. One task does all work in
turns. Slurm may become unreachable during any turn.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Literal

from daemon.backends.attempt_names import AttemptKey, AttemptNotes
from daemon.backends.interface import BackendContext, Expected, StopKind
from daemon.backends.slurm.actions import SlurmActions
from daemon.backends.slurm.adopt import SlurmAdopter
from daemon.backends.slurm.attempts import RUNS, SlurmAttempt, SlurmView, end_of, gone
from daemon.backends.slurm.config import SlurmConfig
from daemon.backends.slurm.discovery import SlurmInventory
from daemon.backends.slurm.interface import Slurm, SlurmError, SlurmRefusedError
from daemon.backends.slurm.nodes import SlurmNodeWatch
from daemon.backends.slurm.ownership import JobOwnership
from daemon.backends.slurm.partial_listing import LeastRecentlyPolled, look_at
from daemon.backends.slurm.schema import SlurmJob
from daemon.config.config import Ability
from daemon.model.errors import JournalError, UnavailableError
from daemon.model.inputs import Ended, Observation, Requeued, Started, Stopped, Stray
from daemon.model.job import JobPhase
from daemon.model.outputs import PreemptEffect, StartEffect
from daemon.runtime.logs import log
from sia.model import Nodes as Gpus

NAME = "slurm/name"
"""Key of the note with this daemon's name in Slurm."""

UNREAD = "backend jobs"
"""Health component for Slurm jobs that cannot be parsed."""

TRIES = 3
"""Number of releases of a job that Slurm still shows as held, after which the hold counts as a
user's. Slurm's response does not cover each array task, and a crashed slurmctld forgets the last 5
s."""

COSTLY = 0.5
"""Maximum seconds for a full listing. If it takes longer, a few jobs are queried one by one
instead."""

REST = 50.0
"""Pause between slow full listings, as a multiple of their duration: they take 2 % of the time."""

BUG = "the daemon retries; if this persists, report it with the daemon's log"


class SlurmBackend:
    """The Slurm backend; see the module.

    Args:
        config: access to Slurm, partitions and poll interval.
        slurm: client for Slurm.
        found: inventory at the start of the daemon.
    """

    can: frozenset[Ability] = SlurmConfig.can

    def __init__(self, config: SlurmConfig, slurm: Slurm, found: SlurmInventory) -> None:
        """Create the backend without contacting Slurm."""
        self._config, self._slurm, self._found = config, slurm, found
        if config.folder:
            self.can |= {"logs"}
        self._runs: dict[AttemptKey, SlurmAttempt] = {}
        self._strays: dict[AttemptKey, str] = {}
        self._wake = asyncio.Event()
        self._view: SlurmView | None = None
        self._all_due = 0.0
        self._in_turn = LeastRecentlyPolled()
        self._follower: asyncio.Task[None] | None = None
        self._context: BackendContext

    @property
    def gpus(self) -> Gpus | None:
        """GPUs of the nodes in the partitions."""
        return self._found.gpus

    @property
    def areas(self) -> dict[str, tuple[str, ...]]:
        """Nodes of each pool's partition."""
        return self._found.areas

    async def open(self, context: BackendContext) -> None:
        """Load the stored state; does not wait for Slurm."""
        self._context = context
        if self._found.away[0]:
            context.parts.say("backend", *self._found.away)
        marks = await context.notes.read("slurm/")
        name = marks.get(NAME)
        if name is None:
            name = secrets.token_hex(4)
            await context.notes.write({NAME: name})
        self._own = JobOwnership(context, name, marks, self._config.user)
        self._marks = AttemptNotes(context, RUNS, marks)
        self._acts = SlurmActions(self._config, self._slurm, context, self._own, self._marks)
        self._adopter = SlurmAdopter(self._config, self._slurm, context)
        self._nodes = SlurmNodeWatch(self._config, self._slurm, context, self._found)

    async def reconcile(self, expected: Iterable[Expected]) -> list[StartEffect]:
        """Search Slurm for these attempts once it is reachable; returns none to start again."""
        for each in expected:
            run = SlurmAttempt(each.order, searched=False, started=each.started is not None)
            mark = self._marks.get(run.key)
            if mark is not None and not run.adopted:
                run.named(mark)
            record = self._context.book().jobs.get(run.order.job)
            if record is not None and record.phase is JobPhase.STOPPING:
                # Before the order is repeated, a job that has left its nodes must not be released.
                run.stop = True
                run.preempt = PreemptEffect(*run.key, grace=0.0, checkpoint=record.spec.checkpoint)
                run.stopped = 0.0  # assume so: if it still runs, it is told (again)
            self._runs[run.key] = run
        self._follower = asyncio.create_task(self._follow())
        return []

    async def start(self, order: StartEffect) -> None:
        """Queue an attempt to be submitted or released in the next turn."""
        if (order.job, order.attempt) in self._runs:
            return
        run = self._runs[order.job, order.attempt] = SlurmAttempt(order, searched=True, fresh=True)
        job = self._view.jobs.get(run.ref) if self._view is not None and run.ref else None
        run.restarts = job.restarts if job is not None else 0
        self._wake.set()

    async def stop(self, job: str, attempt: int, kind: StopKind) -> None:
        """Queue a cancellation; warnings are left to the job's own `--signal`."""
        run = self._runs.get((job, attempt))
        if kind == "end" and run is not None:
            if run.preempt is not None:  # the job will not start again
                run.preempt, run.stopped = None, None
            run.stop = True
        elif kind == "end" and (job, attempt) in self._strays:
            self._acts.unwanted.add(self._strays[job, attempt])
        self._wake.set()

    async def preempt(self, order: PreemptEffect) -> None:
        """Queue a stop, after which the job starts again later."""
        run = self._runs.get((order.job, order.attempt))
        if run is not None and (run.preempt is not None or not run.stop):
            run.stop, run.preempt = True, order
            self._wake.set()

    async def close(self) -> None:
        """Stop the turns; jobs continue."""
        if self._follower is not None:
            self._follower.cancel()
            with suppress(asyncio.CancelledError):
                await self._follower
        await self._slurm.close()

    def log(self, job: str, attempt: int, stream: Literal["stdout", "stderr"]) -> Path | None:
        """Return a job's output file, if a folder is configured."""
        path = self._acts.output(job, attempt, stream) if self._config.folder else None
        return path if path is not None and path.exists() else None

    async def _follow(self) -> None:
        loop = asyncio.get_running_loop()
        due = 0.0
        while True:
            looks = loop.time() >= due
            try:
                if looks:
                    due = loop.time() + self._config.poll
                await self._turn(looks=looks)
            except SlurmError as error:
                self._context.parts.say("backend", error.why, error.mend)
                self._view, due = None, loop.time() + self._config.poll
                self._look_first()
                await asyncio.sleep(self._config.poll)
            except (JournalError, UnavailableError):
                await asyncio.sleep(self._config.poll)  # the journal reports its own health
            except Exception as error:  # noqa: BLE001  a defect must not stop starts and ends
                self._context.parts.say("backend", f"polling Slurm failed: {error!r}", BUG)
                log().exception("polling Slurm failed")
                await asyncio.sleep(self._config.poll)
            with suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, due - loop.time())):
                    await self._wake.wait()
            self._wake.clear()

    def _look_first(self) -> None:
        """Distrust all job numbers after Slurm was unreachable: they may have been reused."""
        for run in self._runs.values():
            run.searched, run.seen = run.searched and run.released is not None, False
            run.free = False
        self._acts.unwanted.clear()
        self._strays.clear()  # those that still exist are found again

    async def _turn(self, *, looks: bool) -> None:
        """Execute due actions, then poll Slurm and report changes."""
        await self._acts.do(self._runs)
        if not looks:
            return
        view = await self._look()
        for run in list(self._runs.values()):
            if run.ref is None or view.shows(run.ref):
                await self._go_on(run, view)
        self._sweep(view)
        await self._adopter.look(view, self._runs)
        await self._nodes.look()
        self._say_unread(view)
        await self._marks.forget(self._runs)

    async def _look(self) -> SlurmView:
        loop = asyncio.get_running_loop()
        began = loop.time()
        if self._view is not None and began < self._all_due:
            runs = dict.fromkeys(run.ref for run in self._runs.values() if run.ref)
            refs = self._in_turn.next(runs, self._adopter.waiting)
            self._view = await look_at(self._slurm, self._view, refs, began)
            return self._view
        jobs = await self._slurm.jobs(changed=self._view is not None)
        if jobs is None and self._view is not None:
            self._view = self._view._replace(began=began, asked=None)
            return self._view
        took = loop.time() - began
        if self._slurm.single and took > COSTLY:
            self._all_due = loop.time() + REST * took
        self._view = SlurmView.of(jobs or [], began)
        return self._view

    def _say_unread(self, view: SlurmView) -> None:
        """Report jobs that cannot be parsed."""
        if not view.unread:
            self._context.parts.say(UNREAD)
            return
        some = ", ".join(map(str, sorted(view.unread)[:8]))
        why = f"{len(view.unread)} Slurm jobs cannot be parsed: {some}"
        self._context.parts.say(UNREAD, why, "they are ignored; report this with Slurm's version")

    async def _go_on(self, run: SlurmAttempt, view: SlurmView) -> None:
        """Report changes of an attempt since the last look."""
        if run.ref is None:
            self._seek(run, view)
            return
        job = view.jobs.get(run.ref)
        if job is not None and not self._own.is_of(run, job):
            self._gone(run, view)  # Slurm lost its state and reuses numbers
            return
        if job is None:
            if not await self._slurm.job(run.ref):
                self._gone(run, view)
            return
        if not run.seen:
            run.seen, run.submitted = True, int(job.submitted)
            self._wake.set()
        if "COMPLETING" not in job.flags:
            await self._shown(run, job, view)

    async def _shown(self, run: SlurmAttempt, job: SlurmJob, view: SlurmView) -> None:
        over = end_of(run, job)
        if over is not None:
            await self._over(run, job, over)
            return
        run.alive = view.began
        if job.state in ("RUNNING", "SUSPENDED"):
            self._runs_now(run, job.restarts)
            if run.stopped is not None and view.began > run.stopped:
                run.stopped = None  # requeued before it ran, or Slurm lost the stop
                self._wake.set()
        elif job.state == "PENDING" and run.preempt is not None and run.adopted:
            await self._left(run, job)
        elif job.state == "PENDING" and run.released is not None and view.began > run.released:
            await self._waits(run, job)
        elif job.state == "PENDING" and not run.searched:
            run.restarts, run.searched = job.restarts, True
            self._wake.set()

    async def _over(self, run: SlurmAttempt, job: SlurmJob, over: Observation) -> None:
        """Report how an attempt has ended; if it was told to stop, start the job again later.

        A job that has finished, or that its owner has cancelled, does not start again.
        """
        finished = isinstance(over, Ended) and over.code == 0
        if run.preempt is None or finished:
            self._done(run, over)
        elif not run.adopted:
            theirs = job.state == "CANCELLED" and run.stopped is None
            if isinstance(over, Ended) and not theirs:
                over = Stopped(*run.key, "" if job.state == "CANCELLED" else over.why)
            self._done(run, over)
        elif job.state == "CANCELLED" or not self._slurm.requeues:
            self._done(run, over)
        elif self._context.fence.holds():
            assert run.ref is not None, "it has ended in Slurm"
            try:
                await self._slurm.requeue(run.ref, ended=True)  # the next look shows it pending
            except SlurmRefusedError:
                self._done(run, over)

    async def _left(self, run: SlurmAttempt, job: SlurmJob) -> None:
        """Report an adopted job that has left its nodes and is pending again.

        It is held as by an operator, because its owner could release a hold of `requeuehold`.
        """
        assert run.ref is not None, "adopted jobs have a Slurm job id"
        if not self._context.fence.holds():
            return
        if job.reason != "JobHeldAdmin":
            await self._hold(run.ref)
        if job.held:
            self._done(run, Stopped(*run.key))

    def _gone(self, run: SlurmAttempt, view: SlurmView) -> None:
        """Handle a job that Slurm no longer knows: resubmit it if it was never released."""
        if run.fresh and run.released is None and not run.adopted:
            run.ref, run.searched = None, False
        else:
            self._done(run, gone(run, view.began))

    def _runs_now(self, run: SlurmAttempt, restarts: int) -> None:
        run.searched, run.released, run.restarts = True, run.released or 0.0, restarts
        if not run.reported:
            run.reported = True
            self._context.sink(Started(*run.key))

    def _seek(self, run: SlurmAttempt, view: SlurmView) -> None:
        """Search for a submission of the attempt by an earlier daemon, to release that one."""
        if run.searched:
            return
        run.searched = True
        same = self._own.keys(view).get(run.key)
        if same:
            self._acts.found[run.key] = min(same, key=int)
        else:
            self._acts.found.pop(run.key, None)  # Slurm lost it: the number may be reused
            if run.stop:
                self._done(run, Ended(*run.key, why="the job was never started"))
        self._wake.set()

    async def _waits(self, run: SlurmAttempt, job: SlurmJob) -> None:
        """Handle a released job that is pending: waiting for Slurm, held, or requeued."""
        assert run.ref is not None, "a released job has a Slurm job id"
        if run.stop:
            run.stopped = None  # requeued by Slurm after the cancellation: cancel it again
            self._wake.set()
        elif job.held and self._forgot(run, job):
            run.released, run.tries = None, run.tries + 1
            self._wake.set()
        elif job.held or job.restarts > run.restarts:
            if not self._context.fence.holds():
                return
            why = f"held in Slurm ({job.reason})" if job.held else "requeued by Slurm"
            if not run.adopted:
                self._acts.unwanted.add(run.ref)
            elif not job.held:
                await self._hold(run.ref)
            self._done(run, Requeued(*run.key, why, job.held))
        else:
            run.free = True

    def _forgot(self, run: SlurmAttempt, job: SlurmJob) -> bool:
        """Return whether the hold means that Slurm lost the release, as far as was observed."""
        same = not run.reported and job.restarts == run.restarts
        return same and not run.free and run.tries < TRIES and not self._heard(run, job)

    def _heard(self, run: SlurmAttempt, job: SlurmJob) -> bool:
        """Return whether the job moved to the release's partition and nodes (same request)."""
        if run.before is None or not self._slurm.single:
            return False
        place = self._acts.place(run.order)
        there = place.partition, frozenset(node for node, _ in place.nodes)
        return job.where == there != run.before

    async def _hold(self, ref: str) -> None:
        try:
            await self._slurm.hold(ref)
        except SlurmRefusedError as error:  # it has ended; the next look shows how
            log().warning("Slurm refuses to hold a job", job=ref, why=str(error))

    def _done(self, run: SlurmAttempt, last: Observation) -> None:
        del self._runs[run.key]
        self._acts.found.pop(run.key, None)
        self._context.sink(last)

    def _sweep(self, view: SlurmView) -> None:
        """Find jobs with this daemon's mark that should not exist."""
        refs = {run.ref for run in self._runs.values()} | {*self._acts.found.values()}
        for key, ref in ((key, ref) for key, some in self._own.keys(view).items() for ref in some):
            job = view.jobs[ref]
            if ref in refs or job.state not in ("PENDING", "RUNNING", "SUSPENDED"):
                continue
            if job.state == "PENDING" and job.held:
                self._acts.unwanted.add(ref)
            elif self._strays.get(key) != ref:
                self._strays[key] = ref
                self._context.sink(Stray(*key))
