"""Jobs on GPUs: start, warning, end, loss, requeue."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from daemon.engine.jobs import Jobs
from daemon.engine.step import StepContext, unknown_job
from daemon.model.book import JobRecord, job_of
from daemon.model.inputs import Ended, Limited, Lost, Requeued, Started, StartFailed, Stray
from daemon.model.job import ON_GPUS, JobPhase
from daemon.model.limits import MAX_STARTS
from daemon.model.outputs import Accepted, Answer, Refused, StartEffect, StopEffect
from daemon.model.timers import Timer
from sia.decisions import Decision, MoveLoan, ProposalRefused, StartJob

WARN, LIMIT = "limit 1 warn", "limit 2 end"
"""Kinds of timers. They sort so that a job whose warning is due at its end is warned first."""

TOO_LONG = "time limit"
"""Reason for ending a job that has reached its time limit."""

PASSED_OVER = 3600.0
"""Seconds for which other jobs may pass a started job whose GPUs are not free. After that, GPUs
that come free are blocked for it, so that small jobs cannot starve it."""


class Runs:
    """Turns the core's decisions into orders for the backend, and its observations into events."""

    def __init__(self, context: StepContext, jobs: Jobs) -> None:
        """Work on this context; `jobs` handles pending jobs."""
        self._context = context
        self._book = context.book
        self._jobs = jobs
        context.carry_out = self.carry_out

    def carry_out(self, decisions: Sequence[Decision]) -> None:
        """Carry out the core's decisions. O(decisions)."""
        for decision in decisions:
            kind = type(decision)
            if kind is StartJob:
                self._start(decision)  # type: ignore[arg-type]
            elif kind is MoveLoan:
                self._move(decision)  # type: ignore[arg-type]
            elif kind is ProposalRefused:
                job_id = job_of(decision.job_id)  # type: ignore[union-attr]
                pool = self._book.jobs[job_id].spec.pool
                self._context.notify("refused", job=job_id, pool=pool, why=decision.why)  # type: ignore[union-attr]

    def _start(self, start: StartJob) -> None:
        context, job_id = self._context, job_of(start.job_id)
        record = self._book.jobs[job_id]
        record.phase, record.decided = JobPhase.STARTING, context.now
        record.attempt += 1
        record.placed, record.started, record.warned, record.stop = False, None, False, ""
        record.progress = None
        record.stream, record.reason = start.stream, start.reason
        record.nodes, record.loans, record.area = start.nodes, start.loans, ""
        pool = record.spec.pool
        context.notify(
            "started", job=job_id, pool=pool, attempt=record.attempt, stream=start.stream.value,
            reason=start.reason, nodes=start.nodes, loans=start.loans,
        )  # fmt: skip
        for donor, gpus in start.loans:
            context.notify("loan_opened", job=job_id, pool=donor, gpus=gpus, to=pool)
        self._book.seatless[job_id] = None

    def _move(self, move: MoveLoan) -> None:
        job_id = job_of(move.job_id)
        record = self._book.jobs[job_id]
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

        The core counts on nodes that are out, so a started job may have to wait here. Others may
        pass it for a while, or as long as all GPUs of the nodes that are in would not suffice for
        it. O(starts), and, if GPUs are free, O(jobs that wait for some), of which there are at most
        as many as GPUs out.
        """
        placement = self._context.placement
        if placement is not None and not placement.spare:
            return
        blocked: set[str] = set()
        for job_id in list(self._book.seatless):
            record = self._book.jobs[job_id]
            if not self._place(record, blocked):
                if self._block_area(record, blocked):
                    return
                continue
            del self._book.seatless[job_id]
            record.placed = True
            self._context.effects.append(
                StartEffect(job_id, record.attempt, record.spec, record.nodes, record.area)
            )

    def _block_area(self, record: JobRecord, blocked: set[str]) -> bool:
        """Block an area for a job that has waited long; return whether it is the whole cluster."""
        placement = self._context.placement
        late = self._context.now - (record.decided or 0.0) >= PASSED_OVER
        if not late or placement is None:
            return False
        return placement.block_for(record.spec, self._areas(record), blocked)

    def _place(self, record: JobRecord, blocked: set[str]) -> bool:
        placement = self._context.placement
        if placement is None:
            return True
        found = placement.find(record.spec, self._areas(record), blocked)
        if found is None:
            return False
        record.area, record.nodes = found
        placement.take(record.nodes)
        return True

    def _areas(self, record: JobRecord) -> Iterator[str]:
        """Yield the pools whose areas a job may use, best first: its lenders, its own, its group.

        A dedicated job has no lenders. It uses other pools' nodes where guests are on its own.
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
        self, seen: Started | Ended | StartFailed | Lost | Stray | Requeued
    ) -> JobRecord | Answer:
        """Return the job on GPUs that an observation is about, or the answer if there is none."""
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
        if record.phase is JobPhase.STARTING:
            record.phase = JobPhase.RUNNING
            self._context.notify(
                "running", job=seen.job, pool=record.spec.pool, attempt=seen.attempt,
                nodes=record.nodes,
            )  # fmt: skip
        self.set_timers(record)
        return Accepted()

    def set_timers(self, record: JobRecord) -> None:
        """Set the timers of a job's warning and end. O(log n)."""
        limit, start = record.time_limit, record.started
        if limit is None or start is None or record.phase is not JobPhase.RUNNING:
            return
        job_id, attempt = record.spec.id, record.attempt
        if record.spec.warn > 0 and not record.warned:
            warn = record.spec.warn if record.spec.warn < limit else limit / 2
            self._context.timers.set(Timer(start + limit - warn, WARN, job_id, attempt))
        self._context.timers.set(Timer(start + limit, LIMIT, job_id, attempt))

    def due(self, timer: Timer) -> None:
        """Warn or end a job at its time limit, if it still runs."""
        record = self._book.jobs.get(timer.name)
        if (
            record is None
            or record.attempt != timer.attempt
            or record.phase is not JobPhase.RUNNING
        ):
            return
        if timer.kind == LIMIT:
            self._jobs.stop(record, TOO_LONG)
            return
        record.warned = True
        self._context.effects.append(StopEffect(timer.name, timer.attempt, "warn"))
        self._context.notify("warned", job=timer.name, pool=record.spec.pool)

    def _free_gpus(self, record: JobRecord) -> None:
        """Free a job's GPUs and cancel its timers."""
        self._context.release_gpus(record)
        for kind in (WARN, LIMIT):
            self._context.timers.drop(kind, record.spec.id)

    def ended(self, seen: Ended) -> Answer:
        """Record that a job has ended. O(1)."""
        record = self._on_gpus(seen)
        if not isinstance(record, JobRecord):
            return record
        record.code, record.signal = seen.code, seen.signal
        if record.stop == TOO_LONG and seen.by_itself:
            record.stop = ""  # it ended in time; the limit passed before the daemon saw the end
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
        if self._finish_if_stopping(record):
            return Accepted()
        if record.spec.requeue and record.attempt < MAX_STARTS:
            self._requeue(record, seen.why)
            self._jobs.join(record)
        else:
            self._jobs.finish(record, phase, seen.why)
        return Accepted()

    def _finish_if_stopping(self, record: JobRecord) -> bool:
        """Free a job's GPUs, and finish the job if it has an order to end: return whether."""
        self._free_gpus(record)
        if not record.stop:
            return False
        phase = JobPhase.CANCELLED if record.stop == "cancelled" else JobPhase.FAILED
        self._jobs.finish(record, phase, record.stop)
        return True

    def _requeue(self, record: JobRecord, why: str) -> None:
        self._context.notify("requeued", job=record.spec.id, pool=record.spec.pool, why=why)
        record.placed, record.decided, record.started = False, None, None
        record.stream, record.reason, record.nodes, record.area = None, "", (), ""

    def requeued(self, seen: Requeued) -> Answer:
        """Requeue or hold a job that the backend took off its GPUs. O(1)."""
        record = self._on_gpus(seen)
        if not isinstance(record, JobRecord):
            return record
        if self._finish_if_stopping(record):
            return Accepted()
        self._requeue(record, seen.why)
        if seen.hold:
            record.phase = JobPhase.HELD
            self._context.notify("held", job=seen.job, pool=record.spec.pool)
        else:
            self._jobs.join(record)
        return Accepted()

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
        for kind in (WARN, LIMIT):
            self._context.timers.drop(kind, seen.job)
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
