"""Jobs on GPUs: starts, warnings, stops, ends, losses and requeues."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from daemon.engine.jobs import GRACE_OVER, Jobs
from daemon.engine.placement import LeftGpus
from daemon.engine.step import StepContext, unknown_job
from daemon.model.account import Turns
from daemon.model.book import DeadlineAnswer, JobRecord, job_of
from daemon.model.inputs import (
    Ended,
    Limited,
    Lost,
    Requeued,
    Resized,
    Started,
    StartFailed,
    Stopped,
    Stray,
)
from daemon.model.job import ON_GPUS, JobPhase
from daemon.model.limits import LATE_TURN, MAX_STARTS
from daemon.model.outputs import (
    Accepted,
    Answer,
    PreemptEffect,
    Refused,
    ResizeEffect,
    StartEffect,
    StopEffect,
)
from daemon.model.timers import Timer
from sia.core.guard import PolicyFailedError, ask
from sia.decisions import (
    Decision,
    DedicateJob,
    JobPromised,
    JobRejected,
    JobTried,
    MoveLoan,
    PreemptJob,
    ProposalRefused,
    ResizeJob,
    SolveProgram,
    StartJob,
)
from sia.events import JobPreempted, JobProgressed
from sia.limits import UNKNOWN_RUN_TIME
from sia.model import RESTART, Nodes, Stream

WARN, LIMIT = "limit 1 warn", "limit 2 end"
"""Kinds of timers. They sort so that a job whose warning and end are due at the same time is warned
first."""

TOO_LONG = "time limit"
"""Reason for ending a job that has reached its time limit."""

STOPPED_ITSELF = "the backend stopped it"
"""Reason for requeueing a job that has stopped although the daemon did not stop it."""

FORGOTTEN = "the configuration has changed the policy or what it plans by"
"""Reason for withdrawing a promise after a change of the configuration."""

PASSED_OVER = 3600.0
"""Seconds for which other jobs may start before a started job whose GPUs are not free. After that,
GPUs that become free are kept for this job, so that small jobs cannot starve it."""


class Runs:
    """Turns the core's decisions into orders for the backend, and its observations into events."""

    def __init__(self, context: StepContext, jobs: Jobs) -> None:
        """Work on this context; `jobs` handles pending jobs."""
        self._context = context
        self._book = context.book
        self._jobs = jobs
        context.carry_out = self.carry_out
        self._tried: JobTried | None = None
        """The trial whose `StartJob` comes next."""
        self._carriers: dict[type, Callable[[Any], None]] = {
            StartJob: self._start,
            JobTried: self._try,
            PreemptJob: self._preempt,
            ResizeJob: self._resize,
            DedicateJob: self._dedicate,
            MoveLoan: self._move,
            SolveProgram: self._ask_solver,
            ProposalRefused: self._refuse,
            JobRejected: self._answer,
            JobPromised: self._answer,
        }

    def carry_out(self, decisions: Sequence[Decision]) -> None:
        """Carry out the core's decisions. O(decisions)."""
        for decision in decisions:
            carry = self._carriers.get(type(decision))
            if carry is not None:
                carry(decision)

    def _ask_solver(self, decision: SolveProgram) -> None:
        self._book.solving = decision
        self._book.refused.pop("", None)

    def _try(self, decision: JobTried) -> None:
        self._tried = decision

    def _answer(self, decision: JobRejected | JobPromised) -> None:
        """Record and report what the policy promised for a deadline, or that it did not."""
        context, record = self._context, self._book.jobs.get(job_of(decision.job_id))
        job = context.core.state.jobs.get(decision.job_id)
        if record is None or job is None:
            return  # it is ending
        steps, spec = job.job.steps, record.spec
        more: dict[str, Any] = {}
        if isinstance(decision, JobRejected):
            lost = record.is_promised
            if steps:
                record.promise = DeadlineAnswer(
                    guaranteed=False, at=context.now, soonest=decision.soonest, why=decision.why
                )
            if decision.soonest is not None:
                more["soonest"] = decision.soonest
            if lost:
                more["was_promised"] = True
            context.notify("rejected", **self._about(decision), **more)
            return
        by, latest = steps[decision.step].at, steps[-1].at
        record.promise = DeadlineAnswer(
            guaranteed=True, at=context.now, step=decision.step, by=by, latest=latest,
            planned=decision.planned, why=decision.why,
        )  # fmt: skip
        if decision.why:
            more["why"] = decision.why
        context.notify(
            "promised", job=spec.id, pool=spec.pool, deadline=spec.deadline, step=decision.step,
            by=by, latest=latest, planned=decision.planned, **more,
        )  # fmt: skip

    def tell_forgotten(self, promised: Iterable[JobRecord]) -> None:
        """Report that another policy, or other options, have withdrawn the jobs' promises."""
        for record in promised:
            if record.promise is None:
                record.promise = DeadlineAnswer(
                    guaranteed=False, at=self._context.now, why=FORGOTTEN
                )
                self._context.notify(
                    "rejected", job=record.spec.id, pool=record.spec.pool, why=FORGOTTEN,
                    was_promised=True,
                )  # fmt: skip

    def _refuse(self, decision: ProposalRefused) -> None:
        """Report why a proposal was refused, unless that was the last report on this job."""
        about, book = self._about(decision), self._book
        why, about_whom = about["why"], about["job"] if about["job"] in book.jobs else ""
        if book.refused.get(about_whom) != why:
            book.refused[about_whom] = why
            self._context.notify("refused", **about)

    def _about(self, decision: ProposalRefused | JobRejected) -> dict[str, str]:
        """Return the fields of a notice; they name no job if the refusal is not about one."""
        job_id = job_of(decision.job_id)
        record = self._book.jobs.get(job_id)
        pool = "" if record is None else record.spec.pool
        return {"job": job_id, "pool": pool, "why": decision.why}

    def _start(self, start: StartJob) -> None:
        """Queue a start for the backend; a job that is being stopped must stop first."""
        tried, self._tried = self._tried, None
        context, job_id = self._context, job_of(start.job_id)
        record = self._book.jobs[job_id]
        if record.core != start.job_id:
            return  # it is ending, and the core gets that event next
        record.begun = True
        if self._book.refused:
            self._book.refused.pop(job_id, None)
        record.stream, record.reason, record.decided = start.stream, start.reason, context.now
        record.loans, record.width = start.loans, start.width
        record.trial = None if tried is None else (tried.nodes, tried.wants)
        following = record.attempt + 1
        if record.phase is JobPhase.STOPPING:
            record.seats = start.nodes
        else:
            self._begin_attempt(record, start.nodes)
        pool, more = record.spec.pool, dict[str, Any]()
        if tried is not None:
            more["trial"] = True
        context.notify(
            "started", job=job_id, pool=pool, attempt=following, stream=start.stream.value,
            reason=start.reason, gpus=start.width or record.spec.gpus, nodes=start.nodes,
            loans=start.loans, **more,
        )  # fmt: skip
        if record.loans:
            self._open_loans(record)
        self._book.seatless[job_id] = None

    def _begin_attempt(self, record: JobRecord, nodes: Nodes) -> None:
        """Begin a further attempt. The start is not ordered from the backend yet."""
        record.phase = JobPhase.STARTING
        record.attempt += 1
        record.placed, record.started, record.since = False, None, None
        record.progress = record.first = None
        record.warned, record.stop = False, ""
        record.told, record.forced = None, False
        record.nodes, record.seats, record.area = nodes, (), ""

    def _open_loans(self, record: JobRecord) -> None:
        job_id, pool = record.spec.id, record.spec.pool
        for donor, gpus in record.loans:
            self._context.notify("loan_opened", job=job_id, pool=donor, gpus=gpus, to=pool)

    def _preempt(self, preempt: PreemptJob) -> None:
        """Order a job to stop, or withdraw a start that was not ordered from the backend yet."""
        context, job_id = self._context, job_of(preempt.job_id)
        record = self._book.jobs[job_id]
        if record.core != preempt.job_id:
            return
        record.preempted = preempt.reason
        self._book.refused.pop(job_id, None)
        context.notify(
            "preempted", job=job_id, pool=record.spec.pool, attempt=record.attempt,
            reason=preempt.reason,
        )  # fmt: skip
        if record.phase is JobPhase.ENDING:
            context.leave_core(record)
            self._book.leaving[job_id] = None
            return
        context.close_loans(record)
        ordered, spare = record.placed, record.stream is Stream.SPARE
        record.stream, record.decided, record.reason, record.width = None, None, "", 0
        if self._book.seatless.pop(job_id, "none") is None and not ordered:
            record.phase, record.nodes = JobPhase.PENDING, ()
            record.attempt -= 1  # this number was given to nobody
            self._keep_work(record, record.done)
        elif record.phase is not JobPhase.STOPPING:
            record.recalled = spare
            record.trials += record.trial is not None
            self._tell_to_stop(record, kill=preempt.kill or record.trial is not None)
        record.seats, record.trial = (), None

    def withdraw(self, record: JobRecord, why: str) -> None:
        """Withdraw a start that was not ordered from the backend yet; the core knows of it."""
        self._preempt(PreemptJob(record.core, why))

    def _keep_work(self, record: JobRecord, done: float) -> None:
        """Tell the core how much work a job keeps, if the core assumes another amount."""
        context = self._context
        state = context.core.state.jobs[record.core]
        if state.done != done or state.stream is not None:
            context.correct(JobPreempted(context.now, record.core, done))

    def _tell_to_stop(self, record: JobRecord, *, kill: bool = False) -> None:
        context, job_id = self._context, record.spec.id
        record.phase, record.told, record.killed = JobPhase.STOPPING, context.now, kill
        self._book.leaving[job_id] = None
        self._drop_limit(record)
        self.set_timers(record)
        context.effects.append(self.stop_order(record))
        context.notify(
            "stopping", job=job_id, pool=record.spec.pool, attempt=record.attempt,
            reason=record.preempted, grace=self._book.setup.grace,
        )  # fmt: skip

    def stop_order(self, record: JobRecord) -> PreemptEffect:
        """Return the order to stop a job's attempt. After a crash it is sent again."""
        spec = record.spec
        grace = self._book.setup.grace
        return PreemptEffect(spec.id, record.attempt, grace, spec.checkpoint, record.forced)

    def _resize(self, resize: ResizeJob) -> None:
        """Change a job's width: in its start if not ordered yet, by narrowing it, or by a stop.

        A running attempt may only become narrower. An order to widen it could reach the backend
        after a later order has narrowed the job, and take GPUs that other jobs have by then.
        """
        context, job_id = self._context, job_of(resize.job_id)
        record = self._book.jobs[job_id]
        if record.core != resize.job_id:
            return
        context.close_loans(record)
        self._book.refused.pop(job_id, None)
        width, before = resize.width, record.gpus
        context.notify(
            "resized", job=job_id, pool=record.spec.pool, attempt=record.attempt,
            before=before, gpus=width, reason=resize.reason, loans=resize.loans,
        )  # fmt: skip
        record.width = 0 if width == record.spec.gpus else width
        record.stream, record.loans = resize.stream, resize.loans
        self._open_loans(record)
        if job_id in self._book.seatless:
            return
        record.preempted = resize.reason
        if record.phase is JobPhase.ENDING:
            self._book.leaving[job_id] = None
            return
        record.decided, record.reason = context.now, resize.reason
        if self._book.setup.resizes and record.phase is JobPhase.RUNNING and width < before:
            self._book.leaving[job_id] = None
            context.effects.append(self.resize_order(record))
            return
        self._book.seatless[job_id] = None
        self._tell_to_stop(record)

    def resize_order(self, record: JobRecord) -> ResizeEffect:
        """Return the order to narrow a running attempt. After a crash it is sent again."""
        return ResizeEffect(record.spec.id, record.attempt, record.gpus, record.nodes)

    def resized(self, seen: Resized) -> Answer:
        """Record that a running job has given up GPUs, or that it could not. O(log n)."""
        record = self._on_gpus(seen)
        if not isinstance(record, JobRecord):
            return record
        context, book, placement = self._context, self._book, self._context.placement
        if seen.job not in book.leaving or record.phase is JobPhase.ENDING:
            return Accepted(new=False)
        if seen.width >= record.taken:
            if record.phase is JobPhase.RUNNING:  # it could not: it needs another attempt
                record.preempted = record.reason
                book.seatless[seen.job] = None
                self._tell_to_stop(record)
            return Accepted()
        if placement is not None:
            placement.free(record.nodes)
            placement.take(seen.nodes)
        record.nodes, record.taken = seen.nodes, seen.width
        if record.phase is JobPhase.RUNNING:
            record.done, record.since = record.work(context.now), context.now
            state = context.core.state.jobs[record.core]
            record.overhead, record.speed = state.overhead, state.speed
            if record.taken == record.gpus:
                del book.leaving[seen.job]
                self._tell_work(record)
        return Accepted()

    def _dedicate(self, decision: DedicateJob) -> None:
        """Close the loans of a job that now counts in its pool's quota; the job keeps running."""
        record = self._book.jobs[job_of(decision.job_id)]
        if record.core == decision.job_id:
            self._context.close_loans(record)
            record.stream, record.reason = Stream.DEDICATED, decision.reason
            if record.placed:  # otherwise it counts when it gets its GPUs
                self._count_turn(record)

    def _move(self, move: MoveLoan) -> None:
        job_id = job_of(move.job_id)
        record = self._book.jobs[job_id]
        if record.core != move.job_id:
            return
        loans = dict(record.loans)
        loans[move.previous] -= move.gpus
        if not loans[move.previous]:
            del loans[move.previous]
        loans[move.donor] = loans.get(move.donor, 0) + move.gpus
        record.loans = tuple(loans.items())
        self._context.notify(
            "loan_moved", job=job_id, pool=move.donor, gpus=move.gpus, previous=move.previous,
            to=record.spec.pool,
        )  # fmt: skip

    def place_pending(self) -> None:
        """Order the start of jobs whose GPUs are free, in the order of the core's decisions.

        The core counts GPUs of nodes that are out, and GPUs of jobs that it has ordered to stop. So
        a started job may have to wait here for its GPUs. Other jobs may start before it for up to
        `PASSED_OVER` seconds, or for as long as the nodes in service have too few GPUs for it.
        O(starts); if GPUs are free, also O(jobs that wait for GPUs), at most the number of GPUs
        that are out or not free yet.
        """
        context, book = self._context, self._book
        placement = context.placement
        if not book.seatless or (placement is not None and not placement.spare):
            return
        left = LeftGpus(book, context.core) if book.leaving and placement is None else None
        blocked: set[str] = set()
        for job_id in list(book.seatless):
            record = book.jobs[job_id]
            if record.phase is JobPhase.STOPPING:
                continue  # an attempt never starts while the previous one still runs
            if left is not None and not left.free_for(record):
                continue
            if not self._place(record, blocked):
                if self._block_area(record, blocked):
                    return
                continue
            del book.seatless[job_id]
            context.effects.append(self.start_order(record))
            if record.stream is Stream.DEDICATED:
                self._count_turn(record)
            else:
                self._turns_of(record).guests += 1

    def start_order(self, record: JobRecord) -> StartEffect:
        """Return the order to start a job's attempt. After a crash it is sent again."""
        return StartEffect(
            record.spec.id, record.attempt, record.spec, record.nodes, record.area, record.width,
            record.done, record.overhead, record.speed,
        )  # fmt: skip

    def _block_area(self, record: JobRecord, blocked: set[str]) -> bool:
        """Block an area for a job that has waited long; return True if it is the whole cluster."""
        placement = self._context.placement
        late = self._context.now - (record.decided or 0.0) >= PASSED_OVER
        if not late or placement is None or self._context.core.state.nodes is not None:
            return False
        return placement.block_for(record, self._areas(record), blocked)

    def _place(self, record: JobRecord, blocked: set[str]) -> bool:
        """Assign GPUs to a job; return False if too few are free."""
        placement, table = self._context.placement, self._context.core.state.nodes
        if placement is not None and table is not None:
            nodes = placement.find_on(table.held(record.core))
            if nodes is None:
                return False
            record.nodes = nodes
            record.area = record.spec.pool if self._book.setup.areas else ""  # its area has them
            placement.take(nodes)
        elif placement is not None:
            found = placement.find(record, self._areas(record), blocked)
            if found is None:
                return False
            record.area, record.nodes = found
            placement.take(record.nodes)
        record.placed, record.taken = True, record.width or record.spec.gpus
        state = self._context.core.state.jobs[record.core]
        record.overhead, record.speed = state.overhead, state.speed
        return True

    def _areas(self, record: JobRecord) -> Iterator[str]:
        """Yield the pools whose areas a job may use, best first: its lenders, its own, its group.

        A dedicated job has no lenders. It uses nodes of other pools while guests occupy its own.
        """
        book = self._book
        own = book.pools[record.spec.pool]
        for donor, _ in sorted(record.loans, key=lambda loan: -loan[1]):
            yield donor
        yield own.name
        if own.share:
            for pool in book.pools.values():
                if pool.share and pool.group == own.group:
                    yield pool.name

    def _on_gpus(
        self, seen: Started | Ended | StartFailed | Lost | Stray | Requeued | Stopped | Resized
    ) -> JobRecord | Answer:
        """Return the job on GPUs that an observation is about; if there is none, the answer."""
        record = self._book.jobs.get(seen.job)
        if record is None:
            return unknown_job(seen.job)
        if record.phase not in ON_GPUS or not record.placed or record.attempt != seen.attempt:
            return Refused(
                409,
                "not this attempt",
                f"job {seen.job} is {record.phase.value} in attempt {record.attempt}, "
                f"not in {seen.attempt}",
                "ignore it",
            )
        return record

    def started(self, seen: Started) -> Answer:
        """Record that a job runs. O(log n)."""
        record = self._on_gpus(seen)
        if not isinstance(record, JobRecord):
            return record
        if record.started is not None:
            return Accepted(new=False)
        record.started = self._context.now
        if record.since is None:  # unless it has reported progress before
            record.since = record.started
        if record.phase is JobPhase.STARTING:
            record.phase = JobPhase.RUNNING
            self._context.notify(
                "running", job=seen.job, pool=record.spec.pool, attempt=seen.attempt,
                nodes=record.nodes,
            )  # fmt: skip
            self._correct_start(record)
        self.set_timers(record)
        return Accepted()

    def _correct_start(self, record: JobRecord) -> None:
        """Tell the core that a job began later than decided, if the policy stops jobs.

        The core counts work from its decision on, but the job may have waited for its GPUs, and its
        width may have changed meanwhile. The job's own reports since then have precedence.
        """
        context = self._context
        state = context.core.state.jobs[record.core]
        late = (state.since, state.done) != (record.since, record.done)
        if late and context.core.policy.needs.preemption and record.progress is None:
            self._tell_work(record)

    def _tell_work(self, record: JobRecord) -> None:
        """Tell the core the work, speed and overhead that count for a job from now on."""
        self._context.correct(
            JobProgressed(
                self._context.now, record.core, record.done, record.speed, overhead=record.overhead
            )
        )

    def tell_all_work(self) -> None:
        """Tell the core the work of every running job, if the policy stops jobs. O(jobs).

        Under other policies the core does not need to know that starts came late.
        """
        now = self._context.now
        for job_id, record in self._book.jobs.items():
            since = record.since
            if since is None or record.phase is not JobPhase.RUNNING:
                continue
            if job_id not in self._book.leaving:
                pause = max(0.0, since + record.overhead - now)
                record.done, record.since, record.overhead = record.work(now), now, pause
                self._tell_work(record)

    def set_timers(self, record: JobRecord) -> None:
        """Set the timers of a job's warning and end, or of the end of its grace time. O(log n).

        The time limit counts the run time of earlier attempts whose work the job keeps.
        """
        job_id, attempt = record.spec.id, record.attempt
        signalled = record.told
        if record.phase is JobPhase.STOPPING and signalled is not None and not record.forced:
            over = signalled + self._book.setup.grace
            self._context.timers.set(Timer(over, GRACE_OVER, job_id, attempt))
        limit, start = record.time_limit, record.started
        if limit is None or start is None or record.phase is not JobPhase.RUNNING:
            return
        start -= record.ran
        if record.spec.warn > 0 and not record.warned:
            warn = record.spec.warn if record.spec.warn < limit else limit / 2
            self._context.timers.set(Timer(start + limit - warn, WARN, job_id, attempt))
        self._context.timers.set(Timer(start + limit, LIMIT, job_id, attempt))

    def due(self, timer: Timer) -> None:
        """Warn or end a job at its time limit, or end a job that did not stop in its grace time."""
        record = self._book.jobs.get(timer.name)
        if record is None or record.attempt != timer.attempt:
            return
        if timer.kind == GRACE_OVER:
            if record.phase is JobPhase.STOPPING:
                record.forced = True
                self._context.effects.append(self.stop_order(record))
                self._context.notify("stop_forced", job=timer.name, pool=record.spec.pool)
            return
        if record.phase is not JobPhase.RUNNING:
            return
        if timer.kind == LIMIT:
            self._jobs.stop(record, TOO_LONG)
            return
        record.warned = True
        self._context.effects.append(StopEffect(timer.name, timer.attempt, "warn"))
        self._context.notify("warned", job=timer.name, pool=record.spec.pool)

    def _free_gpus(self, record: JobRecord) -> None:
        """Free a job's GPUs, take it out of the core, and cancel its timers."""
        self._context.leave_core(record)
        self._free_attempt(record)

    def _free_attempt(self, record: JobRecord) -> None:
        """Free the GPUs of a job's attempt and cancel its timers."""
        context, job_id = self._context, record.spec.id
        context.free_gpus(record)
        self._drop_limit(record)
        if record.told is not None:
            context.timers.drop(GRACE_OVER, job_id)

    def _drop_limit(self, record: JobRecord) -> None:
        """Cancel the timers of a job's time limit. O(log n) amortized."""
        if record.time_limit is not None:
            self._context.timers.drop(WARN, record.spec.id)
            self._context.timers.drop(LIMIT, record.spec.id)

    def stopped(self, seen: Stopped) -> Answer:
        """Record that a job that was ordered to stop has stopped. O(log n)."""
        record = self._on_gpus(seen)
        if not isinstance(record, JobRecord):
            return record
        if record.phase is not JobPhase.STOPPING:
            return self.requeued(Requeued(seen.job, seen.attempt, seen.why or STOPPED_ITSELF))
        self._stopped(record, lost=seen.lost)
        return Accepted()

    def _stopped(self, record: JobRecord, *, lost: bool) -> None:
        """Start a further attempt of a job that has stopped, or queue the job in its old place.

        The job keeps its work. With `lost` it keeps only the work of earlier attempts. If it was
        killed, or if its stops cost all work, it keeps none.
        """
        context, job_id = self._context, record.spec.id
        now = context.now
        ran = 0.0 if record.started is None else now - record.started
        work = record.kept if lost else record.work(now)
        if record.killed or self._book.setup.stop_cost(record.spec) == RESTART:
            work = record.ran = 0.0
        elif not lost:
            record.ran += ran
        waited = 0.0 if record.told is None else now - record.told
        lost_work = max(0.0, record.work(now) - work)
        again = record.work(now if record.told is None else record.told) - work
        self._count_recall(record, ran, work)
        self._free_attempt(record)
        record.done = record.kept = work
        record.since, record.told = None, None
        record.stops += 1
        context.notify(
            "stopped", job=job_id, pool=record.spec.pool, attempt=record.attempt, done=work,
            lost=lost_work, took=waited,
        )  # fmt: skip
        if not record.core:
            self._take_off(record)
            self._jobs.join(record)
            return
        context.correct(JobPreempted(now, record.core, work, self._jobs.is_fixed(record), again))
        if job_id in self._book.seatless:
            self._begin_attempt(record, record.seats)
        else:
            self._take_off(record)
            record.phase = JobPhase.PENDING

    def _count_recall(self, record: JobRecord, ran: float, kept: float) -> None:
        """Add up what the stop of a spare job gained and cost, if the job gave GPUs back."""
        if not record.recalled:
            return
        context, spec, recalls = self._context, record.spec, self._turns_of(record)
        work, own = record.work(context.now), self._book.setup.stop_cost(spec)
        cost = context.core.state.options.resume_cost
        pays = min(own, kept) if isinstance(own, float | int) else cost if kept else 0.0
        recalls.stops += 1
        recalls.ran += ran * (record.taken or spec.gpus)
        recalls.lost += (max(0.0, work - kept) + pays) * spec.gpus
        if record.run_time < UNKNOWN_RUN_TIME:
            recalls.left += record.left(max(record.run_time, work), context.now)
        record.recalled = False

    def _turns_of(self, record: JobRecord) -> Turns:
        turns, pool = self._book.turns, record.spec.pool
        if pool not in turns:
            turns[pool] = Turns()
        return turns[pool]

    def _count_turn(self, record: JobRecord) -> None:
        """Count a job that has got its GPUs and whose turn has come. O(1)."""
        core = self._context.core
        try:
            turn = ask(core.policy, "turn", core.state.jobs[record.core])
        except PolicyFailedError as error:
            self._refuse(ProposalRefused("", str(error), impossible=True))
            return
        if turn is None or not turn.came:
            return
        sums, late = self._turns_of(record), self._context.now - turn.time
        sums.turns += 1
        if late > LATE_TURN:
            sums.late += 1
            sums.latest = max(sums.latest, late)

    def _take_off(self, record: JobRecord) -> None:
        """Record that a job has no attempt and no GPUs."""
        record.placed, record.decided, record.started, record.since = False, None, None, None
        record.stream, record.reason, record.nodes, record.area = None, "", (), ""
        record.trial = None
        record.width, record.seats, record.overhead, record.speed = 0, (), 0.0, 1.0
        record.told, record.forced = None, False

    def ended(self, seen: Ended) -> Answer:
        """Record that a job has ended. O(1)."""
        record = self._on_gpus(seen)
        if not isinstance(record, JobRecord):
            return record
        if record.phase is JobPhase.STOPPING and not _by_itself(seen):
            self._stopped(record, lost=False)
            return Accepted()
        record.code, record.signal = seen.code, seen.signal
        if record.stop == TOO_LONG and seen.by_itself:
            record.stop = ""  # it ended in time, although the daemon saw the end after the limit
        if record.stop == "cancelled":
            phase, why = JobPhase.CANCELLED, record.stop
        elif record.stop:
            phase, why = JobPhase.FAILED, record.stop
        elif seen.cancelled:
            phase, why = JobPhase.CANCELLED, seen.why
        else:
            phase = JobPhase.FINISHED if seen.code == 0 else JobPhase.FAILED
            why = seen.why
        self._free_gpus(record)
        self._jobs.finish(record, phase, why)
        return Accepted()

    def start_failed(self, seen: StartFailed) -> Answer:
        """Requeue or fail a job that could not be started. O(1)."""
        return self._gone(seen, JobPhase.FAILED)

    def lost(self, seen: Lost) -> Answer:
        """Requeue or give up a job that has disappeared. O(1)."""
        return self._gone(seen, JobPhase.LOST)

    def _gone(self, seen: StartFailed | Lost, phase: JobPhase) -> Answer:
        record = self._on_gpus(seen)
        if not isinstance(record, JobRecord):
            return record
        if record.phase is JobPhase.STOPPING:
            self._stopped(record, lost=True)
            return Accepted()
        if self._finish_if_ending(record):
            return Accepted()
        if record.spec.requeue and record.attempt - record.stops < MAX_STARTS:
            self._requeue(record, seen.why)
            self._jobs.join(record)
        else:
            self._jobs.finish(record, phase, seen.why)
        return Accepted()

    def _finish_if_ending(self, record: JobRecord) -> bool:
        """If a job is being ended, free its GPUs and finish it. Return whether it was."""
        self._free_gpus(record)
        if not record.stop:
            return False
        phase = JobPhase.CANCELLED if record.stop == "cancelled" else JobPhase.FAILED
        self._jobs.finish(record, phase, record.stop)
        return True

    def _requeue(self, record: JobRecord, why: str) -> None:
        self._context.notify("requeued", job=record.spec.id, pool=record.spec.pool, why=why)
        self._take_off(record)
        record.done = record.kept = record.ran = 0.0

    def requeued(self, seen: Requeued) -> Answer:
        """Requeue or hold a job that the backend took off its GPUs. O(1)."""
        record = self._on_gpus(seen)
        if not isinstance(record, JobRecord):
            return record
        if record.phase is JobPhase.STOPPING:
            self._stopped(record, lost=False)
            if seen.hold:
                self._hold_stopped(record)
            return Accepted()
        if self._finish_if_ending(record):
            return Accepted()
        self._requeue(record, seen.why)
        if seen.hold:
            record.phase = JobPhase.HELD
            self._context.notify("held", job=seen.job, pool=record.spec.pool)
        else:
            self._jobs.join(record)
        return Accepted()

    def _hold_stopped(self, record: JobRecord) -> None:
        """Hold a job that has just stopped; it keeps its work."""
        if record.phase is JobPhase.PENDING:
            self._jobs.leave(record)
        else:
            self._context.leave_core(record)
            self._take_off(record)
            record.attempt -= 1  # the further attempt was not ordered yet
        record.phase = JobPhase.HELD
        self._context.notify("held", job=record.spec.id, pool=record.spec.pool)

    def limited(self, seen: Limited) -> Answer:
        """Set a job's time limit. O(log n)."""
        record = self._book.jobs.get(seen.job)
        if record is None:
            return unknown_job(seen.job)
        known = record.time_limit
        longer = known is not None and seen.limit > known
        if known == seen.limit or (seen.shortens and record.placed and longer):
            return Accepted(new=False)
        before, record.believed = record.bound, seen.believed
        record.limit, record.warned = seen.limit, False
        self._drop_limit(record)
        self.set_timers(record)
        self._context.notify("limited", job=seen.job, pool=record.spec.pool, limit=seen.limit)
        if seen.believed:
            self._jobs.limit_changed(record, before)
        return Accepted()

    def stray(self, seen: Stray) -> Answer:
        """End an unexpected run if its attempt is known to have ended; otherwise only report it."""
        record = self._book.job(seen.job)
        if isinstance(self._on_gpus(seen), JobRecord):
            return self.started(Started(seen.job, seen.attempt))
        self._context.notify("stray", job=seen.job, attempt=seen.attempt)
        if record is not None and seen.attempt <= record.attempt:
            self._context.effects.append(StopEffect(seen.job, seen.attempt, "end"))
        return Accepted()


def _by_itself(seen: Ended) -> bool:
    """Return whether a job that was ordered to stop has ended by itself before.

    A job that exits with 0 has finished. Every other end counts as the stop, unless the job is
    known to have ended before the order.
    """
    return seen.code == 0 or seen.by_itself or seen.cancelled
