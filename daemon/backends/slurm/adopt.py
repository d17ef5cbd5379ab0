"""Adopt jobs that users submit to Slurm in held state, and start them by the daemon's policy."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from math import inf
from time import time

from msgspec.structs import replace

from daemon.backends.attempt_names import AttemptKey
from daemon.backends.interface import BackendContext
from daemon.backends.slurm.attempts import MARK, SlurmAttempt, SlurmView
from daemon.backends.slurm.config import SlurmConfig
from daemon.backends.slurm.interface import Slurm, SlurmRefusedError
from daemon.backends.slurm.schema import SlurmJob
from daemon.model.book import JobRecord
from daemon.model.inputs import Cancel, Command, Limited, Release, SetPriority, Submit
from daemon.model.job import JobPhase, JobSpec
from daemon.model.limits import MAX_PRIORITY
from daemon.model.outputs import Refused
from daemon.runtime.logs import log
from daemon.wire.wishes import wishes_of
from sia.model import NEVER_STOPPED

ACTOR = "slurm"
"""Actor of commands that result from users' actions in Slurm."""

AT_ONCE = 500
"""Maximum number of jobs adopted in one step, so that other clients do not wait long."""

RETRY = 60.0
"""Seconds until a refused job is tried again: pools may open and quotas grow."""

WISHES = re.compile(rf"{MARK}:[a-z_]+=")
"""Beginning of a comment in which a user states fields of a job."""

NEXT = re.compile(r",(?=[a-z_]+=)")

WAITING = (JobPhase.PENDING, JobPhase.HELD)

ENDED_WAITING = ("CANCELLED", "DEADLINE", "FAILED", "COMPLETED")
"""Final states of a job that may never have run."""


class SlurmAdopter:
    """Adopts jobs, and follows those that are pending."""

    def __init__(self, config: SlurmConfig, slurm: Slurm, context: BackendContext) -> None:
        """Create the adopter; known jobs are found by their origin at the first look."""
        self._config, self._slurm, self._context = config, slurm, context
        self._jobs: dict[str, str] = {}  # origin -> job id in the daemon
        self._refused: dict[str, float] = {}  # origin -> time of the next try
        self._locked: set[str] = set()  # held by the daemon: only an operator can release them
        self._ignored: set[int] = set()  # numbers of ignored jobs that were logged
        self._nice: set[str] = set()  # with a nice value; without, the daemon's priority applies
        self._last: SlurmView | None = None

    @property
    def waiting(self) -> list[str]:
        """Slurm job ids of all adopted jobs."""
        return [origin.partition("@")[0] for origin in self._jobs]

    async def look(self, view: SlurmView, runs: Mapping[AttemptKey, SlurmAttempt]) -> None:
        """Adopt new jobs and follow pending ones. O(jobs in Slurm) if any has changed."""
        if self._last is None:
            self._remember()
        again = view.began >= min(self._refused.values(), default=inf)
        if self._last is None or self._last.jobs is not view.jobs or again:
            await self._take_over(view)
        self._last = view
        await self._follow(view, runs)

    def _remember(self) -> None:
        for record in self._context.book().jobs.values():
            if record.spec.origin:
                self._jobs[record.spec.origin] = record.spec.id

    async def _take_over(self, view: SlurmView) -> None:
        new: dict[str, JobSpec] = {}
        known = {origin.partition("@")[0] for origin in self._jobs}
        for ref, job in view.jobs.items():
            origin = origin_of(ref, job)
            again = job.restarts > 0 and ref in known  # a requeue changes the submit time
            left = view.began < self._refused.get(origin, 0.0)
            if not again and origin not in self._jobs and not left:
                spec = self._spec(ref, job)
                if spec is not None:
                    new[origin] = spec
        self._refused = {
            origin: due
            for origin, due in self._refused.items()
            if due > view.began or origin in new
        }
        self._ignored &= {job.array or job.id for job in view.jobs.values()}
        specs = list(new.values())
        for i in range(0, len(specs), AT_ONCE):
            await self._submit(specs[i : i + AT_ONCE], view)

    async def _submit(self, specs: list[JobSpec], view: SlurmView) -> None:
        """Submit jobs to the daemon, with another id if the id is taken."""
        if not self._config.adopt or not self._context.fence.holds():
            return
        book = self._context.book()
        asked = []
        for spec in specs:
            known = book.job(spec.id)
            if known is not None and known.spec.origin != spec.origin:
                spec = _renamed(spec)  # noqa: PLW2901  Slurm restarted its job numbers
            elif known is not None:
                self._jobs[spec.origin] = spec.id
                continue
            asked.append(spec)
        answers = await self._context.ask([Submit(spec, actor=ACTOR) for spec in asked])
        for spec, answer in zip(asked, answers, strict=True):
            if isinstance(answer, Refused):
                if spec.origin not in self._refused:
                    log().warning(
                        "held Slurm job ignored", job=spec.id, user=spec.user,
                        why=answer.detail, mend=answer.mend,
                    )  # fmt: skip
                self._refused[spec.origin] = view.began + RETRY
            else:
                self._refused.pop(spec.origin, None)
                self._jobs[spec.origin] = spec.id

    def _spec(self, ref: str, job: SlurmJob) -> JobSpec | None:
        """Convert a held Slurm job; None if it is not to be adopted."""
        pool = self._pool_of(job.partition)
        waits = job.state == "PENDING" and job.held and "COMPLETING" not in job.flags
        given = wishes_in(job.comment)
        if pool is None or not waits or (given is None and job.comment.startswith(f"{MARK}:")):
            return None
        unsupported, wishes = job.unsupported, {}
        try:
            wishes = wishes_of(given or {}, job.submitted, job.gpus)
            if "min_width" in wishes or "max_width" in wishes:  # its script is for its own width
                wishes["min_width"] = wishes["max_width"] = job.gpus
        except ValueError as error:
            unsupported = unsupported or f"comment: {error}"
        if unsupported:
            self._log_ignored(job, unsupported)
        if job.gpus <= 0 or unsupported:
            return None
        if "unfulfilled" in job.dependency or job.eligible > time():
            return None  # not eligible yet: it would only block GPUs
        if not (job.requeues and self._slurm.requeues):
            wishes["preemptible"] = NEVER_STOPPED
        return JobSpec(
            f"slurm-{ref}", pool, job.gpus, user=job.user, name=_plain(job.name), warn=0.0,
            nodes=job.on, origin=origin_of(ref, job), time_limit=job.time_limit, **wishes,
        )  # fmt: skip

    def _log_ignored(self, job: SlurmJob, unsupported: str) -> None:
        number = job.array or job.id
        if number not in self._ignored:
            self._ignored.add(number)
            why, _, mend = unsupported.partition("; ")
            log().warning(
                "held Slurm job ignored",
                job=f"slurm-{number}", user=job.user, why=why, mend=mend,
            )  # fmt: skip

    def _pool_of(self, partition: str) -> str | None:
        """Return the pool of a partition list: the first partition that belongs to one."""
        pools = {self._config.partition_of(pool): pool for pool in self._context.book().pools}
        return next((pools[name] for name in partition.split(",") if name in pools), None)

    async def _follow(self, view: SlurmView, runs: Mapping[AttemptKey, SlurmAttempt]) -> None:
        """Follow users' actions on pending jobs, and jobs that ended in the daemon."""
        book = self._context.book()
        wanted: list[Command] = []
        for origin, job_id in list(self._jobs.items()):
            ref = origin.partition("@")[0]
            if not view.shows(ref):
                continue
            record = book.jobs.get(job_id)
            job = view.jobs.get(ref)
            if not origin_of_any(origin, job, "" if record is None else record.spec.user):
                job = None  # the number was reused by another job
            if record is None:
                await self._let_go(origin, job_id, job)
            elif (job_id, record.attempt) not in runs and record.phase in WAITING:
                wanted += await self._waits(record, job)
            if job is not None and record is not None:
                self._limit(record, job)
        if wanted:
            await self._context.ask(wanted)

    async def _let_go(self, origin: str, job_id: str, job: SlurmJob | None) -> None:
        """Cancel a job in Slurm that was cancelled in the daemon while pending."""
        ended = self._context.book().ended.get(job_id)
        waits = job is not None and job.state == "PENDING"
        if waits and ended is not None and self._context.fence.holds():
            await self._cancel(origin.partition("@")[0])
            return
        if not waits:
            del self._jobs[origin]
            self._locked.discard(origin)
            self._nice.discard(origin)

    async def _cancel(self, ref: str) -> None:
        try:
            await self._slurm.cancel(ref)
        except SlurmRefusedError as error:
            log().warning("Slurm refuses to cancel a job", job=ref, why=str(error))

    async def _waits(self, record: JobRecord, job: SlurmJob | None) -> list[Command]:
        """Return the commands for users' actions on a job that is pending here and in Slurm."""
        job_id, origin = record.spec.id, record.spec.origin
        if job is None:  # a shortened task list may not name it
            there = await self._slurm.job(origin.partition("@")[0])
            if any(each.unread or origin_of_any(origin, each) for each in there):
                return []
        if job is None or job.state in ENDED_WAITING:
            return [Cancel(job_id, actor=ACTOR)]
        if job.state not in ("PENDING", ""):
            log().warning("an adopted job was started in Slurm by someone else", job=job_id)
            return [Cancel(job_id, actor=ACTOR)]
        found: list[Command] = []
        if job.state == "PENDING" and "COMPLETING" not in job.flags:
            found += await self._keep(record, job, origin)
        priority = max(-MAX_PRIORITY, min(MAX_PRIORITY, -job.nice))
        if record.priority != priority and (job.nice or origin in self._nice):
            found.append(SetPriority(job_id, priority, actor=ACTOR))
        (self._nice.add if job.nice else self._nice.discard)(origin)
        return found

    async def _keep(self, record: JobRecord, job: SlurmJob, origin: str) -> Iterator[Command]:
        """Hold the job in Slurm until the daemon starts it.

        If its user released it, release it here, too.
        """
        locked = origin in self._locked or job.reason == "JobHeldAdmin"
        if not self._context.fence.holds() or (job.held and locked):
            return iter(())
        try:
            await self._slurm.hold(origin.partition("@")[0])
        except SlurmRefusedError as error:
            log().warning("Slurm refuses to hold a job", job=record.spec.id, why=str(error))
        self._locked.add(origin)
        if not job.held and record.phase is JobPhase.HELD:
            return iter((Release(record.spec.id, actor=ACTOR),))
        return iter(())

    def _limit(self, record: JobRecord, job: SlurmJob) -> None:
        if job.time_limit is not None and record.time_limit != job.time_limit:
            self._context.sink(Limited(record.spec.id, job.time_limit, believed=True))


def wishes_in(comment: str) -> dict[str, str] | None:
    """Return the fields in a comment like `sia:deadline=in 2h,value=20`; None if there are none.

    A comma separates two fields only if a field name follows, because values may contain commas.
    """
    if WISHES.match(comment) is None:
        return None
    fields = NEXT.split(comment.partition(":")[2])
    return {name: text for name, _, text in (field.partition("=") for field in fields)}


def origin_of(ref: str, job: SlurmJob) -> str:
    """Return a Slurm job's permanent id: number and submit time. Numbers alone are reused."""
    return f"{ref}@{int(job.submitted)}"


def origin_of_any(origin: str, job: SlurmJob | None, user: str = "") -> bool:
    """Return whether a Slurm job is that of an origin, and not a later job with the same id."""
    if job is None:
        return False
    again = job.restarts > 0 and user in ("", job.user)  # a requeue changes the submit time
    return again or origin == origin_of(origin.partition("@")[0], job)


def _renamed(spec: JobSpec) -> JobSpec:
    return replace(spec, id=f"{spec.id}-{spec.origin.partition('@')[2]}")


def _plain(name: str) -> str:
    return "".join(each if each.isprintable() else "?" for each in name)[:200]
