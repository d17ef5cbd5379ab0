"""Adopt Jobs that users create suspended, and start them by the daemon's policy."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from daemon.backends.attempt_names import AttemptKey
from daemon.backends.interface import BackendContext
from daemon.backends.kube.attempts import KubeAttempt, Ref, plain
from daemon.backends.kube.client import (
    Kube,
    KubeConflictError,
    KubeForbiddenError,
    KubeGoneError,
    KubeRefusedError,
)
from daemon.backends.kube.config import KubeConfig
from daemon.backends.kube.manifests import GRACE, suspend
from daemon.backends.kube.nodes import KubeNodeWatch
from daemon.backends.kube.releases import ReleasedJobs
from daemon.backends.kube.schema import (
    GATE_OWN,
    ORDER,
    OVER,
    POOL,
    PREFIX,
    PRIORITY,
    QUEUE,
    KubeJob,
    PodSpec,
    gpus_of,
    gpus_of_pod,
)
from daemon.backends.kube.watch import WatchCache
from daemon.model.book import JobRecord
from daemon.model.inputs import Cancel, Command, Hold, Limited, SetPriority, Submit
from daemon.model.job import JobPhase, JobSpec
from daemon.model.limits import MAX_ID, MAX_PRIORITY, MAX_TIME_LIMIT
from daemon.model.outputs import Refused
from daemon.runtime.logs import log
from daemon.wire.wishes import PARSERS, wishes_of
from sia.model import NEVER_STOPPED

ACTOR = "kubernetes"
"""Actor of commands that result from users' actions in Kubernetes."""

AT_ONCE = 500
"""Maximum number of Jobs adopted in one step, so that other clients do not wait long."""

RETRY = 60.0
"""Seconds until a refused Job is tried again: pools may open and quotas grow."""

WAITING = (JobPhase.PENDING, JobPhase.HELD)

OWN_SCHEDULER = ("", "default-scheduler")
"""Names of Kubernetes' default scheduler; for "", the API server writes the other one."""

NAMED = "app.kubernetes.io/name"
"""Label with a common name for similar Jobs, whose own names are often numbered."""

JobName = tuple[str, str]
"""Namespace and name of a Job."""


class KubeAdopter:
    """Adopts Jobs, and follows those that are pending."""

    def __init__(
        self, config: KubeConfig, kube: Kube, context: BackendContext, nodes: KubeNodeWatch,
        left: ReleasedJobs,
        known: Callable[[Ref], KubeJob | None], seen: Callable[[KubeJob], None],
    ) -> None:  # fmt: skip
        """Create the adopter; known Jobs are found by their origin at the first look."""
        self._config, self._kube, self._context = config, kube, context
        self._nodes, self._left, self._known, self._seen = nodes, left, known, seen
        self._jobs: dict[JobName, tuple[Ref, str]] | None = None  # Job -> reference, job id
        self._refused: dict[JobName, float] = {}  # time of the next try
        self._ignored: dict[JobName, str] = {}  # ignored Jobs, and why
        self._longer: dict[JobName, float] = {}  # time limits that were raised too late
        self._unseen: set[JobName] = set()  # possibly new Jobs
        self._changed: set[JobName] = set()  # possibly changed Jobs
        self._due = 0.0

    async def look(
        self,
        mirrors: Mapping[str, WatchCache[KubeJob]],
        news: Iterable[JobName],
        runs: Mapping[AttemptKey, KubeAttempt],
    ) -> None:
        """Adopt new Jobs and follow pending ones. O(news), periodically O(pending)."""
        now = asyncio.get_running_loop().time()
        if self._jobs is None:
            records = self._context.book().jobs.values()
            there = [(Ref.of(r.spec.origin), r.spec.id) for r in records if r.spec.origin]
            self._jobs = {ref[:2]: (ref, job_id) for ref, job_id in there}
        seen = set(_places(mirrors, news))
        lists = {space for space, name in news if not name}
        self._unseen |= seen
        self._changed |= seen | {place for place in self._jobs if place[0] in lists}
        if self._config.adopt and self._context.fence.holds():
            await self._take_over(mirrors, now)
        if now >= self._due:
            self._due = now + self._config.poll
            await self._follow(mirrors, runs)

    async def _take_over(self, mirrors: Mapping[str, WatchCache[KubeJob]], now: float) -> None:
        due = {each for each, due in self._refused.items() if due <= now}
        places = sorted(self._unseen | due)
        for some in (places[i : i + AT_ONCE] for i in range(0, len(places), AT_ONCE)):
            new = {place: self._new(mirrors, place, now) for place in some}
            wanted = [(place, spec) for place, spec in new.items() if spec is not None]
            if wanted:
                await self._submit(wanted, now)
            self._unseen.difference_update(some)

    def _new(
        self, mirrors: Mapping[str, WatchCache[KubeJob]], place: JobName, now: float
    ) -> JobSpec | None:
        """Return the spec for a Job that is not adopted yet, or None."""
        assert self._jobs is not None, "loaded by look"
        job, known = mirrors[place[0]].objects.get(place[1]), self._jobs.get(place)
        if job is None:
            self._refused.pop(place, None)
            self._ignored.pop(place, None)
            return None
        if now < self._refused.get(place, 0.0) or (known and known[0].uid == job.metadata.uid):
            return None
        return self._spec(place, job)

    async def _submit(self, wanted: Sequence[tuple[JobName, JobSpec]], now: float) -> None:
        assert self._jobs is not None, "loaded by look"
        asked = [Submit(spec, actor=ACTOR) for _, spec in wanted]
        answers = await self._context.ask(asked)
        for (place, spec), answer in zip(wanted, answers, strict=True):
            if not isinstance(answer, Refused):
                self._refused.pop(place, None)
                self._jobs[place] = Ref.of(spec.origin), spec.id
                self._changed.add(place)
                continue
            if place not in self._refused:
                log().warning(
                    "suspended Job ignored", job=spec.id, why=answer.detail,
                    mend=answer.mend,
                )  # fmt: skip
            self._refused[place] = now + RETRY

    def _spec(self, place: JobName, job: KubeJob) -> JobSpec | None:
        """Convert a suspended Job; None if it is not to be adopted."""
        meta = job.metadata
        over = job.verdict is not None or meta.deletion_timestamp or meta.note(OVER)
        meant = GATE_OWN in job.gates if self._config.kueue else meta.label(POOL)
        if over or not meant or not job.suspended or meta.note(ORDER):
            return None
        pool = self._pool_of(job)
        why, wishes = self._unsupported_reason(job, pool), dict[str, Any]()
        try:
            wishes = wishes_of(_annotated(job), meta.created, gpus_of(job, self._config.gpu))
            why = why or _uneven(wishes, gpus_of_pod(job.spec.template.spec, self._config.gpu))
        except ValueError as error:
            why = why or f"annotation {PREFIX}/{error}"
        if why:
            self._log_ignored(place, why)
            return None
        assert pool is not None, "checked by _unsupported_reason"
        self._ignored.pop(place, None)
        limit = job.spec.active_deadline_seconds
        if self._config.kueue:  # which owns `suspend` and `parallelism`
            wishes["preemptible"] = NEVER_STOPPED
        return JobSpec(
            id_of(job), pool, gpus_of(job, self._config.gpu),
            name=plain(meta.label(NAMED) or meta.name, 200), warn=0.0,
            time_limit=None if limit is None else float(limit + GRACE),
            nodes=self._spread(job), priority=priority_of(job) or 0,
            origin=str(Ref(meta.namespace, meta.name, meta.uid)), **wishes,
        )  # fmt: skip

    def _pool_of(self, job: KubeJob) -> str | None:
        """Return the pool of a Job by namespace or label, or None."""
        pools, label = self._context.book().pools, job.metadata.label(POOL)
        if self._config.namespace:
            return label if label in pools else None
        space = job.metadata.namespace
        own = next((name for name in pools if self._config.namespace_of(name) == space), None)
        return own if label in ("", own) else None

    def _unsupported_reason(self, job: KubeJob, pool: str | None) -> str:
        """Return why a Job with the pool label is ignored, with the fix; "" if it is adopted."""
        spec, label = job.spec.template.spec, plain(job.metadata.label(POOL), 63)
        if pool is None:
            return f"the namespace does not belong to pool {label!r}; set a pool in label {POOL}"
        if job.spec.managed_by not in (None, "kubernetes.io/job-controller"):
            return "another controller manages it (spec.managedBy); remove that field"
        if not self._config.kueue and job.metadata.label(QUEUE):
            return f"it has a Kueue queue; remove label {QUEUE}, or set backend.kueue"
        each = gpus_of_pod(spec, self._config.gpu)
        if not each or not job.pods:
            return f"it requests no {self._config.gpu}; request some, or remove label {POOL}"
        why = _elsewhere(spec)
        if why or self._nodes.fits(pool, spec.node_selector or {}):
            return why
        return (
            "its nodeSelector excludes nodes of its pool or sharing group; remove it, or give "
            "pools nodes of one kind with backend.nodes"
        )

    def _log_ignored(self, place: JobName, why: str) -> None:
        if self._ignored.get(place) != why:
            self._ignored[place] = why
            what, _, mend = why.rpartition("; ")
            log().warning(
                "suspended Job ignored", job="/".join(place), why=what,
                mend=mend,
            )  # fmt: skip

    def _spread(self, job: KubeJob) -> int | None:
        """Return the number of nodes for its pods: the fewest that fit, with equal pods on each."""
        most = self._nodes.most
        if not most:
            return None
        pods, each = job.pods, gpus_of_pod(job.spec.template.spec, self._config.gpu)
        fewest = range(max(1, -(-pods * each // most)), pods + 1)
        return next((n for n in fewest if pods % n == 0 and pods // n * each <= most), pods)

    async def _follow(
        self, mirrors: Mapping[str, WatchCache[KubeJob]], runs: Mapping[AttemptKey, KubeAttempt]
    ) -> None:
        """Follow users' actions on pending Jobs, and jobs that ended in the daemon. O(changed)."""
        assert self._jobs is not None, "loaded by look"
        book, wanted, looked = self._context.book(), list[Command](), set[JobName]()
        for place, (ref, job_id) in [e for e in self._jobs.items() if e[1][1] not in book.jobs]:
            if place[0] in mirrors and mirrors[place[0]].synced:
                await self._let_go(place, job_id, self._known(ref))
        for place in self._changed:
            known = self._jobs.get(place)
            record = None if known is None else book.jobs.get(known[1])
            if known is None or record is None:
                looked.add(place)
                continue
            ref, job_id = known
            job = self._known(ref)
            if job is not None:
                self._limit(place, record, job)
            if (job_id, record.attempt) not in runs and record.phase in WAITING:
                asked = await self._waits(record, ref, job)
                if asked is not None:
                    looked.add(place)
                    wanted += asked
        if wanted:
            await self._context.ask(wanted)
        self._changed -= looked

    async def _let_go(self, place: JobName, job_id: str, job: KubeJob | None) -> None:
        """Mark a suspended Job whose job ended in the daemon, so that it is not adopted again."""
        assert self._jobs is not None, "loaded by look"
        waits = job is not None and job.suspended and job.verdict is None
        ended = self._context.book().ended.get(job_id)
        done = job is None or not waits or ended is None or bool(job.metadata.note(OVER))
        if not done and job is not None and self._context.fence.holds():
            done = await self._suspend(job, "ended by sia")
        if done:
            await self._left.forget(self._jobs.pop(place)[0])
            self._longer.pop(place, None)

    async def _waits(
        self, record: JobRecord, ref: Ref, job: KubeJob | None
    ) -> list[Command] | None:
        """Return the commands for users' actions on a pending Job; None to check it again."""
        if job is None and await self._is_there(ref):
            return None
        if why := self._taken_back(record, job):
            log().info("pending Job cancelled", job=record.spec.id, why=why)
            return [Cancel(record.spec.id, actor=ACTOR)]
        assert job is not None, "checked by _taken_back"
        if job.suspended:
            await self._left.forget(ref)
        elif self._left.runs(job, record.spec.id, record.attempt + 1):
            await self._left.leave(ref, job, record.spec.id)
            return [] if record.phase is JobPhase.HELD else [Hold(record.spec.id, actor=ACTOR)]
        elif not self._config.kueue:
            log().warning("pending Job was started by someone else", job=record.spec.id)
            if not self._context.fence.holds() or not await self._suspend(job):
                return None
        priority = priority_of(job)
        if priority is not None and priority != record.priority:
            return [SetPriority(record.spec.id, priority, actor=ACTOR)]
        return []

    def _taken_back(self, record: JobRecord, job: KubeJob | None) -> str:
        """Return why a pending job is to be cancelled, or ""."""
        if job is None or job.metadata.deletion_timestamp:
            return "deleted in Kubernetes"
        if job.verdict is not None:
            return "ended in Kubernetes"
        if self._pool_of(job) != record.spec.pool or job.metadata.note(OVER):
            return "withdrawn in Kubernetes"
        if self._config.kueue and GATE_OWN not in job.gates:
            return "released to Kueue by someone else"
        return ""

    async def _is_there(self, ref: Ref) -> bool:
        try:
            return (await self._kube.get(ref.path, KubeJob)).metadata.uid == ref.uid
        except KubeGoneError:
            return False

    async def _suspend(self, job: KubeJob, over: str = "") -> bool:
        """Suspend a Job; return False to try again."""
        meta = job.metadata
        try:
            path = Ref(meta.namespace, meta.name, meta.uid).path
            self._seen(await self._kube.patch(path, suspend(job, over), KubeJob))
        except KubeGoneError:
            return True
        except KubeForbiddenError:
            raise
        except (KubeConflictError, KubeRefusedError):
            return False
        return True

    def _limit(self, place: JobName, record: JobRecord, job: KubeJob) -> None:
        """Apply the Job's deadline; a job on GPUs can only shorten its time limit."""
        deadline, known = job.spec.active_deadline_seconds, record.time_limit
        if deadline is None:
            return
        limit = float(min(deadline + GRACE, MAX_TIME_LIMIT))
        if not record.placed or known is None or limit < known:
            if limit != known:
                self._context.sink(Limited(record.spec.id, limit, believed=True, shortens=True))
        elif limit > known and self._longer.get(place) != limit:
            self._longer[place] = limit
            log().warning(
                "time limit of a running Job not raised; the earlier limit stays",
                job=record.spec.id, limit=known, asked=limit,
            )  # fmt: skip


def _places(
    mirrors: Mapping[str, WatchCache[KubeJob]], news: Iterable[JobName]
) -> Iterator[JobName]:
    """Yield the Jobs named in news; an empty name stands for all of a namespace."""
    for space, name in news:
        if name:
            yield space, name
        else:
            yield from ((space, each) for each in mirrors[space].objects)


def _annotated(job: KubeJob) -> dict[str, str]:
    """Return the values of a Job's annotations by the name of the job's field."""
    return {name: note for name in PARSERS if (note := job.metadata.note(f"{PREFIX}/{name}"))}


def _uneven(wishes: Mapping[str, Any], each: int) -> str:
    """Return why these widths are not possible, with the fix; "" if they are whole pods."""
    for name in ("min_width", "max_width"):
        gpus = wishes.get(name, 0)
        if each and gpus % each:
            return f"{name} {gpus} is not a whole number of pods of {each} GPUs; write a multiple"
    return ""


def _elsewhere(spec: PodSpec) -> str:
    """Return why pods of this template are not supported, with the fix; "" if they are."""
    if spec.resource_claims:
        return "GPUs of resourceClaims are not counted; request GPUs by limits only"
    if spec.scheduling_gates or spec.node_name or spec.scheduler_name not in OWN_SCHEDULER:
        return (
            "something else decides where its pods run; remove schedulingGates, nodeName and "
            "schedulerName"
        )
    return ""


def id_of(job: KubeJob) -> str:
    """Return a job id that is unique even if the Job's name is reused."""
    meta = job.metadata
    tail = plain(meta.uid, 8)
    return plain(f"k8s-{meta.namespace}.{meta.name}", MAX_ID - 9).replace("/", "?") + f"-{tail}"


def priority_of(job: KubeJob) -> int | None:
    """Return the priority in a Job's annotation, or None if it is missing or not a number."""
    text = job.metadata.note(PRIORITY).strip()
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdecimal() and len(digits) < 9):
        return None
    return max(-MAX_PRIORITY, min(MAX_PRIORITY, int(text)))
