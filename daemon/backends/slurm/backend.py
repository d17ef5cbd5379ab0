"""A Slurm cluster: pools are partitions; jobs are submitted held, and released where decided.

Nothing runs twice: a job that this daemon submits is held, and is released only once what it is
called is durable. Whatever else of the same attempt should be there was never released, and is
removed. One task does all of it, in turns; Slurm may be away for any of them.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Literal

from daemon.backends.attempt_names import AttemptKey, AttemptNotes
from daemon.backends.interface import Ability, BackendContext, Expected, StopKind
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
from daemon.model.errors import JournalError, UnavailableError
from daemon.model.inputs import Ended, Observation, Requeued, Started, Stray
from daemon.model.outputs import StartEffect
from daemon.runtime.logs import log
from sia.model import Nodes as Gpus

NAME = "slurm/name"
"""The mark that says what this daemon is called in Slurm."""

UNREAD = "backend jobs"
"""The part that is not well where Slurm says of jobs what is not understood."""

TRIES = 3
"""Times that a job is released which Slurm shows as held: Slurm's answer does not say of each task
of an array how it went, and a slurmctld that is killed forgets what it did within the last 5 s."""

COSTLY = 0.5
"""Seconds that a list of all jobs may take: where it takes longer, each of a few is asked for."""

REST = 50.0
"""Times as long as such a list took is there until the next: what it costs is 2 % of the time."""

BUG = "the daemon goes on by itself; where this stays, report it with the daemon's log"


class SlurmBackend:
    """See the module.

    Args:
        config: which Slurm, which partitions, how often it is asked.
        slurm: the door to it.
        found: what was found there at the start.
    """

    can: frozenset[Ability] = frozenset({"commands", "requeue"})

    def __init__(self, config: SlurmConfig, slurm: Slurm, found: SlurmInventory) -> None:
        """Nothing is asked yet."""
        self._config, self._slurm, self._found = config, slurm, found
        if config.folder:
            self.can |= {"logs"}
        self._runs: dict[AttemptKey, SlurmAttempt] = {}
        self._strays: dict[AttemptKey, str] = {}
        self._poke = asyncio.Event()
        self._view: SlurmView | None = None
        self._all_due = 0.0
        self._in_turn = LeastRecentlyPolled()
        self._follower: asyncio.Task[None] | None = None
        self._house: BackendContext

    @property
    def gpus(self) -> Gpus | None:
        """Those of the nodes in the partitions."""
        return self._found.gpus

    @property
    def areas(self) -> dict[str, tuple[str, ...]]:
        """The nodes of each pool's partition."""
        return self._found.areas

    async def open(self, house: BackendContext) -> None:
        """Begin; whether Slurm is there is seen later."""
        self._house = house
        if self._found.away[0]:
            house.parts.say("backend", *self._found.away)
        marks = await house.notes.read("slurm/")
        name = marks.get(NAME)
        if name is None:
            name = secrets.token_hex(4)
            await house.notes.write({NAME: name})
        self._own = JobOwnership(house, name, marks, self._config.user)
        self._marks = AttemptNotes(house, RUNS, marks)
        self._acts = SlurmActions(self._config, self._slurm, house, self._own, self._marks)
        self._adopter = SlurmAdopter(self._config, self._slurm, house)
        self._nodes = SlurmNodeWatch(self._config, self._slurm, house, self._found)

    async def reconcile(self, expected: Iterable[Expected]) -> list[StartEffect]:
        """Look for all of these in Slurm, as soon as it is there; none is to be started again."""
        for each in expected:
            run = SlurmAttempt(each.order, sought=False, started=each.started is not None)
            mark = self._marks.get(run.key)
            if mark is not None and not run.adopted:
                run.named(mark)
            self._runs[run.key] = run
        self._follower = asyncio.create_task(self._follow())
        return []

    async def start(self, order: StartEffect) -> None:
        """Have it submitted, or released, in the next turn."""
        if (order.job, order.attempt) in self._runs:
            return
        run = self._runs[order.job, order.attempt] = SlurmAttempt(order, sought=True, fresh=True)
        job = self._view.jobs.get(run.ref) if self._view is not None and run.ref else None
        run.restarts = job.restarts if job is not None else 0
        self._poke.set()

    async def stop(self, job: str, attempt: int, kind: StopKind) -> None:
        """Have it cancelled in the next turn; Slurm's jobs are warned by their own `--signal`."""
        run = self._runs.get((job, attempt))
        if kind == "end" and run is not None:
            run.stop = True
        elif kind == "end" and (job, attempt) in self._strays:
            self._acts.unwanted.add(self._strays[job, attempt])
        self._poke.set()

    async def close(self) -> None:
        """Stop asking; jobs go on."""
        if self._follower is not None:
            self._follower.cancel()
            with suppress(asyncio.CancelledError):
                await self._follower
        await self._slurm.close()

    def log(self, job: str, attempt: int, stream: Literal["stdout", "stderr"]) -> Path | None:
        """The file that a job of this daemon's writes to, where a folder is configured."""
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
                self._house.parts.say("backend", error.why, error.mend)
                self._view, due = None, loop.time() + self._config.poll
                self._look_first()
                await asyncio.sleep(self._config.poll)
            except (JournalError, UnavailableError):
                await asyncio.sleep(self._config.poll)  # the journal says by itself how it is
            except Exception as error:  # noqa: BLE001  starts and ends go on, whatever that was
                self._house.parts.say("backend", f"a look at Slurm went wrong: {error!r}", BUG)
                log().exception("a look at Slurm went wrong")
                await asyncio.sleep(self._config.poll)
            with suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, due - loop.time())):
                    await self._poke.wait()
            self._poke.clear()

    def _look_first(self) -> None:
        """Slurm was away: numbers of jobs may be others' by now."""
        for run in self._runs.values():
            run.sought, run.seen = run.sought and run.released is not None, False
            run.free = False
        self._acts.unwanted.clear()
        self._strays.clear()  # what is there all the same is found again

    async def _turn(self, *, looks: bool) -> None:
        """Do what is to be done, then look at what has come of all."""
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
        """Whether there are jobs of which nothing is known but that they are there."""
        if not view.unread:
            self._house.parts.say(UNREAD)
            return
        some = ", ".join(map(str, sorted(view.unread)[:8]))
        why = f"of {len(view.unread)} jobs Slurm says what is not understood: {some}"
        self._house.parts.say(UNREAD, why, "they are left alone; report it with Slurm's version")

    async def _go_on(self, run: SlurmAttempt, view: SlurmView) -> None:
        """Say what has become of an attempt since the last look."""
        if run.ref is None:
            self._seek(run, view)
            return
        job = view.jobs.get(run.ref)
        if job is not None and not self._own.is_of(run, job):
            self._gone(run, view)  # Slurm has lost its state, and counts its jobs from 1 again
            return
        if job is None:
            if not await self._slurm.job(run.ref):
                self._gone(run, view)
            return
        if not run.seen:
            run.seen, run.submitted = True, int(job.submitted)
            self._poke.set()
        if "COMPLETING" not in job.flags:
            await self._shown(run, job, view)

    async def _shown(self, run: SlurmAttempt, job: SlurmJob, view: SlurmView) -> None:
        over = end_of(run, job)
        if over is not None:
            self._done(run, over)
            return
        run.alive = view.began
        if job.state in ("RUNNING", "SUSPENDED"):
            self._runs_now(run, job.restarts)
        elif job.state == "PENDING" and run.released is not None and view.began > run.released:
            await self._waits(run, job)
        elif job.state == "PENDING" and not run.sought:
            run.restarts, run.sought = job.restarts, True
            self._poke.set()

    def _gone(self, run: SlurmAttempt, view: SlurmView) -> None:
        """Slurm does not know it any more: what never was released may be submitted anew."""
        if run.fresh and run.released is None and not run.adopted:
            run.ref, run.sought = None, False
        else:
            self._done(run, gone(run, view.began))

    def _runs_now(self, run: SlurmAttempt, restarts: int) -> None:
        run.sought, run.released, run.restarts = True, run.released or 0.0, restarts
        if not run.told:
            run.told = True
            self._house.sink(Started(*run.key))

    def _seek(self, run: SlurmAttempt, view: SlurmView) -> None:
        """Whether a daemon before this one has submitted it: then that one is released."""
        if run.sought:
            return
        run.sought = True
        same = self._own.keys(view).get(run.key)
        if same:
            self._acts.found[run.key] = min(same, key=int)
        else:
            self._acts.found.pop(run.key, None)  # Slurm has lost that: its number comes again
            if run.stop:
                self._done(run, Ended(*run.key, why="it was never started"))
        self._poke.set()

    async def _waits(self, run: SlurmAttempt, job: SlurmJob) -> None:
        """It was released, and waits: for Slurm, or because somebody has had it wait again."""
        assert run.ref is not None, "it was released under no name"
        if run.stop:
            run.stopped = False  # what Slurm has queued again since is to end all the same
            self._poke.set()
        elif job.held and self._forgot(run, job):
            run.released, run.tries = None, run.tries + 1
            self._poke.set()
        elif job.held or job.restarts > run.restarts:
            if not self._house.fence.holds():
                return
            why = f"held in Slurm ({job.reason})" if job.held else "Slurm has queued it again"
            if not run.adopted:
                self._acts.unwanted.add(run.ref)
            elif not job.held:
                await self._hold(run.ref)
            self._done(run, Requeued(*run.key, why, job.held))
        else:
            run.free = True

    def _forgot(self, run: SlurmAttempt, job: SlurmJob) -> bool:
        """Whether it is held because Slurm knows nothing of its release, by all that was seen."""
        same = not run.told and job.restarts == run.restarts
        return same and not run.free and run.tries < TRIES and not self._heard(run, job)

    def _heard(self, run: SlurmAttempt, job: SlurmJob) -> bool:
        """Whether it is where its release has put it, and was not before: one request does both."""
        if run.before is None or not self._slurm.single:
            return False
        place = self._acts.place(run.order)
        there = place.partition, frozenset(node for node, _ in place.nodes)
        return job.where == there != run.before

    async def _hold(self, ref: str) -> None:
        try:
            await self._slurm.hold(ref)
        except SlurmRefusedError as error:  # it is over by now, as the next look shows
            log().warning("Slurm does not let a job be held", job=ref, why=str(error))

    def _done(self, run: SlurmAttempt, last: Observation) -> None:
        del self._runs[run.key]
        self._acts.found.pop(run.key, None)
        self._house.sink(last)

    def _sweep(self, view: SlurmView) -> None:
        """Find what bears this daemon's name and should not be there."""
        refs = {run.ref for run in self._runs.values()} | {*self._acts.found.values()}
        for key, ref in ((key, ref) for key, some in self._own.keys(view).items() for ref in some):
            job = view.jobs[ref]
            if ref in refs or job.state not in ("PENDING", "RUNNING", "SUSPENDED"):
                continue
            if job.state == "PENDING" and job.held:
                self._acts.unwanted.add(ref)
            elif self._strays.get(key) != ref:
                self._strays[key] = ref
                self._house.sink(Stray(*key))
