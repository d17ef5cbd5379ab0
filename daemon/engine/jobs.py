"""The engine's part for jobs that wait: they are submitted, held, put in front, withdrawn."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from daemon.engine.step import StepContext, unknown_job
from daemon.model.book import STAY, JobRecord, PoolRecord, array_of, job_of
from daemon.model.inputs import Cancel, Estimated, Hold, Release, SetPriority, Submit
from daemon.model.job import ON_GPUS, OVER, JobPhase, JobSpec, PoolMode
from daemon.model.limits import MAX_ID, MAX_PRIORITY, MAX_TIME_LIMIT
from daemon.model.outputs import Accepted, Answer, Refused, StopEffect, name_a_pool
from sia.events import JobCancelled, JobSubmitted, PriorityChanged, RunTimesUpdated
from sia.limits import MAX_RESUME_COST, UNKNOWN_RUN_TIME
from sia.model import Estimate, Job


class Jobs:
    """Takes jobs in, and moves them between the core's queues and outside."""

    def __init__(self, context: StepContext) -> None:
        """Work at this context."""
        self._context = context
        self._book = context.book

    def submit(self, asked: Submit) -> Answer:
        """Take a job in, unless it is there already. O(1)."""
        spec, book = asked.spec, self._book
        known = book.job(spec.id)
        if known is not None:
            return answer_to_resubmit(known, spec)
        wrong = self._wrong(spec)
        if wrong is not None:
            return wrong
        run_time = _believed(asked.run_time, spec, spec.time_limit)
        record = JobRecord(
            spec, self._context.now, run_time, priority=spec.priority, by=asked.actor
        )
        book.add(record)
        self._context.notify(
            "submitted", job=spec.id, pool=spec.pool, gpus=spec.gpus, by=asked.actor
        )
        if spec.hold:
            record.phase = JobPhase.HELD
        else:
            self.join(record)
        return Accepted()

    def _wrong(self, spec: JobSpec) -> Refused | None:
        """Why this job cannot be taken, if so."""
        book = self._book
        pool = book.pools.get(spec.pool)
        if pool is None:
            return _unfit(f"there is no pool {spec.pool!r}", name_a_pool(spec.pool, book.pools))
        if pool.state is PoolMode.DRAIN:
            return Refused(
                409, "pool drains", f"pool {pool.name} takes no more jobs", "ask its owner"
            )
        if not 1 <= spec.gpus <= pool.quota:
            return _unfit(
                f"{spec.gpus} GPUs never fit in pool {pool.name}, which has {pool.quota}",
                f"ask for 1 to {pool.quota} GPUs, or have the pool's quota raised",
            )
        if not self._placeable(spec):
            return _unfit(
                f"{spec.gpus} GPUs are in no one part of the cluster that pool {pool.name} may use"
                + ("" if spec.nodes is None else f", on {spec.nodes} nodes alike"),
                "ask for fewer, or for more jobs instead of a wide one",
            )
        if not self._could(spec):
            return _unfit(
                f"{spec.gpus} GPUs fit in no cells of pool {pool.name}",
                f"ask for fewer, or have its cells changed; see: sia pool show {pool.name}",
            )
        return _wrong_id(spec.id) or _wrong_times(spec) or self._wrong_array(spec)

    def _could(self, spec: JobSpec) -> bool:
        places = self._context.core.state.places
        return places is None or places.fits_quota(spec.pool, spec.gpus)

    def _placeable(self, spec: JobSpec) -> bool:
        """Whether it fits on all nodes of one area, were nobody else there. O(pools)."""
        areas, book = self._context.placement, self._book
        if areas is None or not (book.setup.areas or spec.nodes):
            return True
        own = book.pools[spec.pool]
        alike = (p.name for p in book.pools.values() if (p.share, p.group) == (True, own.group))
        return any(areas.holds(spec, name) for name in (own.name, *(alike if own.share else ())))

    def _wrong_array(self, spec: JobSpec) -> Refused | None:
        book = self._book
        if spec.array is None:
            if spec.id in book.arrays:
                return Refused(409, "id is taken", f"{spec.id!r} is an array", "take another id")
            return None
        index, size = spec.array
        name = array_of(spec)
        if not 0 <= index < size or spec.id != f"{name}.{index}" or not name:
            return _unfit(f"{spec.id!r} is not job {index} of an array", "submit it as an array")
        alike, seen = replace(spec, id=name, array=(0, size)), self._context.arrays
        if name not in seen or seen[name][0] != alike:
            seen[name] = alike, self._wrong_whole(name, alike, size)
        return seen[name][1]

    def _wrong_whole(self, name: str, alike: JobSpec, size: int) -> Refused | None:
        """Why none of an array's jobs can be taken, if one of them cannot. O(size)."""
        book = self._book
        if book.job(name) is not None or book.arrays.get(name, (size, 0))[0] != size:
            return Refused(
                409, "id is taken", f"{name!r} is a job, or another array", "take another id"
            )
        for i in range(size):
            known = book.job(f"{name}.{i}")
            if known is not None and known.spec != replace(
                alike, id=known.spec.id, array=(i, size)
            ):
                return id_taken(known.spec.id)
        return _wrong_id(f"{name}.{size - 1}")

    def join(self, record: JobRecord) -> None:
        """Have a job wait: in the core, or outside of it while its pool is on hold. O(1)."""
        record.phase = JobPhase.PENDING
        pool = self._book.pools[record.spec.pool]
        if pool.state is PoolMode.HOLD:
            pool.waiting[record.spec.id] = None
        else:
            self._enter(record)

    def _enter(self, record: JobRecord) -> None:
        """Into the core, under an id that was never there before."""
        spec = record.spec
        record.core = f"{spec.id}{STAY}{record.stays}" if record.stays else spec.id
        if record.stays or self._context.now > record.submitted:
            record.joined = self._context.now
        record.stays += 1
        job = core_job(record, self._context.now)
        self._context.events.append(JobSubmitted(self._context.now, job, record.run_time))

    def leave(self, record: JobRecord) -> None:
        """Have a job wait no longer. O(1)."""
        if record.core:
            self._context.events.append(JobCancelled(self._context.now, record.core))
            record.core = ""
        else:
            self._book.pools[record.spec.pool].waiting.pop(record.spec.id, None)

    def all_out(self, pool: PoolRecord) -> None:
        """Have all jobs of a pool wait outside the core, in their order. O(n)."""
        core = self._context.core.state
        ids = [job.job.id for job in core.pools[pool.name].waiting()]
        ids += [e.job.id for e in self._context.events if type(e) is JobSubmitted]
        for core_id in ids:
            record = self._waits(core_id)
            if record is not None and record.spec.pool == pool.name:
                self.leave(record)
                pool.waiting[record.spec.id] = None

    def _waits(self, core_id: str) -> JobRecord | None:
        """The job that waits in the core under this id."""
        record = self._book.jobs.get(job_of(core_id))
        if record is None or record.phase is not JobPhase.PENDING or record.core != core_id:
            return None
        return record

    def all_in(self, pool: PoolRecord) -> None:
        """Have all jobs that wait outside the core wait in it, in their order. O(n)."""
        for job_id in pool.waiting:
            self._enter(self._book.jobs[job_id])
        pool.waiting = {}

    def cancel(self, asked: Cancel) -> Answer:
        """Withdraw a job or an array, or end what runs of it. O(size)."""
        return self._each(asked.job, lambda record: self._cancel(record, asked.actor))

    def _cancel(self, record: JobRecord, actor: str) -> Answer:
        if record.phase in OVER:
            return _SAME if record.phase is JobPhase.CANCELLED else _has_ended(record)
        if record.phase in ON_GPUS and record.placed:
            if record.phase is JobPhase.ENDING:
                return _SAME
            self.stop(record, "cancelled")
            return Accepted()
        if record.phase is JobPhase.STARTING:  # the backend has not heard of it
            self._context.release_gpus(record)
        elif record.phase is JobPhase.PENDING:
            self.leave(record)
        self.finish(record, JobPhase.CANCELLED, f"cancelled by {actor}" if actor else "cancelled")
        return Accepted()

    def stop(self, record: JobRecord, why: str) -> None:
        """Have the backend end a job."""
        record.phase, record.stop = JobPhase.ENDING, why
        self._context.effects.append(StopEffect(record.spec.id, record.attempt, "end"))
        self._context.notify("ending", job=record.spec.id, pool=record.spec.pool, why=why)

    def finish(self, record: JobRecord, phase: JobPhase, why: str) -> None:
        """A job is over."""
        context, spec = self._context, record.spec
        record.phase, record.why, record.ended = phase, why, context.now
        self._book.end(record)
        context.ended.append(record)
        kind = phase.value if phase in (JobPhase.CANCELLED, JobPhase.LOST) else "ended"
        context.notify(
            kind, job=spec.id, pool=spec.pool, phase=phase.value, why=why, code=record.code,
            signal=record.signal,
        )  # fmt: skip

    def hold(self, asked: Hold) -> Answer:
        """Have a waiting job, or those of an array, wait until released. O(size)."""
        return self._each(asked.job, self._hold)

    def _hold(self, record: JobRecord) -> Answer:
        if record.phase is JobPhase.HELD:
            return _SAME
        if record.phase is not JobPhase.PENDING:
            return _waits_not(record)
        self.leave(record)
        record.phase = JobPhase.HELD
        self._context.notify("held", job=record.spec.id, pool=record.spec.pool)
        return Accepted()

    def release(self, asked: Release) -> Answer:
        """Have a held job, or those of an array, wait to be started again. O(size)."""
        return self._each(asked.job, self._release)

    def _release(self, record: JobRecord) -> Answer:
        if record.phase is not JobPhase.HELD:
            return _SAME if record.phase not in OVER else _has_ended(record)
        self._context.notify("released", job=record.spec.id, pool=record.spec.pool)
        self.join(record)
        return Accepted()

    def set_priority(self, asked: SetPriority) -> Answer:
        """Put a waiting job, or those of an array, elsewhere in its queue. O(size)."""
        return _wrong_priority(asked.priority) or self._each(
            asked.job, lambda record: self._set_priority(record, asked.priority)
        )

    def _set_priority(self, record: JobRecord, priority: int) -> Answer:
        if record.phase not in (JobPhase.PENDING, JobPhase.HELD):
            return _waits_not(record)
        if record.priority == priority:
            return _SAME
        record.priority = priority
        if record.core:
            self._context.events.append(PriorityChanged(self._context.now, record.core, priority))
        self._context.notify(
            "priority", job=record.spec.id, pool=record.spec.pool, priority=priority
        )
        return Accepted()

    def _each(self, job_id: str, do: Callable[[JobRecord], Answer]) -> Answer:
        """The job of that name, or all of an array: refused if each is."""
        answers = [do(record) for record in self._book.named(job_id)]
        if not answers:
            return unknown_job(job_id)
        done = [answer for answer in answers if type(answer) is Accepted]
        return next((a for a in done if a.new), done[0]) if done else answers[0]

    def estimate(self, news: Estimated) -> Answer:
        """Waiting jobs are thought to run for another time; others are left out."""
        told = []
        for core_id, run_time in news.estimates:
            record = self._waits(core_id)
            if record is not None:
                record.run_time = _believed(run_time, record.spec, record.bound)
                told.append(Estimate(core_id, record.run_time))
        self._think(told)
        return Accepted()

    def bound_moved(self, record: JobRecord, before: float | None) -> None:
        """A job that waits has another limit: it is thought to run no longer than that.

        Where it was thought to run up to the limit `before`, up to the new one.
        """
        limit = record.bound
        if record.phase not in (JobPhase.PENDING, JobPhase.HELD) or limit is None:
            return
        capped = before is not None and record.run_time >= before
        record.run_time = limit if capped else min(record.run_time, limit)
        if record.core:
            self._think([Estimate(record.core, record.run_time)])

    def _think(self, told: list[Estimate]) -> None:
        if told and self._context.core.policy.needs.updates:
            self._context.events.append(RunTimesUpdated(self._context.now, told))


_SAME = Accepted(new=False)


def core_job(record: JobRecord, now: float) -> Job:
    """A job as the core knows it."""
    spec = record.spec
    return Job(
        record.core, spec.pool, now, spec.gpus, spec.user, spec.kind,
        preemptible=spec.preemptible, priority=record.priority,
    )  # fmt: skip


def _believed(foreseen: float, spec: JobSpec, limit: float | None) -> float:
    """How long a job is thought to run: what its owner says counts where nothing is foreseen.

    No job runs beyond its limit.
    """
    foreseen = foreseen or spec.run_time or UNKNOWN_RUN_TIME
    return foreseen if limit is None else min(foreseen, limit)


def answer_to_resubmit(known: JobRecord, spec: JobSpec) -> Answer:
    """Return the answer to a submission whose id an existing job has."""
    return _SAME if known.spec == spec else id_taken(spec.id)


def answer_when_ended(record: JobRecord, command: Cancel | Hold | Release | SetPriority) -> Answer:
    """Return the answer to a command for a job that has ended: nothing changes."""
    if isinstance(command, Cancel) and record.phase is JobPhase.CANCELLED:
        return _SAME
    if isinstance(command, SetPriority) and (wrong := _wrong_priority(command.priority)):
        return wrong
    return _has_ended(record)


def id_taken(job_id: str) -> Refused:
    """Return the refusal of a submission under an id that another job has."""
    return Refused(
        409,
        "id is taken",
        f"another job has the id {job_id!r}",
        "take another id, or submit exactly the same",
    )


def _wrong_id(text: str) -> Refused | None:
    if 0 < len(text) <= MAX_ID and text.isprintable():
        return None
    return _unfit(
        f"the id {text[: MAX_ID + 1]!r} is none",
        f"write 1 to {MAX_ID} characters without control characters",
    )


def _wrong_times(spec: JobSpec) -> Refused | None:
    """Bounds of what the wire may carry all the same."""
    bounds = {
        "time_limit": (spec.time_limit, MAX_TIME_LIMIT),
        "warn": (spec.warn, MAX_TIME_LIMIT),
        "run_time": (spec.run_time, UNKNOWN_RUN_TIME),
        "duration": (spec.duration, UNKNOWN_RUN_TIME),
        "preemptible": (spec.preemptible, MAX_RESUME_COST),
    }
    for name, (value, most) in bounds.items():
        if value is not None and not 0 <= value <= most:
            return _unfit(f"{name} is {value}", f"write 0 to {most:g} seconds")
    return _wrong_priority(spec.priority)


def _wrong_priority(priority: int) -> Refused | None:
    if abs(priority) <= MAX_PRIORITY:
        return None
    return _unfit(f"the priority {priority}", f"write -{MAX_PRIORITY} to {MAX_PRIORITY}")


def _unfit(detail: str, mend: str) -> Refused:
    return Refused(422, "cannot be", detail, mend)


def _has_ended(record: JobRecord) -> Refused:
    return Refused(
        409,
        "job is over",
        f"job {record.spec.id} is {record.phase.value}",
        "only a job that waits or runs can be changed",
    )


def _waits_not(record: JobRecord) -> Refused:
    if record.phase in OVER:
        return _has_ended(record)
    return Refused(
        409,
        "job does not wait",
        f"job {record.spec.id} is {record.phase.value}",
        "only a job that waits can be held or put in front; cancel it instead",
    )
