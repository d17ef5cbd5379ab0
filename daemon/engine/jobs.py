"""Pending jobs: submission, hold, priority, cancellation."""

from __future__ import annotations

from collections.abc import Callable
from math import fsum

from msgspec.structs import replace

from daemon.engine.step import StepContext, unknown_job
from daemon.model.book import STAY, JobRecord, PoolRecord, array_of, job_of
from daemon.model.grants import GrantedUse
from daemon.model.inputs import Cancel, Estimated, Hold, Release, SetPriority, Submit
from daemon.model.job import ON_GPUS, OVER, JobPhase, JobSpec, PoolMode
from daemon.model.limits import MAX_ID, MAX_PRIORITY, MAX_TIME_LIMIT
from daemon.model.outputs import Accepted, Answer, Refused, StopEffect, name_a_pool
from daemon.model.setup import Setup
from replay.logs.regimes import check_whole
from sia.events import JobCancelled, JobSubmitted, PriorityChanged, RunTimesUpdated
from sia.limits import MAX_ITERATIONS, MAX_TIME, UNKNOWN_RUN_TIME
from sia.model import NEVER_STOPPED, Estimate, Job
from sia.policies.shared.elastic import least_width
from sia.state.bounds import JobFieldError, check_fields
from sia.state.checkpoint import parse_checkpoint
from sia.state.strl import ALL
from sia.wording import some

USUAL = Setup(())
"""A configuration in which stops have the default cost."""

GRACE_OVER = "stop 1 grace time is over"
"""Kind of the timer that ends a job whose grace time for a stop is over."""


class Jobs:
    """Accepts jobs, and moves them in and out of the core's queues."""

    def __init__(self, context: StepContext) -> None:
        """Work on this context."""
        self._context = context
        self._book = context.book
        self._granted = GrantedUse(context.book.jobs.values())

    def submit(self, asked: Submit) -> Answer:
        """Accept a job, unless it exists already. O(1)."""
        spec, book = asked.spec, self._book
        known = book.job(spec.id)
        if known is not None:
            return answer_to_resubmit(known, spec)
        job = _core_job(spec, spec.id, self._context.now, spec.priority, book.setup)
        wrong = self._wrong(spec, job)
        if wrong is not None:
            return wrong
        run_time = _estimate_of(asked.run_time, spec, spec.time_limit)
        record = JobRecord(
            spec, self._context.now, run_time, priority=spec.priority, by=asked.actor
        )
        book.add(record)
        self._granted.add(spec)
        self._context.notify(
            "submitted", job=spec.id, pool=spec.pool, gpus=spec.gpus, by=asked.actor
        )
        if spec.hold:
            record.phase = JobPhase.HELD
        else:
            self.join(record, job)
        return Accepted()

    def _wrong(self, spec: JobSpec, job: Job) -> Refused | None:
        """Return why a job cannot be accepted; None if it can. `job` is its form for the core."""
        book = self._book
        pool = book.pools.get(spec.pool)
        if pool is None:
            return _unfit(f"there is no pool {spec.pool!r}", name_a_pool(spec.pool, book.pools))
        if pool.state is PoolMode.DRAIN:
            return Refused(
                409,
                "pool is draining",
                f"pool {pool.name} accepts no jobs while it drains",
                "use another pool, or set its state to open",
            )
        narrows = self._context.core.policy.narrows
        fewest = min(spec.gpus, least_width(job)) if narrows else spec.gpus
        if not 1 <= fewest <= pool.quota:
            return _unfit(
                f"{fewest} GPUs exceed the quota of pool {pool.name}: {pool.quota}",
                f"request 1 to {pool.quota} GPUs, "
                + (f"give a min_width of at most {pool.quota}, " if narrows else "")
                + "or ask an operator to raise the quota",
            )
        if not self._fits_in_area(spec):
            return _unfit(
                f"no area that pool {pool.name} may use has {spec.gpus} GPUs"
                + (
                    "" if spec.nodes is None else f", the same number on each of {spec.nodes} nodes"
                ),
                "request fewer GPUs, or split the job",
            )
        if not self._fits_in_cells(spec):
            return _unfit(
                f"no cell of pool {pool.name} has {spec.gpus} GPUs",
                f"request fewer GPUs, or change its cells; see: sia pool show {pool.name}",
            )
        return (
            _wrong_id(spec.id)
            or _wrong_fields(spec, job)
            or self._wrong_nodes(spec, job)
            or self._wrong_array(spec)
        )

    def _wrong_nodes(self, spec: JobSpec, job: Job) -> Refused | None:
        """Return why no nodes can run a job, on a cluster whose nodes differ; None if some can."""
        table = self._context.core.state.nodes
        if table is None:
            return None
        heeds = self._context.core.policy.heeds
        if spec.nodes is not None and (spec.nodes > 1 or "prefers" not in heeds):
            return _unfit(
                f"the policy chooses nodes by what jobs prefer, not {spec.nodes} of them",
                "ask for GPUs of one node, or of any nodes, with jvu or prio",
            )
        room = table.room(job)
        if job.width <= room:
            return None
        if job.one_node:
            return _unfit(
                f"no node on which it may run has {spec.gpus} GPUs",
                "request fewer GPUs, or use sia submit: its jobs may have several nodes",
            )
        if spec.strl:
            return _unfit(
                f"the nodes that its STRL names have {room} GPUs, not {spec.gpus}",
                f"name nodes that there are, {ALL}, or one of {some(table.attributes)}",
            )
        return _unfit(
            f"the nodes that {spec.prefers} asks for have {room} GPUs, not {spec.gpus}, and it "
            "runs nowhere else" if spec.prefers else
            f"the nodes have {room} GPUs, not {spec.gpus}",
            f"give slowdown, or prefer one of {some(table.attributes)}" if spec.prefers else
            "request fewer GPUs",
        )  # fmt: skip

    def _fits_in_cells(self, spec: JobSpec) -> bool:
        places = self._context.core.state.places
        return places is None or places.fits_quota(spec.pool, spec.gpus)

    def _fits_in_area(self, spec: JobSpec) -> bool:
        """Return whether the job would fit in one area if no other job ran. O(pools)."""
        areas, book = self._context.placement, self._book
        if areas is None or not (book.setup.areas or spec.nodes):
            return True
        own = book.pools[spec.pool]
        alike = (p.name for p in book.pools.values() if (p.share, p.group) == (True, own.group))
        return any(
            areas.could_hold(spec, name) for name in (own.name, *(alike if own.share else ()))
        )

    def _wrong_array(self, spec: JobSpec) -> Refused | None:
        book = self._book
        if spec.array is None:
            if spec.id in book.arrays:
                return Refused(
                    409, "id is taken", f"an array has the id {spec.id!r}", "choose another id"
                )
            grants = book.setup.grants
            return self._granted.refusal(grants, spec) if grants else None
        index, size = spec.array
        name = array_of(spec)
        if not 0 <= index < size or spec.id != f"{name}.{index}" or not name:
            return _unfit(
                f"{spec.id!r} is not the id of job {index} of an array", "submit the whole array"
            )
        alike, seen = replace(spec, id=name, array=(0, size)), self._context.arrays
        if name not in seen or seen[name][0] != alike:
            seen[name] = alike, self._wrong_siblings(name, alike, size)
        return seen[name][1]

    def _wrong_siblings(self, name: str, alike: JobSpec, size: int) -> Refused | None:
        """Return why no job of an array can be accepted: one of them is refused. O(size)."""
        book = self._book
        if book.job(name) is not None or book.arrays.get(name, (size, 0))[0] != size:
            return Refused(
                409, "id is taken", f"another job or array has the id {name!r}", "choose another id"
            )
        new = 0
        for i in range(size):
            known = book.job(f"{name}.{i}")
            new += known is None
            if known is not None and known.spec != replace(
                alike, id=known.spec.id, array=(i, size)
            ):
                return id_taken(known.spec.id)
        return _wrong_id(f"{name}.{size - 1}") or self._granted.refusal(
            book.setup.grants, alike, new
        )

    def join(self, record: JobRecord, job: Job | None = None) -> None:
        """Queue a job: in the core, or outside of the core while its pool is on hold. O(1).

        For a new job, `job` may be its representation for the core.
        """
        record.phase = JobPhase.PENDING
        pool = self._book.pools[record.spec.pool]
        if pool.state is PoolMode.HOLD:
            pool.waiting[record.spec.id] = None
        else:
            self._enter(record, job)

    def _enter(self, record: JobRecord, job: Job | None = None) -> None:
        """Submit a job to the core under a new id: the core never gets the same id twice."""
        spec = record.spec
        record.core = f"{spec.id}{STAY}{record.stays}" if record.stays else spec.id
        if record.stays or self._context.now > record.submitted:
            record.joined = self._context.now
        record.stays += 1
        record.begun = False
        if job is None:
            job = core_job(record, self._context.now, self._book.setup)
        if record.stops and self.is_fixed(record):
            job = replace(job, preemptible=NEVER_STOPPED)
        submitted = JobSubmitted(self._context.now, job, record.expected, record.done)
        self._context.events.append(submitted)

    def is_fixed(self, record: JobRecord) -> bool:
        """Return whether a job has been stopped as often as allowed, not counting trials."""
        most = self._book.setup.stops_per_job
        return 0 < most <= record.stops - record.trials

    def leave(self, record: JobRecord) -> None:
        """Take a pending job out of its queue. O(1)."""
        if record.begun and record.core:
            self._context.leave_core(record)
        elif record.core:
            self._context.events.append(JobCancelled(self._context.now, record.core))
            record.core = ""
        else:
            self._book.pools[record.spec.pool].waiting.pop(record.spec.id, None)

    def move_out(self, pool: PoolRecord) -> None:
        """Move all pending jobs of a pool out of the core, in order. O(n)."""
        core = self._context.core.state
        ids = [job.job.id for job in core.pools[pool.name].waiting()]
        ids += [e.job.id for e in self._context.events if type(e) is JobSubmitted]
        for core_id in ids:
            record = self._pending(core_id)
            if record is not None and record.spec.pool == pool.name:
                self.leave(record)
                pool.waiting[record.spec.id] = None
        for job_id in self._book.leaving:
            record = self._book.jobs[job_id]
            stopping = record.phase is JobPhase.STOPPING and job_id not in self._book.seatless
            if stopping and record.spec.pool == pool.name:
                self._context.leave_core(record)  # after its stop it waits here

    def _pending(self, core_id: str) -> JobRecord | None:
        """Return the pending job that has this id in the core; None if there is none."""
        record = self._book.jobs.get(job_of(core_id))
        if record is None or record.phase is not JobPhase.PENDING or record.core != core_id:
            return None
        return record

    def move_in(self, pool: PoolRecord) -> None:
        """Move all pending jobs of a pool into the core, in order. O(n)."""
        for job_id in pool.waiting:
            self._enter(self._book.jobs[job_id])
        pool.waiting = {}

    def cancel(self, asked: Cancel) -> Answer:
        """Cancel pending jobs and end running ones, of a job or array. O(size)."""
        return self._each(asked.job, lambda record: self._cancel(record, asked.actor))

    def _cancel(self, record: JobRecord, actor: str) -> Answer:
        if record.phase in OVER:
            return _SAME if record.phase is JobPhase.CANCELLED else _has_ended(record)
        if record.phase in ON_GPUS and record.placed:
            if record.phase is JobPhase.ENDING:
                return _SAME
            self.stop(record, "cancelled")
            return Accepted()
        if record.phase is JobPhase.STARTING:  # the backend has no order for it
            self._context.release_gpus(record)
        elif record.phase is JobPhase.PENDING:
            self.leave(record)
        self.finish(record, JobPhase.CANCELLED, f"cancelled by {actor}" if actor else "cancelled")
        return Accepted()

    def stop(self, record: JobRecord, why: str) -> None:
        """Order the backend to end a job."""
        if record.phase is JobPhase.STOPPING:
            self._context.leave_core(record)
            self._context.timers.drop(GRACE_OVER, record.spec.id)
        record.phase, record.stop = JobPhase.ENDING, why
        self._context.effects.append(StopEffect(record.spec.id, record.attempt, "end"))
        self._context.notify("ending", job=record.spec.id, pool=record.spec.pool, why=why)

    def finish(self, record: JobRecord, phase: JobPhase, why: str) -> None:
        """Record that a job has ended."""
        context, spec = self._context, record.spec
        record.phase, record.why, record.ended = phase, why, context.now
        self._book.end(record)
        self._granted.drop(spec)
        context.ended.append(record)
        kind = phase.value if phase in (JobPhase.CANCELLED, JobPhase.LOST) else "ended"
        context.notify(
            kind, job=spec.id, pool=spec.pool, phase=phase.value, why=why, code=record.code,
            signal=record.signal,
        )  # fmt: skip

    def hold(self, asked: Hold) -> Answer:
        """Hold a pending job, or those of an array. O(size)."""
        return self._each(asked.job, self._hold)

    def _hold(self, record: JobRecord) -> Answer:
        if record.phase is JobPhase.HELD:
            return _SAME
        if record.phase is not JobPhase.PENDING:
            return _not_pending(record)
        self.leave(record)
        record.phase = JobPhase.HELD
        record.promise = None  # a new promise is requested after the release
        self._context.notify("held", job=record.spec.id, pool=record.spec.pool)
        return Accepted()

    def release(self, asked: Release) -> Answer:
        """Release a held job, or those of an array. O(size)."""
        return self._each(asked.job, self._release)

    def _release(self, record: JobRecord) -> Answer:
        if record.phase is not JobPhase.HELD:
            return _SAME if record.phase not in OVER else _has_ended(record)
        self._context.notify("released", job=record.spec.id, pool=record.spec.pool)
        self.join(record)
        return Accepted()

    def set_priority(self, asked: SetPriority) -> Answer:
        """Change the priority of a pending job, or those of an array. O(size)."""
        return _wrong_priority(asked.priority) or self._each(
            asked.job, lambda record: self._set_priority(record, asked.priority)
        )

    def _set_priority(self, record: JobRecord, priority: int) -> Answer:
        if record.phase not in (JobPhase.PENDING, JobPhase.HELD):
            return _not_pending(record)
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
        """Call `do` for a job, or for each job of an array; refuse only if all are refused."""
        answers = [do(record) for record in self._book.named(job_id)]
        if not answers:
            return unknown_job(job_id)
        done = [answer for answer in answers if type(answer) is Accepted]
        return next((a for a in done if a.new), done[0]) if done else answers[0]

    def estimate(self, news: Estimated) -> Answer:
        """Set run time estimates of pending jobs; other jobs are ignored."""
        estimates = []
        for core_id, run_time in news.estimates:
            record = self._pending(core_id)
            if record is not None and not record.whole:  # its own reports are better
                record.run_time = _estimate_of(run_time, record.spec, record.bound)
                estimates.append(Estimate(core_id, record.run_time))
        self._update_estimates(estimates)
        return Accepted()

    def limit_changed(self, record: JobRecord, before: float | None) -> None:
        """Adjust a pending job's estimate to its new time limit.

        An estimate that was cut at the limit `before` becomes the new limit.
        """
        limit = record.bound
        if record.phase not in (JobPhase.PENDING, JobPhase.HELD) or limit is None:
            return
        capped = before is not None and record.run_time >= before
        record.run_time = limit if capped else min(record.run_time, limit)
        if record.core:
            self._update_estimates([Estimate(record.core, min(record.expected, limit))])

    def _update_estimates(self, estimates: list[Estimate]) -> None:
        if estimates and self._context.core.policy.needs.updates:
            self._context.events.append(RunTimesUpdated(self._context.now, estimates))


_SAME = Accepted(new=False)


def core_job(record: JobRecord, now: float, setup: Setup = USUAL) -> Job:
    """Return a job as the core represents it under a configuration.

    A job without stated widths can only run on its own width. Otherwise a policy that resizes jobs
    would narrow it to one GPU, as in a replay of a log without widths.
    """
    job = _core_job(record.spec, record.core, now, record.priority, setup)
    if record.widths is not None:
        job = replace(job, min_width=record.widths[0], max_width=record.widths[1])
    return replace(job, soft=_steps_from(record, now)) if job.soft else job


def _steps_from(record: JobRecord, now: float) -> tuple[tuple[float, float], ...]:
    """Return the later steps of a requeued job's deadline, as multiples of the time from now to it.

    Their absolute times do not change. After the deadline no step can be promised, so the steps
    stay as they were submitted.
    """
    due, soft = record.spec.deadline, record.spec.soft
    if due is None or now in (record.submitted, due) or now > due:
        return soft
    span, found = due - record.submitted, list[tuple[float, float]]()
    for times, reward in soft:
        at = (record.submitted + times * span - now) / (due - now)
        again = 1.0 if times == 1.0 else min(at, MAX_TIME)
        if again > (found[-1][0] if found else 1.0) or times == 1.0:
            found.append((again, reward))  # otherwise rounding has made it equal to the step before
    return tuple(found)


def _core_job(spec: JobSpec, core_id: str, now: float, priority: int, setup: Setup) -> Job:
    return Job(
        core_id, spec.pool, now, spec.gpus, spec.user, spec.kind,
        min_width=spec.min_width or spec.gpus, max_width=spec.max_width or spec.gpus,
        demand=spec.demand,
        preemptible=setup.stop_cost(spec), priority=priority, deadline=spec.deadline,
        soft=spec.soft, value=spec.value, budget=spec.budget, estimate=spec.run_time,
        prefers=spec.prefers,
        slowdown=spec.slowdown, strl=spec.strl, mode=spec.mode, min_run_time=spec.min_run_time,
        model=spec.model, regimes=spec.regimes, one_node=spec.nodes == 1,
        fixed_width=bool(spec.origin),
    )  # fmt: skip


def _estimate_of(forecast: float, spec: JobSpec, limit: float | None) -> float:
    """Return the estimated run time: the forecast, or else the owner's, at most the time limit.

    The owner's estimate is the stated run time, or else the sum over the job's regimes.
    """
    stated = fsum(regime.epochs * regime.seconds for regime in spec.regimes)
    estimate = min(forecast or spec.run_time or stated or UNKNOWN_RUN_TIME, UNKNOWN_RUN_TIME)
    return estimate if limit is None else min(estimate, limit)


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
        "choose another id, or resubmit the job unchanged",
    )


def _wrong_id(text: str) -> Refused | None:
    if 0 < len(text) <= MAX_ID and text.isprintable():
        return None
    return _unfit(
        f"{text[: MAX_ID + 1]!r} is not a valid id",
        f"use 1 to {MAX_ID} printable characters",
    )


def _wrong_fields(spec: JobSpec, job: Job) -> Refused | None:
    """Check the bounds that the wire format does not enforce: jobs have other sources, too."""
    try:
        check_fields(job)
        if spec.checkpoint:
            _check_checkpoint(spec.checkpoint)
        if spec.duration is not None and spec.regimes:
            check_whole(spec.regimes, spec.duration)
        if spec.iterations is not None and not 1 <= spec.iterations <= MAX_ITERATIONS:
            raise ValueError(f"iterations must be 1 to {MAX_ITERATIONS}; change iterations")
    except JobFieldError as error:
        return _unfit(error.problem, error.fix)
    except ValueError as error:
        problem, _, fix = str(error).partition("; ")
        return _unfit(problem, fix)
    limit, duration = spec.time_limit, spec.duration
    if limit is not None and not 0 <= limit <= MAX_TIME_LIMIT:
        return _wrong_time("time_limit", limit, MAX_TIME_LIMIT)
    if not 0 <= spec.warn <= MAX_TIME_LIMIT:
        return _wrong_time("warn", spec.warn, MAX_TIME_LIMIT)
    if duration is not None and not 0 <= duration <= UNKNOWN_RUN_TIME:
        return _wrong_time("duration", duration, UNKNOWN_RUN_TIME)
    return _wrong_priority(spec.priority)


def _check_checkpoint(text: str) -> None:
    """Raise ValueError with the field, what is wrong, and the fix."""
    try:
        parse_checkpoint(text)
    except ValueError as error:
        raise ValueError(f"checkpoint {error}") from None


def _wrong_time(name: str, value: float, most: float) -> Refused:
    return _unfit(f"{name} must be 0 to {most:g} seconds (got {value:g})", f"change {name}")


def _wrong_priority(priority: int) -> Refused | None:
    if abs(priority) <= MAX_PRIORITY:
        return None
    return _unfit(
        f"priority must be -{MAX_PRIORITY} to {MAX_PRIORITY} (got {priority})", "change priority"
    )


def _unfit(detail: str, fix: str) -> Refused:
    return Refused(422, "invalid", detail, fix)


def _has_ended(record: JobRecord) -> Refused:
    return Refused(
        409,
        "job has ended",
        f"job {record.spec.id} is {record.phase.value}",
        "only pending and running jobs can be changed",
    )


def _not_pending(record: JobRecord) -> Refused:
    if record.phase in OVER:
        return _has_ended(record)
    return Refused(
        409,
        "job is not pending",
        f"job {record.spec.id} is {record.phase.value}",
        "only pending jobs can be held or reordered; cancel the job instead",
    )
