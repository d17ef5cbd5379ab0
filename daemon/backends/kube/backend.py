"""Kubernetes backend: pools are namespaces or labels; Jobs are suspended until they start.

No job runs twice: the Job of an attempt has a unique name, is created suspended, and is released
only after its reference is durable. One request releases it and records the attempt; the request
fails if the Job has changed. One task acts and checks in turns; watches report changes, and
Kubernetes may be unreachable at any time.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Literal

from msgspec import json

from daemon.backends.attempt_names import AttemptKey, AttemptNotes
from daemon.backends.interface import (
    BackendContext,
    Expected,
    LogChunk,
    LogRequest,
    StopKind,
)
from daemon.backends.kube.actions import KubeActions
from daemon.backends.kube.adopt import KubeAdopter
from daemon.backends.kube.attempts import (
    LEAVING,
    RUNS,
    KubeAttempt,
    Leaving,
    Ref,
    jobs_path,
    name_of,
    plain,
)
from daemon.backends.kube.client import Kube
from daemon.backends.kube.completion import CompletionCheck
from daemon.backends.kube.config import KubeConfig
from daemon.backends.kube.kueue import QueueLimits
from daemon.backends.kube.lease import TIMEOUT, KubeFence
from daemon.backends.kube.nodes import NODES, KubeInventory, KubeNodeWatch
from daemon.backends.kube.pod_logs import Logs
from daemon.backends.kube.releases import ReleasedJobs
from daemon.backends.kube.schema import ATTEMPT, DAEMON, JOB, ORDER, KubeJob, KubeNode, gpus_of
from daemon.backends.kube.watch import WatchCache
from daemon.config.config import Ability
from daemon.model.book import JobRecord
from daemon.model.errors import JournalError, UnavailableError
from daemon.model.inputs import Ended, NodeDown, Observation, Requeued, Started, Stopped, Stray
from daemon.model.job import JobPhase
from daemon.model.limits import GRACE
from daemon.model.outputs import PreemptEffect, ResizeEffect, StartEffect
from daemon.runtime.fence import Fence, SoleLeader
from daemon.runtime.logs import log
from sia.model import Nodes as Gpus

NAME = "kube/name"
"""Key of the note with this daemon's name in Kubernetes."""

UNREAD = "backend jobs"
"""Health component for Jobs that cannot be parsed."""

RIGHTS = "backend rights"
"""Health component for missing permissions."""

MORE = "backend nodes"
"""Health component for nodes that are not used before a restart."""

AFTER = "backend backup"
"""Health component for running Jobs that a restored journal does not know."""

KUEUE = "backend kueue"
"""Health component for Kueue's ClusterQueues that cannot be updated."""

SOON = 0.2
"""Seconds until a request is retried after a conflict."""

BUG = "the daemon retries; if this persists, report it with the daemon's log"


class KubeBackend:
    """The Kubernetes backend; see the module.

    Args:
        config: cluster, account and namespaces.
        kube: API client.
        found: inventory at the start of the daemon.
        grace: seconds that pods of new Jobs have after SIGTERM.

    Attributes:
        fence: Whether this daemon may act in the cluster; None before `open`.
    """

    can: frozenset[Ability] = KubeConfig.can

    def __init__(
        self, config: KubeConfig, kube: Kube, found: KubeInventory, grace: float = GRACE
    ) -> None:
        """Create the backend without contacting Kubernetes."""
        self._config, self._kube, self._found, self._grace = config, kube, found, grace
        self._runs: dict[AttemptKey, KubeAttempt] = {}
        self._by_ref: dict[tuple[str, str], AttemptKey] = {}
        self._strays: dict[AttemptKey, Ref] = {}
        self._news: set[tuple[str, str]] = set()
        self._wake = asyncio.Event()
        self._jobs: dict[str, WatchCache[KubeJob]] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._context: BackendContext
        self.fence: Fence | None = None

    @property
    def gpus(self) -> Gpus | None:
        """GPUs of the nodes; None if Kueue places jobs."""
        return self._found.gpus or None

    @property
    def areas(self) -> dict[str, tuple[str, ...]]:
        """Nodes of each pool, if pools are limited to nodes."""
        return self._found.areas

    async def open(self, context: BackendContext) -> None:
        """Load the stored state; does not wait for Kubernetes."""
        marks = await context.notes.read("kube/")
        name = marks.get(NAME)
        if name is None:
            name = secrets.token_hex(4)
            await context.notes.write({NAME: name})
        self._name = name
        self._lease: KubeFence | None = None
        if isinstance(context.fence, SoleLeader):  # no lease in PostgreSQL: use one in Kubernetes
            own = Kube(self._config, tries=1, timeout=TIMEOUT)
            self._lease = KubeFence(self._config, own, context.fence, name)
            context = context._replace(fence=self._lease)
        self._kube.fence = self.fence = context.fence
        self._context = context
        if self._found.away[0]:
            context.parts.say("backend", *self._found.away)
        self._steering = (
            QueueLimits(self._config, self._kube, context) if self._config.kueue else None
        )
        self._marks = AttemptNotes(context, RUNS, marks)
        self._leaving = AttemptNotes(context, LEAVING, marks)
        self._nodes = KubeNodeWatch(self._config, context, self._found)
        self._logs = Logs(self._config, name)
        self._left = await ReleasedJobs.of(context.notes, name, marks)
        self._ends = CompletionCheck(
            self._config, self._kube, self._nodes, self._seen, self._done, context.sink
        )
        self._acts = KubeActions(
            self._config, self._kube, context, name, self._marks, self._leaving,
            nodes=self._nodes, left=self._left, known=self._job, seen=self._seen, done=self._done,
            grace=self._grace,
        )  # fmt: skip
        self._adopter = KubeAdopter(
            self._config, self._kube, context, self._nodes, self._left, self._job, self._seen
        )

    async def reconcile(self, expected: Iterable[Expected]) -> list[StartEffect]:
        """Search for these attempts once Kubernetes is reachable; returns none to start again."""
        for each in expected:
            run = KubeAttempt(each.order, fresh=False, started=each.started is not None)
            mark = self._marks.get(run.key)
            if mark is not None and not run.adopted:
                run.ref = Ref.of(mark)
            leaving = self._leaving.get(run.key)
            if leaving is not None:  # this reason came first, even if the job must stop, too
                run.end(json.decode(leaving, type=Leaving))
            record = self._context.book().jobs.get(run.order.job)
            if record is not None and record.phase is JobPhase.STOPPING:
                run.end(Stopped(*run.key))  # before the order is repeated, nothing may be released
            self._add(run)
        for node, why in self._found.out.items():
            self._context.sink(NodeDown(node, why))
        self._begin()
        return []

    def _begin(self) -> None:
        spaces = {self._config.namespace_of(pool) for pool in self._context.book().pools}
        for space in sorted(spaces):
            news = partial(self._hear, space)
            self._jobs[space] = WatchCache(self._kube, jobs_path(space), KubeJob, news)
        mirrors: list[WatchCache[KubeJob] | WatchCache[KubeNode]] = list(self._jobs.values())
        if not self._config.kueue:
            self._nodes.mirror = WatchCache(
                self._kube, NODES, KubeNode, lambda _: self._hear_of_nodes()
            )
            mirrors.append(self._nodes.mirror)
        self._tasks = [asyncio.create_task(mirror.run()) for mirror in mirrors]
        if self._lease is not None:
            self._tasks.append(asyncio.create_task(self._lease.run(self._wake.set)))
        if self._steering is not None:
            self._tasks.append(asyncio.create_task(self._steering.run(self._wake)))
        self._tasks.append(asyncio.create_task(self._follow()))

    def _add(self, run: KubeAttempt) -> None:
        self._runs[run.key] = run
        if run.ref is not None:
            self._by_ref[run.ref[:2]] = run.key

    async def start(self, order: StartEffect) -> None:
        """Queue an attempt to be created or released in the next turn."""
        if (order.job, order.attempt) not in self._runs:
            self._add(KubeAttempt(order, fresh=True))
            self._wake.set()

    async def stop(self, job: str, attempt: int, kind: StopKind) -> None:
        """Queue an end for the next turn; pods are warned by their own grace period."""
        run = self._runs.get((job, attempt))
        if kind == "end" and run is not None:
            if isinstance(run.leaving, Stopped):  # the job will not start again
                run.leaving, run.ended = None, False
            run.end(Ended(*run.key, signal=15))
        elif kind == "end" and (job, attempt) in self._strays:
            ref = self._strays[job, attempt]
            self._acts.unwanted[ref] = self._is_made(ref)
        self._wake.set()

    async def preempt(self, order: PreemptEffect) -> None:
        """Queue a suspension: pods get SIGTERM, and then have their own grace period."""
        run = self._runs.get((order.job, order.attempt))
        if run is not None:
            run.end(Stopped(*run.key))
        self._wake.set()

    async def resize(self, order: ResizeEffect) -> None:
        """Queue a change of the number of pods."""
        run = self._runs.get((order.job, order.attempt))
        if run is not None:
            run.resizing, run.due = order, None
        self._wake.set()

    async def close(self) -> None:
        """Stop all tasks; jobs continue."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._lease is not None:
            await self._lease.close()
        await self._logs.close()
        await self._kube.close()

    def log(self, job: str, attempt: int, stream: Literal["stdout", "stderr"]) -> Path | None:
        """Return None: pod output stays in Kubernetes."""
        return None

    async def read_log(self, record: JobRecord, request: LogRequest) -> LogChunk | None:
        """Read the output of an attempt's pod."""
        return await self._logs.read(record, request)

    def _hear(self, space: str, name: str) -> None:
        self._news.add((space, name))
        self._wake.set()

    def _hear_of_nodes(self) -> None:
        self._nodes.news = True
        self._wake.set()

    def _job(self, ref: Ref) -> KubeJob | None:
        """Return the cached Job of a reference; None if missing or replaced."""
        mirror = self._jobs.get(ref.namespace)
        job = None if mirror is None else mirror.objects.get(ref.name)
        return job if job is not None and job.metadata.uid == ref.uid else None

    def _seen(self, job: KubeJob) -> None:
        mirror = self._jobs.get(job.metadata.namespace)
        if mirror is not None:
            mirror.put(job)

    def _done(self, run: KubeAttempt, last: Observation) -> None:
        self._runs.pop(run.key, None)
        if run.ref is not None:
            self._by_ref.pop(run.ref[:2], None)
            if not run.adopted and isinstance(last, Requeued | Stopped):
                self._acts.unwanted[run.ref] = True
        self._context.sink(last)

    async def _follow(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            wait = self._config.poll
            try:
                wait = await self._turn(loop.time())
            except (JournalError, UnavailableError):
                await asyncio.sleep(wait)  # the journal reports its own health
            except Exception as error:  # noqa: BLE001  a defect must not stop starts and ends
                self._context.parts.say("backend", f"checking Kubernetes failed: {error!r}", BUG)
                log().exception("checking Kubernetes failed")
                await asyncio.sleep(wait)
            with suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._wake.wait()
            self._wake.clear()

    async def _turn(self, now: float) -> float:
        """Execute due actions, then check changes; return the seconds until the next turn."""
        synced = {space for space, mirror in self._jobs.items() if mirror.synced}
        await self._acts.do(
            [run for run in self._runs.values() if self._space_of(run) in synced or run.fresh]
        )
        for run in self._runs.values():
            if run.ref is not None:
                self._by_ref[run.ref[:2]] = run.key
        news, self._news = self._news, set()
        try:
            for at in [each for each in news if each[0] in synced]:
                self._look_at(*at)
            due = [run for run in self._runs.values() if run.due is not None and run.due <= now]
            for run in due:
                if self._space_of(run) in synced:
                    await self._acts.tried(self._ends.look(run, now))
            await self._acts.tried(self._adopter.look(self._jobs, news, self._runs))
        except BaseException:
            self._news |= news  # check all of these again
            raise
        self._nodes.look(self._runs.values())
        self._say()
        await self._marks.forget(self._runs)
        await self._leaving.forget(self._runs)
        if any(run.unsure for run in self._runs.values()) and not self._acts.error[0]:
            return min(SOON, self._config.poll)
        return self._config.poll

    def _space_of(self, run: KubeAttempt) -> str:
        if run.ref is not None:
            return run.ref.namespace
        return self._config.namespace_of(run.order.spec.pool)

    def _look_at(self, space: str, name: str) -> None:
        """Check a Job, or with an empty name all missing Jobs of a namespace."""
        mirror = self._jobs[space]
        if not name:
            for run in self._runs.values():
                if (
                    run.ref is not None
                    and run.ref.namespace == space
                    and self._job(run.ref) is None
                ):
                    self._missing(run)
            return
        found = self._runs.get(self._by_ref.get((space, name), ("", 0)))
        job = mirror.objects.get(name)
        same = found is not None and found.ref is not None and self._job(found.ref) is not None
        if found is not None and same and job is not None:
            self._shown(found, job)
        elif found is not None and name not in mirror.unread:
            self._missing(found)
        if job is not None and not same:
            self._sweep(job)

    def _missing(self, run: KubeAttempt) -> None:
        """Schedule a check with the API, because the watch may be wrong about a missing Job."""
        if run.due is None:
            run.due = 0.0

    def _shown(self, run: KubeAttempt, job: KubeJob) -> None:
        """Report the state of a Job."""
        run.seen = True
        if job.verdict is not None or run.ending:
            run.due = 0.0 if run.due is None else run.due
            return
        if job.metadata.deletion_timestamp:
            return
        self._acts.look(run, job)
        if run.ending:
            self._wake.set()
        elif run.released and job.begun and not run.reported:
            run.reported = True
            self._context.sink(Started(*run.key))
        run.grown = gpus_of(job, self._config.gpu) > run.most

    def _sweep(self, job: KubeJob) -> None:
        """Find Jobs with this daemon's mark that should not exist."""
        meta = job.metadata
        if meta.note(DAEMON) != self._name or job.verdict is not None or meta.deletion_timestamp:
            return
        made = meta.note(ORDER)
        number = made or meta.note(ATTEMPT)
        if not (number.isascii() and number.isdecimal() and len(number) < 9):
            return
        key, ref = (meta.note(JOB), int(number)), Ref(meta.namespace, meta.name, meta.uid)
        if (
            key in self._runs
            or ref in self._left
            or (made and meta.name != name_of(self._name, *key))
        ):
            return
        if job.suspended and made:
            self._acts.unwanted[ref] = True
            self._wake.set()
        elif not job.suspended and self._strays.get(key) != ref:
            self._strays[key] = ref
            self._context.sink(Stray(*key))

    def _is_made(self, ref: Ref) -> bool:
        """Return whether the daemon created a Job, and so may delete it."""
        job = self._job(ref)
        return job is not None and bool(job.metadata.note(ORDER))

    def _say(self) -> None:
        """Report the health of all components of the backend."""
        troubles = [self._acts.error, *(mirror.trouble for mirror in self._jobs.values())]
        if self._nodes.mirror is not None:
            troubles.append(self._nodes.mirror.trouble)
        if self._lease is not None:
            troubles.append(self._lease.trouble)
        self._context.parts.say("backend", *next((each for each in troubles if each[0]), ("", "")))
        if self._steering is not None:
            self._context.parts.say(KUEUE, *self._steering.trouble)
        self._context.parts.say(RIGHTS, *self._acts.forbidden)
        self._context.parts.say(MORE, *self._nodes.unused)
        self._context.parts.say(AFTER, *self._left.trouble)
        unread = [
            f"{at}/{plain(name, 63)}" for at, mirror in self._jobs.items() for name in mirror.unread
        ]
        if unread:
            some = ", ".join(sorted(unread)[:8])
            why = f"{len(unread)} Jobs cannot be parsed: {some}"
            mend = "they are ignored; report this with the version of Kubernetes"
            self._context.parts.say(UNREAD, why, mend)
        else:
            self._context.parts.say(UNREAD)
