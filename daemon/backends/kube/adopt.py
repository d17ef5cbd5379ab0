"""Jobs that people create suspended: they are taken over, and started when it is decided."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

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

ACTOR = "kubernetes"
"""Who asks for what people have Kubernetes do."""

AT_ONCE = 500
"""Jobs that are adopted in one step: no other client waits for long."""

RETRY = 60.0
"""Seconds until what is refused is asked for again: pools are opened, and quotas grow."""

WAITING = (JobPhase.PENDING, JobPhase.HELD)

OWN_SCHEDULER = ("", "default-scheduler")
"""Names of Kubernetes' own: the API writes the second where there is none."""

NAMED = "app.kubernetes.io/name"
"""A label by which Jobs alike are known, where their own names are numbered."""

JobName = tuple[str, str]
"""A namespace, and the name of a Job in it."""


class KubeAdopter:
    """Takes Jobs over, and follows what becomes of those that wait."""

    def __init__(
        self, config: KubeConfig, kube: Kube, house: BackendContext, nodes: KubeNodeWatch,
        left: ReleasedJobs,
        known: Callable[[Ref], KubeJob | None], seen: Callable[[KubeJob], None],
    ) -> None:  # fmt: skip
        """None is taken over; those of before come to be known by their origin."""
        self._config, self._kube, self._house = config, kube, house
        self._nodes, self._left, self._known, self._seen = nodes, left, known, seen
        self._jobs: dict[JobName, tuple[Ref, str]] | None = None  # which Job is which one here
        self._refused: dict[JobName, float] = {}  # when it is asked for again
        self._strange: dict[JobName, str] = {}  # those that are left alone, and why
        self._longer: dict[JobName, float] = {}  # limits that were asked for too late
        self._unseen: set[JobName] = set()  # those that may be new
        self._changed: set[JobName] = set()  # those that may not be as they were
        self._due = 0.0

    async def look(
        self,
        mirrors: Mapping[str, WatchCache[KubeJob]],
        news: Iterable[JobName],
        runs: Mapping[AttemptKey, KubeAttempt],
    ) -> None:
        """Take over what is new, and follow what waits. O(news), and now and then O(waiting)."""
        now = asyncio.get_running_loop().time()
        if self._jobs is None:
            records = self._house.book().jobs.values()
            there = [(Ref.of(r.spec.origin), r.spec.id) for r in records if r.spec.origin]
            self._jobs = {ref[:2]: (ref, job_id) for ref, job_id in there}
        seen = set(_places(mirrors, news))
        lists = {space for space, name in news if not name}
        self._unseen |= seen
        self._changed |= seen | {place for place in self._jobs if place[0] in lists}
        if self._config.adopt and self._house.fence.holds():
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
        """The job that a Job is to be here which is none yet; None where it is to be none."""
        assert self._jobs is not None, "they are known"
        job, known = mirrors[place[0]].objects.get(place[1]), self._jobs.get(place)
        if job is None:
            self._refused.pop(place, None)
            self._strange.pop(place, None)
            return None
        if now < self._refused.get(place, 0.0) or (known and known[0].uid == job.metadata.uid):
            return None
        return self._spec(place, job)

    async def _submit(self, wanted: Sequence[tuple[JobName, JobSpec]], now: float) -> None:
        assert self._jobs is not None, "they are known"
        asked = [Submit(spec, actor=ACTOR) for _, spec in wanted]
        answers = await self._house.ask(asked)
        for (place, spec), answer in zip(wanted, answers, strict=True):
            if not isinstance(answer, Refused):
                self._refused.pop(place, None)
                self._jobs[place] = Ref.of(spec.origin), spec.id
                self._changed.add(place)
                continue
            if place not in self._refused:
                log().warning(
                    "a suspended Job of Kubernetes is left alone", job=spec.id, why=answer.detail,
                    mend=answer.mend,
                )  # fmt: skip
            self._refused[place] = now + RETRY

    def _spec(self, place: JobName, job: KubeJob) -> JobSpec | None:
        """The job that a suspended one of Kubernetes is here; None where it is left alone."""
        meta = job.metadata
        over = job.verdict is not None or meta.deletion_timestamp or meta.note(OVER)
        meant = GATE_OWN in job.gates if self._config.kueue else meta.label(POOL)
        if over or not meant or not job.suspended or meta.note(ORDER):
            return None
        pool = self._pool_of(job)
        why = self._strangeness(job, pool)
        if why:
            self._tell_strange(place, why)
            return None
        assert pool is not None, "it would be strange"
        self._strange.pop(place, None)
        limit = job.spec.active_deadline_seconds
        return JobSpec(
            id_of(job), pool, gpus_of(job, self._config.gpu),
            name=plain(meta.label(NAMED) or meta.name, 200), warn=0.0,
            time_limit=None if limit is None else float(limit + GRACE),
            nodes=self._spread(job), priority=priority_of(job) or 0,
            origin=str(Ref(meta.namespace, meta.name, meta.uid)),
        )  # fmt: skip

    def _pool_of(self, job: KubeJob) -> str | None:
        """The pool that a Job is of, by its namespace or its label; None where that is none."""
        pools, label = self._house.book().pools, job.metadata.label(POOL)
        if self._config.namespace:
            return label if label in pools else None
        space = job.metadata.namespace
        own = next((name for name in pools if self._config.namespace_of(name) == space), None)
        return own if label in ("", own) else None

    def _strangeness(self, job: KubeJob, pool: str | None) -> str:
        """Why a Job is left alone that asks to be taken over, with the mend."""
        spec, label = job.spec.template.spec, plain(job.metadata.label(POOL), 63)
        if pool is None:
            return f"its namespace is not that of a pool {label!r}; name the pool in label {POOL}"
        if job.spec.managed_by not in (None, "kubernetes.io/job-controller"):
            return "another controller runs it (spec.managedBy); leave that out"
        if not self._config.kueue and job.metadata.label(QUEUE):
            return f"it is in a queue of Kueue; take label {QUEUE} away, or set backend.kueue"
        each = gpus_of_pod(spec, self._config.gpu)
        if not each or not job.pods:
            return f"it asks for no {self._config.gpu}; ask for some, or take label {POOL} away"
        why = _elsewhere(spec)
        if why or self._nodes.fits(pool, spec.node_selector or {}):
            return why
        return (
            "its nodeSelector leaves out nodes that its pool or those it shares with have; "
            "leave it out, or give pools by backend.nodes the nodes that are alike"
        )

    def _tell_strange(self, place: JobName, why: str) -> None:
        if self._strange.get(place) != why:
            self._strange[place] = why
            what, _, mend = why.rpartition("; ")
            log().warning(
                "a suspended Job of Kubernetes is left alone", job="/".join(place), why=what,
                mend=mend,
            )  # fmt: skip

    def _spread(self, job: KubeJob) -> int | None:
        """Over how many nodes its pods go: the fewest that hold them, all with as many."""
        most = self._nodes.most
        if not most:
            return None
        pods, each = job.pods, gpus_of_pod(job.spec.template.spec, self._config.gpu)
        fewest = range(max(1, -(-pods * each // most)), pods + 1)
        return next((n for n in fewest if pods % n == 0 and pods // n * each <= most), pods)

    async def _follow(
        self, mirrors: Mapping[str, WatchCache[KubeJob]], runs: Mapping[AttemptKey, KubeAttempt]
    ) -> None:
        """What people do to Jobs that wait, or that are over here. O(changed), a look at each."""
        assert self._jobs is not None, "they are known"
        book, wanted, looked = self._house.book(), list[Command](), set[JobName]()
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
            await self._house.ask(wanted)
        self._changed -= looked

    async def _let_go(self, place: JobName, job_id: str, job: KubeJob | None) -> None:
        """It is over here: what still waits there was cancelled here, and stays suspended."""
        assert self._jobs is not None, "they are known"
        waits = job is not None and job.suspended and job.verdict is None
        ended = self._house.book().ended.get(job_id)
        told = job is None or not waits or ended is None or bool(job.metadata.note(OVER))
        if not told and job is not None and self._house.fence.holds():
            told = await self._suspend(job, "ended by sia")
        if told:
            await self._left.forget(self._jobs.pop(place)[0])
            self._longer.pop(place, None)

    async def _waits(
        self, record: JobRecord, ref: Ref, job: KubeJob | None
    ) -> list[Command] | None:
        """What somebody has done to a Job that waits here; None where to look again."""
        if job is None and await self._is_there(ref):
            return None
        if why := self._taken_back(record, job):
            log().info("a Job that waits is cancelled", job=record.spec.id, why=why)
            return [Cancel(record.spec.id, actor=ACTOR)]
        assert job is not None, "it would be gone"
        if job.suspended:
            await self._left.forget(ref)
        elif self._left.runs(job, record.spec.id, record.attempt + 1):
            await self._left.leave(ref, job, record.spec.id)
            return [] if record.phase is JobPhase.HELD else [Hold(record.spec.id, actor=ACTOR)]
        elif not self._config.kueue:
            log().warning("somebody has started a Job before its turn", job=record.spec.id)
            if not self._house.fence.holds() or not await self._suspend(job):
                return None
        priority = priority_of(job)
        if priority is not None and priority != record.priority:
            return [SetPriority(record.spec.id, priority, actor=ACTOR)]
        return []

    def _taken_back(self, record: JobRecord, job: KubeJob | None) -> str:
        """Why a Job that waits is to wait no more; nothing where it is."""
        if job is None or job.metadata.deletion_timestamp:
            return "it was deleted in Kubernetes"
        if job.verdict is not None:
            return "it is over in Kubernetes"
        if self._pool_of(job) != record.spec.pool or job.metadata.note(OVER):
            return "it was taken back in Kubernetes"
        if self._config.kueue and GATE_OWN not in job.gates:
            return "somebody has opened its gate before Kueue"
        return ""

    async def _is_there(self, ref: Ref) -> bool:
        try:
            return (await self._kube.get(ref.path, KubeJob)).metadata.uid == ref.uid
        except KubeGoneError:
            return False

    async def _suspend(self, job: KubeJob, over: str = "") -> bool:
        """Have it wait; whether that was done, or needs not be. What fails is tried again."""
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
        """Take over its deadline: of one that has GPUs only a shorter one, whoever lent them."""
        deadline, known = job.spec.active_deadline_seconds, record.time_limit
        if deadline is None:
            return
        limit = float(min(deadline + GRACE, MAX_TIME_LIMIT))
        if not record.placed or known is None or limit < known:
            if limit != known:
                self._house.sink(Limited(record.spec.id, limit, believed=True, shortens=True))
        elif limit > known and self._longer.get(place) != limit:
            self._longer[place] = limit
            log().warning(
                "a Job that has its GPUs asks for more time; it is ended at the limit that it had",
                job=record.spec.id, limit=known, asked=limit,
            )  # fmt: skip


def _places(
    mirrors: Mapping[str, WatchCache[KubeJob]], news: Iterable[JobName]
) -> Iterator[JobName]:
    """The Jobs that news are of; with no name, of all in a namespace."""
    for space, name in news:
        if name:
            yield space, name
        else:
            yield from ((space, each) for each in mirrors[space].objects)


def _elsewhere(spec: PodSpec) -> str:
    """Why pods of that kind have GPUs that are not counted, or come to run by another's will."""
    if spec.resource_claims:
        return "what its resourceClaims give is not counted; ask for GPUs by limits alone"
    if spec.scheduling_gates or spec.node_name or spec.scheduler_name not in OWN_SCHEDULER:
        return (
            "another decides where and when its pods run; leave schedulingGates, nodeName and "
            "schedulerName out"
        )
    return ""


def id_of(job: KubeJob) -> str:
    """What a Job is called here: another one of the same name is another one here, too."""
    meta = job.metadata
    tail = plain(meta.uid, 8)
    return plain(f"k8s-{meta.namespace}.{meta.name}", MAX_ID - 9).replace("/", "?") + f"-{tail}"


def priority_of(job: KubeJob) -> int | None:
    """The priority that its annotation asks for; None where there is none, or it is no number."""
    said = job.metadata.note(PRIORITY).strip()
    digits = said.removeprefix("-")
    if not (digits.isascii() and digits.isdecimal() and len(digits) < 9):
        return None
    return max(-MAX_PRIORITY, min(MAX_PRIORITY, int(said)))
